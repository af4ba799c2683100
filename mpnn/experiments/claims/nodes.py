"""Nodes of a graph: the same network with other neighbours and weights, on a made graph and on Cora."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache

import torch
from torch import Tensor, nn

from mpnn.data import Nodes, UsageError, cora, download_cora, has_cora
from mpnn.data.cora import HOW
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
# Test accuracy in per cent on Cora's public split: Kipf and Welling, 2017, arXiv:1609.02907 (the MLP too); Veličković
# et al., 2018, arXiv:1710.10903. Their networks have dropout in each layer, their own widths, and more steps.
PUBLISHED = {
    "none": (55.1, "55.1 %"),
    "Graph × SharedKernel (GCN)": (81.5, "81.5 %"),
    "Graph × EdgeLearned (GAT)": (83.0, "83.0 ± 0.7 %"),
}


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


@cache
def citations() -> Nodes:
    return cora()


def prepare(size: Size) -> None:
    """Bring Cora, where it is not here and there is a network; what happens without one is said with the result."""
    if not size.quick and not has_cora():
        with suppress(UsageError):
            download_cora()


def note(records: Sequence[Record]) -> str:
    """What is to be done for the second graph."""
    if "Cora" in known(records, "graph"):
        return ""
    return f"Cora, beside the published figures, is missing: it was not there when these records were made; {HOW}."


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
    graphs = ["made"] + (["Cora"] if has_cora() and not size.quick else [])
    return [
        {"graph": graph, "cell": cell, "seed": seed} for seed in range(size.seeds) for graph in graphs for cell in CELLS
    ]


def run(setting: Setting, size: Size, advance: Advance) -> Record:
    assert size.steps is not None
    data = made(setting["seed"]) if setting["graph"] == "made" else citations()
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
        + ([PUBLISHED[cell][1] if cell in PUBLISHED else "–"] if "Cora" in graphs else [])
        for cell in CELLS
    ]
    return Table(["neighbours × weight", *graphs, *(["Cora, published"] if "Cora" in graphs else [])], rows)


def charts(records: Sequence[Record]) -> list[Chart]:
    made: list[Chart] = []
    for graph in known(records, "graph"):
        rows = [(cell, [100 * v for v in column(records, "accuracy", graph=graph, cell=cell)]) for cell in CELLS]
        marks = {name: value for name, (value, _) in PUBLISHED.items()} if graph == "Cora" else {}
        title = "Cora" if graph == "Cora" else "made graph"
        made.append(Rows(title, "test accuracy, %", rows, limits=(0, 100), marks=marks))
    return made


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
    prepare=prepare,
    note=note,
)
