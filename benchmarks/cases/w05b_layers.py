"""W5b: whole attention layers on graphs. ``QKSoftmax`` beside ``TransformerConv``, additive scores beside ``GATConv``
and ``GATv2Conv``, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn

from benchmarks import graphs
from benchmarks.case import TRAIN, Case, Entry, Side, Work
from benchmarks.cases import w05a_attend
from benchmarks.graphs import Sample
from benchmarks.tensors import normal, seeded, share
from mpnn import MessagePassing
from mpnn.neighbours import Graph
from mpnn.weights import AdditiveScore, AdditiveScoreV2, EdgeLearned, QKSoftmax

WIDTH, HEADS = 64, 4
CUSTOMARY = {"G1": 1.0, "G2": 1.5, "G3": 4.0, "G4": 1.0, "G5": 4.0}
Pair = tuple[MessagePassing, nn.Module, dict[str, str]]  # ours, PyG's, our parameters' names → PyG's


def transformer() -> Pair:
    from torch_geometric.nn import TransformerConv

    layer = MessagePassing(Graph(), QKSoftmax(WIDTH, HEADS, output=False, root=True))
    names = {f"{ours}.{part}": f"{pyg}.{part}" for ours, pyg in _QKV.items() for part in ("weight", "bias")}
    return layer, TransformerConv(WIDTH, WIDTH // HEADS, HEADS), names


_QKV = {"query": "lin_query", "key": "lin_key", "value": "lin_value", "root": "lin_skip"}


def gat() -> Pair:
    from torch_geometric.nn import GATConv

    rule = EdgeLearned(WIDTH, WIDTH, AdditiveScore(WIDTH, HEADS), heads=HEADS, normalise="softmax")
    names = {"value.weight": "lin.weight", "network.source": "att_src", "network.target": "att_dst", "bias": "bias"}
    return MessagePassing(Graph(self_loops="replace"), rule), GATConv(WIDTH, WIDTH // HEADS, HEADS), names


def gat_v2() -> Pair:
    from torch_geometric.nn import GATv2Conv

    network = AdditiveScoreV2(WIDTH, HEADS, target_channels=WIDTH)
    rule = EdgeLearned(WIDTH, WIDTH, network, heads=HEADS, normalise="softmax", value=nn.Linear(WIDTH, WIDTH))
    names = {"value.weight": "lin_l.weight", "value.bias": "lin_l.bias", "network.target.weight": "lin_r.weight",
             "network.target.bias": "lin_r.bias", "network.vector": "att", "bias": "bias"}  # fmt: skip
    return MessagePassing(Graph(self_loops="replace"), rule), GATv2Conv(WIDTH, WIDTH // HEADS, HEADS), names


LAYERS: dict[str, Callable[[], Pair]] = {"TransformerConv": transformer, "GATConv": gat, "GATv2Conv": gat_v2}


@cache
def compiled(name: str) -> Any:
    """PyG's layer through torch.compile, a function of its parameters, once for all sizes."""
    _, conv, _ = LAYERS[name]()
    return conv, torch.compile(lambda p, x, index: torch.func.functional_call(conv, p, (x, index)), dynamic=True)


def make(name: str, graph: Sample, *, compile_too: bool = False) -> Case:
    """One layer of 4 heads, 64 to 64 channels, every parameter shared."""
    seeded()
    index, nodes = graph.edge_index, graph.nodes
    layer, conv, names = LAYERS[name]()
    own = dict(layer.weight.named_parameters())
    if set(own) != set(names):
        raise ValueError(f"expected the parameters {sorted(names)}, got {sorted(own)}")
    there = dict(conv.named_parameters())
    if set(there) != set(names.values()):
        raise ValueError(f"expected {name} to have the parameters {sorted(names.values())}, got {sorted(there)}")
    share(conv, **{pyg.replace(".", "__"): own[ours].view(there[pyg].shape) for ours, pyg in names.items()})
    there = dict(conv.named_parameters())
    x = normal(nodes, WIDTH)
    shapes = {ours: (lambda g, s=there[pyg].shape: g.view(s)) for ours, pyg in names.items()}
    theirs = {"x": x} | {ours: there[pyg] for ours, pyg in names.items()}
    sides = [Side(name, lambda: conv(x, index), theirs, given=[index])]
    if compile_too:
        _, call = compiled(name)
        sides.append(Side(f"{name} compiled", lambda: call(there, x, index), theirs, given=[index], compiled=True))
    ours_side = Side("mpnn", lambda: layer(x, index), {"x": x, **own}, views=shapes, given=[index])
    edges, train = w05a_attend.work(nodes, graph.edges + nodes, WIDTH)
    linears = 4 if name == "TransformerConv" else 1 if name == "GATConv" else 2
    dense = Work(2.0 * linears * nodes * WIDTH**2, 8.0 * linears * nodes * WIDTH)
    return Case(ours_side, sides, edges + dense, train + dense.times(3), layer.plan(x, index).kernel)


def entries() -> list[Entry]:
    made = []
    for name in LAYERS:
        for graph in ("G1", "G2", "G3", "G4", "G5"):
            nodes, edges = graphs.SIZES[graph]
            floors = {(TRAIN, "customary"): CUSTOMARY[graph]}
            title = f"{name}, {graph} of {nodes:,} nodes and {edges:,} edges"
            size = {"N": nodes, "E": edges, "H": HEADS, "D": WIDTH // HEADS}
            large = graph == "G3" or (graph == "G2" and name == "GATv2Conv")  # where PyG's layer takes seconds a call
            scope = "scale" if large else "bench"
            made.append(
                Entry(
                    f"W5b/{name}-{graph}", title, lambda n=name, g=graph: make(n, graphs.sample(g)), size, floors, scope
                )
            )
    return made
