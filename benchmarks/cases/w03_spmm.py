"""W3: a GCN layer on five graphs. ``Graph`` × ``SharedKernel`` beside PyG's ``GCNConv`` and torch's sparse products."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks import graphs, peers
from benchmarks.case import FORWARD, TRAIN, Case, Entry, Side, Work
from benchmarks.graphs import Sample
from benchmarks.tensors import normal, seeded, share
from mpnn import MessagePassing
from mpnn.neighbours import Graph
from mpnn.weights import SharedKernel

WIDTHS = (("G1", 64), ("G2", 64), ("G2", 128), ("G3", 64), ("G4", 64), ("G5", 64))
CUSTOMARY = {"G1": 3.0, "G2": 3.5, "G3": 8.0, "G4": 2.0, "G5": 8.0}
SERIES = (5_000, (50_000, 100_000, 200_000, 400_000, 800_000), 64)


def work(nodes: int, edges: int, width: int) -> tuple[Work, Work]:
    """(forward, forward and backward): one gather of a row per edge, and the dense product."""
    row = 4.0 * width
    gather = Work(2.0 * edges * width, 8.0 * edges + nodes * row, ((edges * row, nodes * row),))
    dense = Work(2.0 * nodes * width**2, 2 * nodes * row)
    return gather + dense, gather.times(2) + dense.times(3)


def make(graph: Sample, width: int) -> Case:
    """The whole layer, ``width`` to ``width`` channels, loops added."""
    from torch_geometric.nn import GCNConv

    seeded()
    index, nodes = graph.edge_index, graph.nodes
    layer = MessagePassing(Graph(self_loops="add"), SharedKernel(width, width, normalise="symmetric"))
    x = normal(nodes, width)
    weight, bias = layer.weight.weight, layer.weight.bias
    conv = share(GCNConv(width, width), lin__weight=weight[0], bias=bias)
    names = {"x": x, "weight": conv.lin.weight, "bias": conv.bias}
    with_loops, scale = peers.normalised(index, nodes)
    matrix, pyg = peers.csr(with_loops, scale, nodes), peers.edge_index(with_loops, nodes)

    def edge_index_product() -> Tensor:
        return pyg.matmul(F.linear(x, conv.lin.weight), scale, transpose=True) + conv.bias

    def sparse_product() -> Tensor:
        return torch.sparse.mm(matrix, F.linear(x, conv.lin.weight), "sum") + conv.bias

    ours = Side(
        "mpnn",
        lambda: layer(x, index),
        {"x": x, "weight": weight, "bias": bias},
        views={"weight": _first},
        given=[index],
    )
    others = [
        Side("GCNConv", lambda: conv(x, index), names, given=[index]),
        Side("EdgeIndex.matmul", edge_index_product, names, given=[with_loops, scale]),
        Side("torch.sparse.mm", sparse_product, names, given=[matrix]),
    ]
    return Case(ours, others, *work(nodes, with_loops.shape[1], width), layer.plan(x, index).kernel)


def _first(g: Tensor) -> Tensor:
    return g[0]


def entries() -> list[Entry]:
    made = []
    for name, width in WIDTHS:
        nodes, edges = graphs.SIZES[name]
        floors = {(TRAIN, "customary"): CUSTOMARY[name], (FORWARD, "best"): 0.95, (TRAIN, "best"): 0.95}
        title = f"GCN layer, {name} of {nodes:,} nodes and {edges:,} edges, {width} channels"
        size = {"N": nodes, "E": edges, "d": width}
        scope = "smoke" if name == "G1" else "bench"
        made.append(
            Entry(f"W3/{name}-d{width}", title, lambda n=name, w=width: make(graphs.sample(n), w), size, floors, scope)
        )
    return made


def series() -> list[Entry]:
    """Time and memory against E at a fixed N."""
    nodes, counts, width = SERIES

    def point(edges: int) -> Case:
        return make(Sample("uniform", graphs.uniform(nodes, edges), nodes), width)

    return [
        Entry(f"series/W3-E/{e}", f"GCN layer, {nodes:,} nodes, {e:,} edges", lambda e=e: point(e),
              {"N": nodes, "E": e, "d": width}, series=("W3-E", "E"))
        for e in counts
    ]  # fmt: skip
