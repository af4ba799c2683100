"""Initialisation draws from the reference layer's distribution: its bound, its moments, zeros where it has zeros."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GraphConv, NNConv, RGCNConv, SAGEConv, TransformerConv
from torch_geometric.nn.models.schnet import CFConv

from mpnn import MessagePassing
from mpnn.neighbours import AllTokens, Full, Graph, Grid, Neighbours
from mpnn.weights import (
    AdditiveScore,
    AdditiveScoreV2,
    EdgeLearned,
    EdgeMLP,
    QKSoftmax,
    RadialFilter,
    SharedKernel,
    Static,
    Weight,
)

NUMBERS = 4_000  # of each parameter, over as many draws as it takes
Layers = tuple[Callable[[], Neighbours], Callable[[], Weight], Callable[[], nn.Module], dict[str, str]]


def third(name: str, number: int) -> str:
    """A part of `nn.MultiheadAttention`'s packed matrix."""
    return f"{name}/{number}"


PACKED = {
    f"{part}.{end}": third(f"in_proj_{end}", i)
    for end in ("weight", "bias")
    for i, part in enumerate(("query", "key", "value"))
}
OUTPUT = {"output.weight": "out_proj.weight", "output.bias": "out_proj.bias"}
QKV = {f"{part}.{end}": f"lin_{part}.{end}" for part in ("query", "key", "value") for end in ("weight", "bias")}
WEIGHT = {"weight": "weight", "bias": "bias"}
CASES: dict[str, Layers] = {
    "Linear": (lambda: Full(7, 5), lambda: Static(), lambda: nn.Linear(7, 5), WEIGHT),
    "Linear of one unit": (lambda: Full(1), lambda: Static(7, 5), lambda: nn.Linear(7, 5), WEIGHT),
    "Conv1d": (lambda: Grid(9, 3), lambda: SharedKernel(4, 6), lambda: nn.Conv1d(4, 6, 3), WEIGHT),
    "Conv2d groups": (
        lambda: Grid((5, 5), (3, 2)),
        lambda: SharedKernel(4, 6, groups=2),
        lambda: nn.Conv2d(4, 6, (3, 2), groups=2),
        WEIGHT,
    ),
    "Conv3d": (lambda: Grid((3, 3, 3), 3), lambda: SharedKernel(2, 3), lambda: nn.Conv3d(2, 3, 3), WEIGHT),
    "depthwise": (
        lambda: Grid(9, 5),
        lambda: SharedKernel(6, 6, groups=6),
        lambda: nn.Conv1d(6, 6, 5, groups=6),
        WEIGHT,
    ),
    "MultiheadAttention": (
        lambda: AllTokens(),
        lambda: QKSoftmax(12, 2),
        lambda: nn.MultiheadAttention(12, 2),
        PACKED | OUTPUT,
    ),
    "MultiheadAttention on a fixed set": (
        lambda: Full(4),
        lambda: QKSoftmax(12, 2),
        lambda: nn.MultiheadAttention(12, 2),
        PACKED | OUTPUT,
    ),
    "MultiheadAttention without bias": (
        lambda: AllTokens(),
        lambda: QKSoftmax(12, 2, bias=False),
        lambda: nn.MultiheadAttention(12, 2, bias=False),
        {k: v for k, v in (PACKED | OUTPUT).items() if not k.endswith("bias")},
    ),
    "MultiheadAttention of other widths": (
        lambda: AllTokens(),
        lambda: QKSoftmax(12, 2, source_channels=(5, 7)),
        lambda: nn.MultiheadAttention(12, 2, kdim=5, vdim=7),
        {f"{p}.weight": f"{p[0]}_proj_weight" for p in ("query", "key", "value")}
        | {k: v for k, v in PACKED.items() if "bias" in k}
        | OUTPUT,
    ),
    "TransformerConv": (
        lambda: Graph(),
        lambda: QKSoftmax(6, 2, head_channels=5, out_channels=10, output=False, root=True, edge_channels=3),
        lambda: TransformerConv(6, 5, 2, edge_dim=3),
        QKV | {"edge.weight": "lin_edge.weight", "root.weight": "lin_skip.weight", "root.bias": "lin_skip.bias"},
    ),
    "GATConv": (
        lambda: Graph(self_loops="replace"),
        lambda: EdgeLearned(6, 10, AdditiveScore(10, 2, edge_channels=3), heads=2, normalise="softmax"),
        lambda: GATConv(6, 5, 2, edge_dim=3),
        {"value.weight": "lin.weight", "bias": "bias", "network.source": "att_src", "network.target": "att_dst"}
        | {"network.edge.weight": "lin_edge.weight", "network.edge_vector": "att_edge"},
    ),
    "GATv2Conv": (
        lambda: Graph(self_loops="replace"),
        lambda: EdgeLearned(
            6,
            10,
            AdditiveScoreV2(10, 2, target_channels=6, edge_channels=3),
            heads=2,
            value=nn.Linear(6, 10),
            normalise="softmax",
        ),
        lambda: GATv2Conv(6, 5, 2, edge_dim=3),
        {
            "network.target.weight": "lin_r.weight",
            "network.target.bias": "lin_r.bias",
            "network.vector": "att",
            "bias": "bias",
        }
        | {"network.edge.weight": "lin_edge.weight"},
    ),
    "GCNConv": (
        lambda: Graph(self_loops="add"),
        lambda: SharedKernel(6, 5, normalise="symmetric"),
        lambda: GCNConv(6, 5),
        {"weight": "lin.weight", "bias": "bias"},
    ),
    "GraphConv": (
        lambda: Graph(),
        lambda: SharedKernel(6, 5, root=True),
        lambda: GraphConv(6, 5),
        {"weight": "lin_rel.weight", "bias": "lin_rel.bias", "root.weight": "lin_root.weight"},
    ),
    "SAGEConv": (
        lambda: Graph(),
        lambda: SharedKernel(6, 5, reduce="mean", root=True),
        lambda: SAGEConv(6, 5),
        {"weight": "lin_l.weight", "bias": "lin_l.bias", "root.weight": "lin_r.weight"},
    ),
    "SAGEConv max": (
        lambda: Graph(),
        lambda: SharedKernel(6, 5, fixed=True, reduce="max", output=True, root=True),
        lambda: SAGEConv(6, 5, aggr="max"),
        {"output.weight": "lin_l.weight", "output.bias": "lin_l.bias", "root.weight": "lin_r.weight"},
    ),
    "RGCNConv": (
        lambda: Graph(relations=3),
        lambda: SharedKernel(6, 5, normalise="relation", root=True),
        lambda: RGCNConv(6, 5, 3),
        {"weight": "weight", "bias": "bias", "root.weight": "root"},
    ),
    "RGCNConv bases": (
        lambda: Graph(relations=3),
        lambda: SharedKernel(6, 5, bases=2, normalise="relation", root=True),
        lambda: RGCNConv(6, 5, 3, num_bases=2),
        {"weight": "weight", "coefficients": "comp", "bias": "bias", "root.weight": "root"},
    ),
    "NNConv": (
        lambda: Graph(),
        lambda: EdgeLearned(6, 5, EdgeMLP(3, 30, hidden=(7,)), root=True),
        lambda: NNConv(6, 5, nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 30))),
        {"root.weight": "lin.weight", "bias": "bias"}
        | {f"network.layers.{i}.{end}": f"nn.{i}.{end}" for i, end in itertools.product((0, 2), ("weight", "bias"))},
    ),
    "CFConv": (
        lambda: Graph(),
        lambda: EdgeLearned(6, 5, RadialFilter(5, cutoff=2.0, gaussians=4), groups=5, value=True, output=True),
        lambda: CFConv(6, 5, 5, nn.Sequential(), 2.0),
        {"value.weight": "lin1.weight", "output.weight": "lin2.weight", "output.bias": "lin2.bias"},
    ),
}


def numbers(draw: Callable[[], dict[str, Tensor]], *names: str) -> list[Tensor]:
    """Many draws of each parameter in one row."""
    rows: dict[str, list[Tensor]] = {name: [] for name in names}
    while True:
        drawn = draw()
        for name in names:
            whole, _, part = name.partition("/")
            given = drawn[whole].detach()
            rows[name].append((given.chunk(3)[int(part)] if part else given).flatten().double().clone())
        if all(len(row) * len(row[0]) >= NUMBERS for row in rows.values()):
            return [torch.cat(row)[:NUMBERS] for row in rows.values()]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("again", [False, True])
def test_drawn_as_the_reference(name: str, again: bool) -> None:
    """Made new, and made again by reset_parameters() after something else was there."""
    rule, weight, reference, names = CASES[name]
    layer = MessagePassing(rule(), weight())
    assert set(names) <= set(dict(layer.weight.named_parameters())), "no parameter is forgotten"

    def ours() -> dict[str, Tensor]:
        if not again:
            return dict(MessagePassing(rule(), weight()).weight.named_parameters())
        for parameter in layer.parameters():
            nn.init.constant_(parameter, 7)
        layer.reset_parameters()
        return dict(layer.weight.named_parameters())

    theirs = reference()

    def known() -> dict[str, Tensor]:
        if isinstance(theirs, nn.MultiheadAttention):
            theirs._reset_parameters()
            theirs.out_proj.reset_parameters()
            nn.init.zeros_(theirs.out_proj.bias) if theirs.out_proj.bias is not None else None
        else:
            theirs.reset_parameters()
        return dict(theirs.named_parameters())

    for mine, a, b in zip(names, numbers(ours, *names), numbers(known, *names.values()), strict=True):
        if not b.any():
            assert not a.any(), f"{mine} starts at zero"
            continue
        bound = float(b.abs().max())
        # Both are uniform: of so many numbers the largest is within a few thousandths of the bound.
        assert float(a.abs().max()) == pytest.approx(bound, rel=4e-3), f"the bound of {mine}"
        for power, spread in ((1, 0.58), (2, 0.3), (4, 0.27)):
            x, y = (float(((t / bound) ** power).mean()) for t in (a, b))
            assert abs(x - y) < 5 * spread * (2 / NUMBERS) ** 0.5, f"moment {power} of {mine}"


@pytest.mark.parametrize("name", ["Conv2d groups", "MultiheadAttention", "GATConv", "NNConv"])
def test_a_seed_repeats_the_draw(name: str) -> None:
    rule, weight, _, _ = CASES[name]
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(dict(MessagePassing(rule(), weight()).named_parameters()))
    assert all(torch.equal(p, drawn[1][k]) for k, p in drawn[0].items())
    assert any(not torch.equal(p, drawn[2][k]) for k, p in drawn[0].items())


FANS: dict[str, tuple[Any, Any, int]] = {
    "Toeplitz": (lambda: Full(4), lambda: SharedKernel(3, 2), 7 * 3),
    "locally connected": (lambda: Grid((4, 4), 3), lambda: Static(2, 3), 9 * 2),
    "token mixing": (lambda: AllTokens(max_tokens=9), lambda: Static(4, 4, heads=2, value=False), 9),
    "relative mixing": (lambda: AllTokens(max_tokens=5), lambda: SharedKernel(2, 3), 9 * 2),
}


@pytest.mark.parametrize("name", FANS)
def test_without_a_reference_layer_as_linear_draws(name: str) -> None:
    """U(-1/√fan_in, 1/√fan_in), where fan_in is how many numbers a target sees, or has parameters for."""
    rule, weight, fan_in = FANS[name]
    (drawn,) = numbers(lambda: dict(MessagePassing(rule(), weight()).weight.named_parameters()), "weight")
    largest = float(drawn.abs().max())
    assert largest == pytest.approx(fan_in**-0.5, rel=4e-3)
    assert largest <= fan_in**-0.5 * (1 + 1e-6)
    assert float(drawn.square().mean()) == pytest.approx(1 / fan_in / 3, rel=0.06)
