"""Graphs, and the forms in which PyG's convolutions are called on them: ``mpnn verify`` and the tests cross them."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

SECOND_LOOPS = (4, 15)  # edges of the multigraph
IN, OUT, SOURCE, TARGET, EDGE = 4, 6, 3, 5, 2  # widths: of one node set, of the output, of two node sets, of edges


@dataclasses.dataclass(frozen=True)
class Graph:
    """Edges and what may stand at them, for N nodes, or (sources, targets)."""

    name: str
    sources: int
    targets: int
    index: Tensor

    def leaf(self, *shape: int, positive: bool = False) -> Tensor:
        tensor = torch.rand(*shape, dtype=torch.float64) + 0.5 if positive else torch.randn(*shape, dtype=torch.float64)
        return tensor.requires_grad_()


def graphs() -> list[Graph]:
    """Duplicates, loops (several at one node), isolated nodes; no edges; one node."""
    many = torch.tensor(
        [[0, 1, 1, 2, 2, 2, 3, 3, 4, 5, 5, 1, 0, 6, 2, 1], [1, 0, 0, 2, 2, 3, 1, 5, 4, 3, 0, 1, 6, 0, 5, 1]]
    )  # 7 is isolated, 6 has no loop, 2 and 1 have two
    return [
        Graph("multigraph", 8, 8, many),
        Graph("no edges", 3, 3, torch.zeros(2, 0, dtype=torch.int64)),
        Graph("one node", 1, 1, torch.tensor([[0], [0]])),
    ]


def bipartite() -> list[Graph]:
    """Two node sets."""
    index = torch.tensor([[0, 4, 4, 2, 1, 3, 0], [1, 0, 0, 2, 2, 1, 1]])
    return [Graph("two sets", 5, 4, index), Graph("two sets, no edges", 5, 4, index[:, :0])]


def plain(g: Graph) -> tuple:
    return (g.leaf(g.sources, IN), g.index), {}


def weighted(g: Graph) -> tuple:
    """A loop at most at each node: PyG gives a gradient to the weights of loops that it overwrites."""
    index = g.index[:, [e for e in range(g.index.shape[1]) if e not in SECOND_LOOPS]]
    return (g.leaf(g.sources, IN), index, g.leaf(index.shape[1], positive=True)), {}


def featured(g: Graph) -> tuple:
    return (g.leaf(g.sources, IN), g.index), {"edge_attr": g.leaf(g.index.shape[1], EDGE)}


def column(g: Graph) -> tuple:
    return (g.leaf(g.sources, IN), g.index), {"edge_attr": g.leaf(g.index.shape[1])}


def sets(g: Graph) -> tuple:
    return ((g.leaf(g.sources, SOURCE), g.leaf(g.targets, TARGET)), g.index), {}


def sets_of_one_width(g: Graph) -> tuple:
    return ((g.leaf(g.sources, IN), g.leaf(g.targets, IN)), g.index), {}


def sets_weighted(g: Graph) -> tuple:
    return (*sets(g)[0], g.leaf(g.index.shape[1], positive=True)), {"size": (g.sources, g.targets)}


def sets_featured(g: Graph) -> tuple:
    return sets(g)[0], {"edge_attr": g.leaf(g.index.shape[1], EDGE)}


def no_targets(g: Graph) -> tuple:
    return ((g.leaf(g.sources, SOURCE), None), g.index), {"size": (g.sources, g.targets)}


def typed(g: Graph) -> tuple:
    return (g.leaf(g.sources, IN), g.index, torch.arange(g.index.shape[1]) % 3), {}


def numbered(g: Graph) -> tuple:
    return (torch.arange(g.sources) % IN, g.index, torch.arange(g.index.shape[1]) % 3), {}


def sets_typed(g: Graph) -> tuple:
    return (*sets(g)[0], torch.arange(g.index.shape[1]) % 3), {}


def distances(g: Graph) -> tuple:
    edges = g.index.shape[1]
    return (g.leaf(g.sources, IN), g.index, g.leaf(edges, positive=True), g.leaf(edges, EDGE)), {}


def placed(g: Graph) -> tuple:
    return (g.leaf(g.sources, IN), g.leaf(g.sources, 3), g.index), {}


def sets_placed(g: Graph) -> tuple:
    x = (g.leaf(g.sources, SOURCE), g.leaf(g.targets, TARGET))
    return (x, (g.leaf(g.sources, 3), g.leaf(g.targets, 3)), g.index), {}


def hyper(g: Graph) -> tuple:
    return (g.leaf(g.sources, IN), g.index), {}


def hyper_weighted(g: Graph) -> tuple:
    return (g.leaf(g.sources, IN), g.index, g.leaf(g.sources, positive=True)), {"num_edges": g.sources}


def batched(g: Graph) -> tuple:
    return (g.leaf(g.sources, IN), g.index), {"batch": torch.zeros(g.sources, dtype=torch.int64)}
