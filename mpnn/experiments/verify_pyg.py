"""PyG's convolutions with their options, and graphs to call them on: what ``mpnn verify`` and the tests cross."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.nn.models.schnet import CFConv

from mpnn.experiments.verify_case import LayerCase

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


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer with options, and how it is called on a graph: (args, keywords)."""

    name: str
    make: Callable[[], nn.Module]
    call: Callable[[Graph], tuple[tuple, dict[str, Any]]]
    two_sets: bool = False
    within: float = 1e-10  # ClusterGCNConv counts degrees in float32, whatever the dtype of x
    fails_on: tuple[str, ...] = ()  # graphs on which the original itself raises, or gives no number


def mlp(width: int, out: int, *, norm: bool = False) -> nn.Sequential:
    """Two layers, with a batch norm between them or not."""
    between = [nn.BatchNorm1d(7)] if norm else []
    return nn.Sequential(nn.Linear(width, 7), *between, nn.Tanh(), nn.Linear(7, out))


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


def cases() -> list[Case]:
    """Every bridge with all its options."""
    found: list[Case] = []

    def add(name: str, make: Callable[[], nn.Module], *calls: Callable, **more: Any) -> None:
        for call in calls:
            two = call.__name__.startswith("sets") or call is no_targets
            found.append(Case(f"{name}-{call.__name__}".replace("'", ""), make, call, two, **more))

    for options in (
        {}, {"improved": True}, {"add_self_loops": False}, {"normalize": False}, {"bias": False}, {"cached": True},
        {"normalize": False, "aggr": "mean"}, {"normalize": False, "aggr": "max"},
    ):  # fmt: skip
        add(f"GCN{options}", lambda o=options: pyg.GCNConv(IN, OUT, **o), plain, weighted)
    for options in ({}, {"aggr": "mean"}, {"aggr": "max"}, {"bias": False}, {"aggr": "max", "bias": False}):
        add(f"Graph{options}", lambda o=options: pyg.GraphConv(IN, OUT, **o), plain, weighted)
        add(f"Graph2{options}", lambda o=options: pyg.GraphConv((SOURCE, TARGET), OUT, **o), sets_weighted, no_targets)
    for options in (
        {}, {"aggr": "sum"}, {"aggr": "max"}, {"normalize": True}, {"project": True}, {"root_weight": False},
        {"bias": False}, {"aggr": "max", "bias": False, "normalize": True, "project": True},
    ):  # fmt: skip
        add(f"SAGE{options}", lambda o=options: pyg.SAGEConv(IN, OUT, **o), plain)
        add(f"SAGE2{options}", lambda o=options: pyg.SAGEConv((SOURCE, TARGET), OUT, **o), sets, no_targets)
    for options in ({}, {"diag_lambda": 0.7}, {"bias": False}):
        add(f"Cluster{options}", lambda o=options: pyg.ClusterGCNConv(IN, OUT, **o), plain, within=1e-6)
    for options in (
        {}, {"aggr": "add"}, {"num_bases": 2}, {"num_blocks": 2}, {"root_weight": False}, {"bias": False},
    ):  # fmt: skip
        add(f"RGCN{options}", lambda o=options: pyg.RGCNConv(IN, OUT, 3, **o), typed)
    add("RGCN numbers", lambda: pyg.RGCNConv(IN, OUT, 3, num_bases=2), numbered)
    add("RGCN2", lambda: pyg.RGCNConv((SOURCE, TARGET), OUT, 3), sets_typed)
    gat: list[dict[str, Any]] = [
        {}, {"heads": 2}, {"heads": 2, "concat": False}, {"add_self_loops": False}, {"bias": False},
        {"negative_slope": 0.1}, {"heads": 2, "residual": True}, {"concat": False, "heads": 2, "residual": True},
    ]  # fmt: skip
    for layer in (pyg.GATConv, pyg.GATv2Conv):
        for options in gat:
            add(f"{layer.__name__}{options}", lambda c=layer, o=options: c(IN, OUT, **o), plain)
            given = options | {"edge_dim": EDGE}
            add(f"{layer.__name__}{given}", lambda c=layer, o=given: c(IN, OUT, **o), featured)
            given = options | {"add_self_loops": False}
            add(f"{layer.__name__}2{given}", lambda c=layer, o=given: c((SOURCE, TARGET), OUT, **o), sets)
            given = given | {"edge_dim": EDGE}
            add(f"{layer.__name__}2{given}", lambda c=layer, o=given: c((SOURCE, TARGET), OUT, **o), sets_featured)
        add(f"{layer.__name__} fill", lambda c=layer: c(IN, OUT, edge_dim=EDGE, fill_value=0.5), featured)
        add(f"{layer.__name__} column", lambda c=layer: c(IN, OUT, edge_dim=1), column)
        add(f"{layer.__name__} shared sets", lambda c=layer: c(IN, OUT, add_self_loops=False), sets_of_one_width)
    for layer in (pyg.GATConv, pyg.GATv2Conv):
        one = {"heads": 2, "add_self_loops": False}
        add(f"{layer.__name__} one set twice", lambda c=layer, o=one: c((IN, IN), OUT, **o), plain)
    add("GAT no targets", lambda: pyg.GATConv((SOURCE, TARGET), OUT, add_self_loops=False), no_targets)
    add("GATv2 shared", lambda: pyg.GATv2Conv(IN, OUT, heads=2, share_weights=True), plain)
    for options in ({}, {"heads": 2}, {"heads": 2, "concat": False}, {"add_self_loops": False}, {"bias": False}):
        for kind in ("MX", "SD"):
            given = options | {"attention_type": kind}
            add(f"Super{given}", lambda o=given: pyg.SuperGATConv(IN, OUT, **o), plain)
    for options in ({}, {"heads": 2}, {"heads": 2, "concat": False}, {"bias": False}, {"root_weight": False}):
        add(f"Transformer{options}", lambda o=options: pyg.TransformerConv(IN, OUT, **o), plain)
        given = options | {"edge_dim": EDGE}
        add(f"Transformer{given}", lambda o=given: pyg.TransformerConv(IN, OUT, **o), featured)
        add(f"Transformer2{given}", lambda o=given: pyg.TransformerConv((SOURCE, TARGET), OUT, **o), sets_featured)
    for options in ({}, {"requires_grad": False}, {"add_self_loops": False}):
        add(f"AGNN{options}", lambda o=options: pyg.AGNNConv(**o), plain)
    for options in ({}, {"aggr": "mean"}, {"aggr": "max"}, {"root_weight": False}, {"bias": False}):
        add(f"NN{options}", lambda o=options: pyg.NNConv(IN, OUT, mlp(EDGE, IN * OUT), **o), featured)
    add("NN2", lambda: pyg.NNConv((SOURCE, TARGET), OUT, mlp(EDGE, SOURCE * OUT)), sets_featured)
    add("CF", lambda: CFConv(IN, OUT, 5, mlp(EDGE, 5), 4.0), distances)
    for options in ({}, {"aggr": "add"}, {"separate_gaussians": True}, {"separate_gaussians": True, "aggr": "max"}):
        add(f"GMM{options}", lambda o=options: pyg.GMMConv(IN, OUT, EDGE, 3, **o), featured)
        add(f"GMM2{options}", lambda o=options: pyg.GMMConv((SOURCE, TARGET), OUT, EDGE, 3, **o), sets_featured)
    add("GMM one kernel", lambda: pyg.GMMConv(IN, OUT, EDGE, 1, aggr="max", bias=False), featured)
    for options in (
        {},
        {"heads": 3},
        {"heads": 3, "add_self_loops": False},
        {"bias": False},
        {"aggr": "add", "heads": 2},
    ):
        add(f"FeaSt{options}", lambda o=options: pyg.FeaStConv(IN, OUT, **o), plain, fails_on=("no edges",))
    add(
        "FeaSt sets",
        lambda: pyg.FeaStConv(IN, OUT, heads=2, add_self_loops=False),
        sets_of_one_width,
        fails_on=("two sets, no edges",),
    )
    for options in ({}, {"bias": False}, {"aggr": "mean"}, {"aggr": "max"}):
        add(f"LE{options}", lambda o=options: pyg.LEConv(IN, OUT, **o), plain, weighted)
        add(f"LE2{options}", lambda o=options: pyg.LEConv((SOURCE, TARGET), OUT, **o), sets)
    for options in ({}, {"add_self_loops": False}, {"pos_nn": mlp(3, OUT), "attn_nn": mlp(OUT, OUT)}):
        add(f"Point{list(options)}", lambda o=options: pyg.PointTransformerConv(IN, OUT, **o), placed)
    add("Point2", lambda: pyg.PointTransformerConv((SOURCE, TARGET), OUT, add_self_loops=False), sets_placed)
    for options in ({}, {"K": 3}, {"add_self_loops": False, "K": 2}, {"bias": False}, {"cached": True}):
        add(f"SG{options}", lambda o=options: pyg.SGConv(IN, OUT, **o), plain, weighted)
    for options in ({}, {"K": 1}, {"K": 0}, {"normalize": False}, {"bias": False}):
        add(f"TAG{options}", lambda o=options: pyg.TAGConv(IN, OUT, **o), plain, weighted)
    for k in (1, 2, 4):
        for norm in ("sym", "rw", None):
            fails = ("no edges", "one node") if norm is None and k > 1 else ()  # its largest eigenvalue is 0
            make = lambda k=k, n=norm: pyg.ChebConv(IN, OUT, k, normalization=n, bias=k > 1)  # noqa: E731
            add(f"Cheb{k}{norm}", make, plain, weighted, fails_on=fails)
    for options in ({}, {"eps": 0.5}, {"train_eps": True}, {"aggr": "mean"}, {"aggr": "max"}):
        add(f"GIN{options}", lambda o=options: pyg.GINConv(mlp(IN, OUT), **o), plain, sets_of_one_width)
    add("GIN norm", lambda: pyg.GINConv(mlp(IN, OUT, norm=True), train_eps=True), plain)
    for options in ({}, {"bias": False}):
        add(f"Hypergraph{options}", lambda o=options: pyg.HypergraphConv(IN, OUT, **o), hyper, hyper_weighted)
    for norm in ("batch_norm", "layer_norm", None, "graph_norm"):
        add(f"GPS{norm}", lambda n=norm: pyg.GPSConv(IN, pyg.GCNConv(IN, IN), heads=2, norm=n), plain, batched)
    add("GPS GIN", lambda: pyg.GPSConv(IN, pyg.GINConv(mlp(IN, IN)), heads=1, act="gelu"), plain)
    add("GPS alone", lambda: pyg.GPSConv(IN, None, heads=2, attn_kwargs={"bias": False}), plain)
    add("GPS GAT", lambda: pyg.GPSConv(IN, pyg.GATConv(IN, IN, edge_dim=EDGE), heads=2), featured)
    return found


def layers() -> dict[str, tuple[LayerCase, ...]]:
    """The cases by the name of their layer, each on its first graph."""
    found: dict[str, list[LayerCase]] = {}
    for case in cases():
        graph = (bipartite() if case.two_sets else graphs())[0]
        one = LayerCase(case.name, case.make, lambda c=case, g=graph: c.call(g), case.within)  # type: ignore[misc]
        found.setdefault(type(case.make()).__name__, []).append(one)
    return {name: tuple(some) for name, some in found.items()}
