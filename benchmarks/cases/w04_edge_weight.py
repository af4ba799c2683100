"""W4: sums weighted by a number per edge, with its gradient. ``Graph`` × ``EdgeLearned`` beside PyG's layer."""

from __future__ import annotations

from torch import Tensor

from benchmarks import graphs
from benchmarks.case import FORWARD, TRAIN, Case, Entry, Side, Work
from benchmarks.graphs import Sample
from benchmarks.tensors import leaf, normal, seeded
from mpnn import MessagePassing
from mpnn.neighbours import Graph
from mpnn.weights import EdgeLearned

WIDTH = 64


def _number(pairs: object) -> Tensor:
    return pairs.attr  # type: ignore[attr-defined]


def make(graph: Sample, width: int = WIDTH) -> Case:
    """One head, no projections: y_i = Σ_e a_e x_j, a (E,) with a gradient."""
    from torch_geometric.nn import SimpleConv

    seeded()
    index, nodes = graph.edge_index, graph.nodes
    layer = MessagePassing(Graph(), EdgeLearned(width, width, _number, heads=1, value=False, bias=False))
    conv = SimpleConv(aggr="sum")
    x, number = normal(nodes, width), normal(graph.edges, 1, seed=2)
    flat = leaf(number.squeeze(-1))
    ours = Side(
        "mpnn", lambda: layer(x, index, number), {"x": x, "number": number}, views={"number": _flat}, given=[index]
    )
    theirs = Side("SimpleConv", lambda: conv(x, index, flat), {"x": x, "number": flat}, given=[index])
    row = 4.0 * width
    gather = Work(2.0 * graph.edges * width, 12.0 * graph.edges + nodes * row, ((graph.edges * row, nodes * row),))
    # backward: the transposed sum, and one inner product an edge, which gathers again
    return Case(ours, [theirs], gather, gather.times(3), layer.plan(x, index, number).kernel)


def _flat(g: Tensor) -> Tensor:
    return g.squeeze(-1)


def entries() -> list[Entry]:
    made = []
    for name in ("G1", "G3", "G5"):
        nodes, edges = graphs.SIZES[name]
        floors = {(mode, "customary"): 2.5 for mode in (FORWARD, TRAIN)} if name != "G1" else {}
        title = f"a learned number per edge, {name}, {WIDTH} channels"
        made.append(
            Entry(
                f"W4/{name}", title, lambda n=name: make(graphs.sample(n)), {"N": nodes, "E": edges, "d": WIDTH}, floors
            )
        )
    return made
