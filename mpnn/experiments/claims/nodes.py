"""Nodes of a graph: the same network with other neighbours and weights, on a made graph and, where it is, on Cora."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from mpnn.data.files import data_folder
from mpnn.experiments.claims.base import Claim, Record, Setting, Size, column, gaps, known, share
from mpnn.experiments.claims.chart import Chart, Rows, Table
from mpnn.experiments.claims.decide import Check, t_interval
from mpnn.experiments.claims.practise import accuracy, drawn, practise
from mpnn.experiments.progress import Advance
from mpnn.models import GNN
from mpnn.neighbours import AllTokens, Graph, Neighbours
from mpnn.training import Settings
from mpnn.weights import AdditiveScore, EdgeLearned, QKSoftmax, SharedKernel, Weight

RATE = Settings(1e-2, optimiser="adam", weight_decay=5e-4)
HEADS, GAIN = 4, 0.02
# Test accuracy in per cent on Cora's public split: Kipf and Welling, 2017, arXiv:1609.02907; Veličković et al., 2018,
# arXiv:1710.10903, whose MLP is also Kipf and Welling's. Their networks have dropout and their own widths and epochs.
PUBLISHED = {"none": 55.1, "Graph × SharedKernel (GCN)": 81.5, "Graph × EdgeLearned (GAT)": 83.0}


@dataclass(frozen=True)
class Nodes:
    """Node features (N, C), classes (N,), edges (2, E), and which nodes are trained and tested on."""

    x: Tensor
    y: Tensor
    edge_index: Tensor
    train: Tensor
    test: Tensor


def made(seed: int) -> Nodes:
    """Four blocks of 150 nodes, drawn by PyG: an edge is ten times as likely inside a block as between two."""
    from torch_geometric.utils import stochastic_blockmodel_graph

    with drawn(seed) as generator:
        classes, each, channels = 4, 150, 16
        y = torch.arange(classes).repeat_interleave(each)
        chances = torch.full((classes, classes), 0.003) + 0.027 * torch.eye(classes)
        edges = stochastic_blockmodel_graph([each] * classes, chances)
        centres = torch.randn(classes, channels, generator=generator)
        x = 0.5 * centres[y] + torch.randn(len(y), channels, generator=generator)
        order = torch.randperm(len(y), generator=generator)
        train = torch.cat([order[y[order] == c][:20] for c in range(classes)])
        rest = torch.ones(len(y), dtype=torch.bool)
        rest[train] = False
    return Nodes(x, y, edges, train, rest.nonzero().squeeze(-1))


def planetoid() -> Path:
    """Where Cora is looked for. It is a download, which an experiment does not start."""
    return data_folder() / "planetoid"


@cache
def cora() -> Nodes:
    from torch_geometric.datasets import Planetoid
    from torch_geometric.transforms import NormalizeFeatures

    graph = Planetoid(str(planetoid()), "Cora", transform=NormalizeFeatures())[0]
    train, test = (mask.nonzero().squeeze(-1) for mask in (graph.train_mask, graph.test_mask))
    return Nodes(graph.x, graph.y, graph.edge_index, train, test)


def gat(before: int, after: int) -> Weight:
    score = AdditiveScore(after, heads=HEADS)
    return EdgeLearned(before, after, score, heads=HEADS, normalise="softmax")


def attention(before: int, after: int) -> Weight:
    return QKSoftmax(before, HEADS, out_channels=after, head_channels=after // HEADS, output=False, root=True)


# Who is heard, with what weight; "none" is a graph without an edge, so that every node hears itself alone.
CELLS: dict[str, tuple[Callable[[Nodes], Neighbours], Callable[[int, int], Weight]]] = {
    "none": (
        lambda data: Graph(data.edge_index[:, :0], len(data.x), self_loops="add"),
        lambda a, b: SharedKernel(a, b, normalise="symmetric"),
    ),
    "Graph × SharedKernel (GCN)": (
        lambda data: Graph(data.edge_index, len(data.x), self_loops="add"),
        lambda a, b: SharedKernel(a, b, normalise="symmetric"),
    ),
    "Graph × EdgeLearned (GAT)": (lambda data: Graph(data.edge_index, len(data.x), self_loops="replace"), gat),
    "Graph × QKSoftmax (TransformerConv)": (lambda data: Graph(data.edge_index, len(data.x)), attention),
    "AllTokens × QKSoftmax": (lambda data: AllTokens(), attention),
}


def parts(size: Size) -> list[Setting]:
    graphs = ["made"] + (["Cora"] if (planetoid() / "Cora").is_dir() and not size.quick else [])
    return [
        {"graph": graph, "cell": cell, "seed": seed} for seed in range(size.seeds) for graph in graphs for cell in CELLS
    ]


def run(setting: Setting, size: Size, advance: Advance) -> Record:
    assert size.steps is not None
    data = made(setting["seed"]) if setting["graph"] == "made" else cora()
    rule, weight = CELLS[setting["cell"]]
    with drawn(setting["seed"]):
        classes = int(data.y.max()) + 1
        network = GNN(data.x.shape[-1], (32, 32), classes, neighbours=rule(data), weight=weight, readout="none")
        model = nn.Sequential(nn.Dropout(0.5), network)
        practise(model, lambda: (data.x, data.y), steps=size.steps, settings=RATE, rows=data.train, advance=advance)
        return {"accuracy": accuracy(Some(model, data.test), data.x, data.y[data.test])}


class Some(nn.Module):
    """Some rows of a model's output."""

    def __init__(self, inner: nn.Module, rows: Tensor) -> None:
        super().__init__()
        self.inner, self.rows = inner, rows

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[self.rows]


def checks(records: Sequence[Record]) -> list[Check]:
    found = []
    for graph in known(records, "graph"):
        for cell in CELLS:
            if cell.startswith("Graph"):
                for other in ("none", "AllTokens × QKSoftmax"):
                    lead = gaps(records, "accuracy", {"graph": graph, "cell": cell}, {"graph": graph, "cell": other})
                    says = f"{graph}: lead of {cell} over {other}"
                    found.append(Check(says, t_interval(lead), "above", GAIN, "+.1%"))
    return found


def table(records: Sequence[Record]) -> Table:
    graphs = known(records, "graph")
    rows = [
        [cell, *(share(column(records, "accuracy", graph=graph, cell=cell)) for graph in graphs)]
        + ([f"{PUBLISHED[cell]} %" if cell in PUBLISHED else "–"] if "Cora" in graphs else [])
        for cell in CELLS
    ]
    return Table(["neighbours × weight", *graphs, *(["Cora, published"] if "Cora" in graphs else [])], rows)


def charts(records: Sequence[Record]) -> list[Chart]:
    return [
        Rows(
            f"{graph} graph" if graph == "made" else graph,
            "test accuracy, %",
            [(cell, [100 * v for v in column(records, "accuracy", graph=graph, cell=cell)]) for cell in CELLS],
        )
        for graph in known(records, "graph")
    ]


CLAIM = Claim(
    "nodes",
    "Where neighbours mostly share a class and few nodes are labelled, every weight on the graph's edges is ahead of "
    "hearing nobody and of hearing everybody.",
    Size(5, 100),
    Size(1, 3, quick=True),
    parts,
    run,
    checks,
    table,
    charts,
)
