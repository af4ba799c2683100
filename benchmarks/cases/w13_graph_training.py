"""W13 on graphs: one training step of two layers of GCN, of GAT, and of graph attention, beside PyG's layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import graphs, steps
from benchmarks.case import TRAIN, Case, Entry, Work
from benchmarks.cases import w05b_layers
from benchmarks.cases.w05b_layers import WIDTH, Pair
from benchmarks.graphs import Sample
from benchmarks.tensors import normal, seeded
from mpnn import MessagePassing
from mpnn.neighbours import Graph
from mpnn.weights import SharedKernel

CLASSES = 40
FLOORS = {
    "G1": {"gcn": 2.0, "gat": 1.3, "gt": 1.3},
    "G2": {"gcn": 2.0, "gat": 1.3, "gt": 1.3},
    "G3": {"gcn": 3.0, "gat": 3.0, "gt": 3.0},
}


def gcn() -> Pair:
    from torch_geometric.nn import GCNConv

    layer = MessagePassing(Graph(self_loops="add"), SharedKernel(WIDTH, WIDTH, normalise="symmetric"))
    return layer, GCNConv(WIDTH, WIDTH), {"weight": "lin.weight", "bias": "bias"}


LAYERS: dict[str, Callable[[], Pair]] = {"gcn": gcn, "gat": w05b_layers.gat, "gt": w05b_layers.transformer}


class Two(nn.Module):
    """Layer, ELU, layer, ELU, Linear."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.head = first, second, nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        x = F.elu(self.first(x, index))
        return self.head(F.elu(self.second(x, index)))


def make(kind: str, graph: Sample) -> Case:
    """64 channels throughout, every node with a label."""
    seeded(1)  # a seed where no score of GAT's is so near the kink of its LeakyReLU that rounding decides the side
    index = graph.edge_index
    (first, there_first, names), (second, there_second, _) = LAYERS[kind](), LAYERS[kind]()
    ours, theirs = Two(first, second), Two(there_first, there_second)
    rename = {f"{part}.weight.{a}": f"{part}.{b}" for part in ("first", "second") for a, b in names.items()}
    rename |= {f"head.{a}": f"head.{a}" for a in ("weight", "bias")}
    own = dict(ours.named_parameters())
    there = steps.copied(theirs, {rename[name]: p for name, p in own.items()})
    x = normal(graph.nodes, WIDTH).detach()
    labels = torch.randint(CLASSES, (graph.nodes,), generator=torch.Generator().manual_seed(5))
    shapes = {name: (lambda g, s=there[rename[name]].shape: g.view(s)) for name in own}
    sides = [
        steps.side("mpnn", own, lambda: ours(x, index), labels, shapes),
        steps.side(
            {"gcn": "GCNConv", "gat": "GATConv", "gt": "TransformerConv"}[kind],
            {n: there[rename[n]] for n in own},
            lambda: theirs(x, index),
            labels,
        ),
    ]
    for side in sides:
        side.given = [x, index, labels]
    return Case(sides[0], sides[1:], Work(), Work(), first.plan(x, index).kernel)


def entries() -> list[Entry]:
    made = []
    for name, floors in FLOORS.items():
        nodes, edges = graphs.SIZES[name]
        for kind, floor in floors.items():
            title = f"training step, two layers of {kind.upper()}, {name}"
            large = (name == "G3" and kind != "gcn") or (name == "G2" and kind == "gt")  # seconds a step of PyG's
            scope = "scale" if large else "bench"
            make_it = partial(_sampled, kind, name)
            made.append(
                Entry(
                    f"W13/{kind}-{name}", title, make_it, {"N": nodes, "E": edges}, {(TRAIN, "customary"): floor}, scope
                )
            )
    return made


def _sampled(kind: str, name: str) -> Case:
    return make(kind, graphs.sample(name))
