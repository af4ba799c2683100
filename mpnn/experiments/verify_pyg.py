"""PyG's convolutions with their options: what ``mpnn verify`` and the tests of the bridges run."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch_geometric.nn as pyg
from torch import nn
from torch_geometric.nn.models.schnet import CFConv

from mpnn.experiments.verify_case import LayerCase
from mpnn.experiments.verify_pyg_calls import (
    EDGE,
    IN,
    OUT,
    SOURCE,
    TARGET,
    Graph,
    batched,
    bipartite,
    column,
    distances,
    featured,
    graphs,
    hyper,
    hyper_weighted,
    no_targets,
    numbered,
    placed,
    plain,
    sets,
    sets_featured,
    sets_of_one_width,
    sets_placed,
    sets_typed,
    sets_weighted,
    typed,
    weighted,
)


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


def fresh(cls: Callable[..., nn.Module], *given: Any, **options: Any) -> Callable[[], nn.Module]:
    """What makes the layer, with networks of its own each time."""
    return lambda: cls(*copy.deepcopy(given), **copy.deepcopy(options))


def cases() -> list[Case]:
    """Every bridge with all its options."""
    found: list[Case] = []
    options: dict[str, Any]
    given: dict[str, Any]

    def add(name: str, make: Callable[[], nn.Module], *calls: Callable, **more: Any) -> None:
        for call in calls:
            two = call.__name__.startswith("sets") or call is no_targets
            found.append(Case(f"{name}-{call.__name__}".replace("'", ""), make, call, two, **more))

    for options in (
        {}, {"improved": True}, {"add_self_loops": False}, {"normalize": False}, {"bias": False},
        {"normalize": False, "aggr": "mean"}, {"normalize": False, "aggr": "max"},
    ):  # fmt: skip
        add(f"GCN{options}", fresh(pyg.GCNConv, IN, OUT, **options), plain, weighted)
    for options in ({}, {"aggr": "mean"}, {"aggr": "max"}, {"bias": False}, {"aggr": "max", "bias": False}):
        add(f"Graph{options}", fresh(pyg.GraphConv, IN, OUT, **options), plain, weighted)
        add(f"Graph2{options}", fresh(pyg.GraphConv, (SOURCE, TARGET), OUT, **options), sets_weighted, no_targets)
    for options in (
        {}, {"aggr": "sum"}, {"aggr": "max"}, {"normalize": True}, {"project": True}, {"root_weight": False},
        {"bias": False}, {"aggr": "max", "bias": False, "normalize": True, "project": True},
    ):  # fmt: skip
        add(f"SAGE{options}", fresh(pyg.SAGEConv, IN, OUT, **options), plain)
        add(f"SAGE2{options}", fresh(pyg.SAGEConv, (SOURCE, TARGET), OUT, **options), sets, no_targets)
    for options in ({}, {"diag_lambda": 0.7}, {"bias": False}):
        add(f"Cluster{options}", fresh(pyg.ClusterGCNConv, IN, OUT, **options), plain, within=1e-6)
    for options in (
        {}, {"aggr": "add"}, {"num_bases": 2}, {"num_blocks": 2}, {"root_weight": False}, {"bias": False},
    ):  # fmt: skip
        add(f"RGCN{options}", fresh(pyg.RGCNConv, IN, OUT, 3, **options), typed)
    add("RGCN numbers", fresh(pyg.RGCNConv, IN, OUT, 3, num_bases=2), numbered)
    add("RGCN2", fresh(pyg.RGCNConv, (SOURCE, TARGET), OUT, 3), sets_typed)
    gat: list[dict[str, Any]] = [
        {}, {"heads": 2}, {"heads": 2, "concat": False}, {"add_self_loops": False}, {"bias": False},
        {"negative_slope": 0.1}, {"heads": 2, "residual": True}, {"concat": False, "heads": 2, "residual": True},
    ]  # fmt: skip
    for layer in (pyg.GATConv, pyg.GATv2Conv):
        for options in gat:
            add(f"{layer.__name__}{options}", fresh(layer, IN, OUT, **options), plain)
            given = options | {"edge_dim": EDGE}
            add(f"{layer.__name__}{given}", fresh(layer, IN, OUT, **given), featured)
            given = options | {"add_self_loops": False}
            add(f"{layer.__name__}2{given}", fresh(layer, (SOURCE, TARGET), OUT, **given), sets)
            given = given | {"edge_dim": EDGE}
            add(f"{layer.__name__}2{given}", fresh(layer, (SOURCE, TARGET), OUT, **given), sets_featured)
        add(f"{layer.__name__} fill", fresh(layer, IN, OUT, edge_dim=EDGE, fill_value=0.5), featured)
        add(f"{layer.__name__} column", fresh(layer, IN, OUT, edge_dim=1), column)
        add(f"{layer.__name__} shared sets", fresh(layer, IN, OUT, add_self_loops=False), sets_of_one_width)
    for layer in (pyg.GATConv, pyg.GATv2Conv):
        one = {"heads": 2, "add_self_loops": False}
        add(f"{layer.__name__} one set twice", fresh(layer, (IN, IN), OUT, **one), plain)
    add("GAT no targets", fresh(pyg.GATConv, (SOURCE, TARGET), OUT, add_self_loops=False), no_targets)
    add("GATv2 shared", fresh(pyg.GATv2Conv, IN, OUT, heads=2, share_weights=True), plain)
    for options in ({}, {"heads": 2}, {"heads": 2, "concat": False}, {"add_self_loops": False}, {"bias": False}):
        for kind in ("MX", "SD"):
            given = options | {"attention_type": kind}
            add(f"Super{given}", fresh(pyg.SuperGATConv, IN, OUT, **given), plain)
    for options in ({}, {"heads": 2}, {"heads": 2, "concat": False}, {"bias": False}, {"root_weight": False}):
        add(f"Transformer{options}", fresh(pyg.TransformerConv, IN, OUT, **options), plain)
        given = options | {"edge_dim": EDGE}
        add(f"Transformer{given}", fresh(pyg.TransformerConv, IN, OUT, **given), featured)
        add(f"Transformer2{given}", fresh(pyg.TransformerConv, (SOURCE, TARGET), OUT, **given), sets_featured)
    for options in ({}, {"requires_grad": False}, {"add_self_loops": False}):
        add(f"AGNN{options}", fresh(pyg.AGNNConv, **options), plain)
    for options in ({}, {"aggr": "mean"}, {"aggr": "max"}, {"root_weight": False}, {"bias": False}):
        add(f"NN{options}", fresh(pyg.NNConv, IN, OUT, mlp(EDGE, IN * OUT), **options), featured)
    add("NN2", fresh(pyg.NNConv, (SOURCE, TARGET), OUT, mlp(EDGE, SOURCE * OUT)), sets_featured)
    add("CF", fresh(CFConv, IN, OUT, 5, mlp(EDGE, 5), 4.0), distances)
    for options in ({}, {"aggr": "add"}, {"separate_gaussians": True}, {"separate_gaussians": True, "aggr": "max"}):
        add(f"GMM{options}", fresh(pyg.GMMConv, IN, OUT, EDGE, 3, **options), featured)
        add(f"GMM2{options}", fresh(pyg.GMMConv, (SOURCE, TARGET), OUT, EDGE, 3, **options), sets_featured)
    add("GMM one kernel", fresh(pyg.GMMConv, IN, OUT, EDGE, 1, aggr="max", bias=False), featured)
    for options in (
        {},
        {"heads": 3},
        {"heads": 3, "add_self_loops": False},
        {"bias": False},
        {"aggr": "add", "heads": 2},
    ):
        add(f"FeaSt{options}", fresh(pyg.FeaStConv, IN, OUT, **options), plain, fails_on=("no edges",))
    add(
        "FeaSt sets",
        fresh(pyg.FeaStConv, IN, OUT, heads=2, add_self_loops=False),
        sets_of_one_width,
        fails_on=("two sets, no edges",),
    )
    for options in ({}, {"bias": False}, {"aggr": "mean"}, {"aggr": "max"}):
        add(f"LE{options}", fresh(pyg.LEConv, IN, OUT, **options), plain, weighted)
        add(f"LE2{options}", fresh(pyg.LEConv, (SOURCE, TARGET), OUT, **options), sets)
    for options in ({}, {"add_self_loops": False}, {"pos_nn": mlp(3, OUT), "attn_nn": mlp(OUT, OUT)}):
        add(f"Point{list(options)}", fresh(pyg.PointTransformerConv, IN, OUT, **options), placed)
    add("Point2", fresh(pyg.PointTransformerConv, (SOURCE, TARGET), OUT, add_self_loops=False), sets_placed)
    for options in ({}, {"K": 3}, {"add_self_loops": False, "K": 2}, {"bias": False}):
        add(f"SG{options}", fresh(pyg.SGConv, IN, OUT, **options), plain, weighted)
    for options in ({}, {"K": 1}, {"K": 0}, {"normalize": False}, {"bias": False}):
        add(f"TAG{options}", fresh(pyg.TAGConv, IN, OUT, **options), plain, weighted)
    for k in (1, 2, 4):
        for norm in ("sym", "rw", None):
            fails = ("no edges", "one node") if norm is None and k > 1 else ()  # its largest eigenvalue is 0
            make = fresh(pyg.ChebConv, IN, OUT, k, normalization=norm, bias=k > 1)
            add(f"Cheb{k}{norm}", make, plain, weighted, fails_on=fails)
    for options in ({}, {"eps": 0.5}, {"train_eps": True}, {"aggr": "mean"}, {"aggr": "max"}):
        add(f"GIN{options}", fresh(pyg.GINConv, mlp(IN, OUT), **options), plain, sets_of_one_width)
    add("GIN norm", fresh(pyg.GINConv, mlp(IN, OUT, norm=True), train_eps=True), plain)
    for options in ({}, {"bias": False}):
        add(f"Hypergraph{options}", fresh(pyg.HypergraphConv, IN, OUT, **options), hyper, hyper_weighted)
    for norm in ("batch_norm", "layer_norm", None, "graph_norm"):
        add(f"GPS{norm}", fresh(pyg.GPSConv, IN, pyg.GCNConv(IN, IN), heads=2, norm=norm), plain, batched)
    add("GPS GIN", fresh(pyg.GPSConv, IN, pyg.GINConv(mlp(IN, IN)), heads=1, act="gelu"), plain)
    add("GPS alone", fresh(pyg.GPSConv, IN, None, heads=2, attn_kwargs={"bias": False}), plain)
    add("GPS GAT", fresh(pyg.GPSConv, IN, pyg.GATConv(IN, IN, edge_dim=EDGE), heads=2), featured)
    return found


def layers() -> dict[str, tuple[LayerCase, ...]]:
    """The cases by the name of their layer, each on its first graph."""
    found: dict[str, list[LayerCase]] = {}
    for case in cases():
        graph = (bipartite() if case.two_sets else graphs())[0]
        one = LayerCase(case.name, case.make, partial(case.call, graph), case.within)
        found.setdefault(type(case.make()).__name__, []).append(one)
    return {name: tuple(some) for name, some in found.items()}
