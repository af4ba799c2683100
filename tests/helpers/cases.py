"""The case lists: every neighbourhood and every weight, at tiny sizes, with what a call of them brings.

A new neighbourhood is a line in PLACES, a new weight a line in RULES; kernels are found by themselves. The tests of the
core run over products of the two, less what cannot meet (`helpers.calls.meets`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from helpers.own_rules import Listed, OwnMatrix, OwnScore, Previous, bilinear, distance
from mpnn.neighbours import (
    KNN,
    AllTokens,
    Blocks,
    Full,
    Global,
    Graph,
    Grid,
    Neighbours,
    Radius,
    Random,
    Window,
)
from mpnn.positions import ALiBi, RelativeBias, Rotary
from mpnn.weights import (
    AdditiveScore,
    AdditiveScoreV2,
    EdgeLearned,
    EdgeMLP,
    OffsetMLP,
    QKSoftmax,
    RadialFilter,
    SharedKernel,
    Static,
    Weight,
)


@dataclasses.dataclass(frozen=True)
class Place:
    """A neighbourhood, the numbers of tokens, and the arguments that it wants at the call.

    ``targets``: the size of a second set of tokens; with ``own`` the layer has its targets, and the second set is
    passed to rules that read the target only. ``main``: crossed with every rule, else with the main rules only.
    """

    make: Callable[[], Neighbours]
    sources: int
    targets: int | None = None
    own: bool = False
    main: bool = False
    call: dict[str, Any] = dataclasses.field(default_factory=dict)
    batch: tuple[Tensor, Tensor] | None = None  # of sources and targets

    @property
    def alone(self) -> bool:
        """Whether a call has no leading dimensions: with batch, or where the edges are others for each sample."""
        return self.batch is not None or self.make().reads_tokens

    @property
    def coordinates(self) -> tuple[Tensor | None, Tensor | None]:
        """The coordinates of sources and targets that the call brings."""
        source = self.call.get("source coordinates")
        return source, source if self.targets is None else self.call.get("target coordinates")


@dataclasses.dataclass(frozen=True)
class Rule:
    """A weight, made for a neighbourhood; what it needs of one; the width of its edge attributes."""

    make: Callable[[Neighbours], Weight]
    needs: str = ""  # of: "pairs", "relations", "one set", "offset", "target"
    attr: int = 0
    coordinates: bool = False
    main: bool = False
    channels: int | tuple[int, int] = 4  # of sources and targets
    axes: int = 0  # of the positions that it needs, if they are no plain numbers


def edges(*pairs: tuple[int, int]) -> Tensor:
    """An edge index from (source, target) pairs."""
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t().contiguous()


# Duplicates, loops, a node with a loop alone (4), one without an edge into it (3), out of order.
FEW = edges((2, 1), (0, 1), (0, 1), (1, 0), (1, 1), (4, 4), (3, 0), (1, 2), (4, 2), (0, 2))
TYPES = torch.tensor([0, 2, 1, 0, 2, 0, 1, 1, 0, 2])
BETWEEN = edges((3, 0), (1, 2), (1, 2), (0, 0), (2, 2), (3, 2))  # of 4 sources and 3 targets; target 1 has none
MANY = edges(*[(e % 2, e // 3 % 2) for e in range(9)])  # more than there are pairs
RAGGED = torch.tensor([0, 0, 1, 1, 1])
# Points with equal distances, which any dtype holds exactly.
POINTS = {"source coordinates": torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.5, 0.0], [2.0, 2.0]])}
OTHERS = POINTS | {"target coordinates": torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 0.5]])}

PLACES: dict[str, Place] = {
    "Full": Place(lambda: Full(4), 4, main=True),
    "Full of two numbers": Place(lambda: Full(4, 3), 4, 3, own=True, main=True),
    "Grid 1-D": Place(lambda: Grid(5, 3), 5, main=True),
    "Grid even": Place(lambda: Grid(5, 2), 5),
    "Grid dilated": Place(lambda: Grid(6, 4, dilation=2), 6),
    "Grid strided": Place(lambda: Grid(7, 3, stride=2, padding=1), 7, main=True),
    "Grid valid": Place(lambda: Grid(6, 3, padding="valid"), 6),
    "Grid wide padding": Place(lambda: Grid(4, 2, stride=3, padding=3), 4),
    "Grid circular": Place(lambda: Grid(5, 3, border="circular"), 5),
    "Grid reflect": Place(lambda: Grid(5, 4, border="reflect"), 5),
    "Grid replicate": Place(lambda: Grid(4, 3, dilation=2, border="replicate"), 4),
    "Grid clamp": Place(lambda: Grid(5, 3, border="clamp"), 5),
    "Grid clamp dilated": Place(lambda: Grid(7, 3, dilation=2, border="clamp"), 7),
    "Grid pointwise": Place(lambda: Grid(4, 1), 4),
    "Grid 2-D": Place(lambda: Grid((2, 3), 3), 6, main=True),
    "Grid 2-D at call": Place(lambda: Grid(axes=2, kernel_size=(2, 3), dilation=(1, 2)), 12, call={"grid": (3, 4)}),
    "Grid 2-D circular": Place(lambda: Grid((4, 3), 3, stride=(2, 1), padding=(0, 1), border="circular"), 12),
    "Grid 2-D clamp": Place(lambda: Grid((3, 4), 3, border="clamp"), 12),
    "Grid 3-D": Place(lambda: Grid((2, 3, 2), (1, 3, 2), border="reflect", padding=(0, 1, 1)), 12),
    "Graph at call": Place(lambda: Graph(), 5, main=True, call={"edge_index": FEW}),
    "Graph built": Place(lambda: Graph(FEW, 5), 5, main=True),
    "Graph loops added": Place(lambda: Graph(self_loops="add"), 5, call={"edge_index": FEW}),
    "Graph light loops": Place(lambda: Graph(FEW, 5, self_loops="add", loop_weight=0.5), 5),
    "Graph loops replaced": Place(lambda: Graph(FEW, 5, self_loops="replace", loop_fill=0.5), 5, main=True),
    "Graph relations": Place(lambda: Graph(relations=3), 5, main=True, call={"edge_index": FEW, "edge_type": TYPES}),
    "Graph of two sets": Place(lambda: Graph(), 4, 3, main=True, call={"edge_index": BETWEEN}),
    "Graph built of two sets": Place(lambda: Graph(BETWEEN, (4, 3)), 4, 3),
    "Graph batch": Place(
        lambda: Graph(), 5, call={"edge_index": edges((0, 1), (3, 2), (4, 2))}, batch=(RAGGED, RAGGED)
    ),
    "Graph of many edges": Place(lambda: Graph(), 2, main=True, call={"edge_index": MANY}),
    "Graph without edges": Place(lambda: Graph(torch.empty(2, 0, dtype=torch.int64), 3), 3),
    "AllTokens": Place(lambda: AllTokens(), 4, main=True),
    "AllTokens causal": Place(lambda: AllTokens(causal=True), 4, main=True),
    "AllTokens max_tokens": Place(lambda: AllTokens(max_tokens=5), 4, main=True),
    "AllTokens causal max_tokens": Place(lambda: AllTokens(causal=True, max_tokens=4), 4),
    "AllTokens ragged": Place(lambda: AllTokens(max_tokens=3), 5, main=True, batch=(RAGGED, RAGGED)),
    "AllTokens causal ragged": Place(
        lambda: AllTokens(causal=True, max_tokens=4), 5, 4, batch=(RAGGED, torch.tensor([0, 1, 1, 2]))
    ),
    "AllTokens of two lengths": Place(lambda: AllTokens(max_tokens=5), 5, 3),
    "AllTokens causal fewer targets": Place(lambda: AllTokens(causal=True), 5, 3),
    "AllTokens causal more targets": Place(lambda: AllTokens(causal=True, max_tokens=5), 3, 5),
    "Window": Place(lambda: Window(1), 5, main=True),
    "Window causal": Place(lambda: Window(2, 0), 5),
    "Window dilated": Place(lambda: Window(1, 2, dilation=2), 6),
    "Window of two lengths": Place(lambda: Window(1), 5, 3),
    "Window pointwise": Place(lambda: Window(0), 5),
    "Window ragged": Place(lambda: Window(2, 1), 5, batch=(RAGGED, RAGGED)),
    "Blocks": Place(lambda: Blocks(2), 5, main=True),
    "Blocks shifted with halo": Place(lambda: Blocks(2, shift=1, halo=1), 5),
    "Blocks of two lengths": Place(lambda: Blocks(2), 5, 3),
    "Blocks ragged": Place(lambda: Blocks(2, shift=-1), 5, batch=(RAGGED, RAGGED)),
    "Blocks 2-D": Place(lambda: Blocks(2, grid=(3, 4), shift=1), 12),
    "Blocks 2-D at call": Place(lambda: Blocks((2, 3), halo=(1, 0)), 12, call={"grid": (3, 4)}),
    "Global": Place(lambda: Global(1), 4),
    "Global of two lengths": Place(lambda: Global(2), 5, 3),
    "Global ragged": Place(lambda: Global(1), 5, batch=(RAGGED, RAGGED)),
    "Window | Global": Place(lambda: Window(1) | Global(1), 5, main=True),
    "Graph | AllTokens": Place(lambda: Graph(FEW, 5, type=TYPES, relations=3) | AllTokens(), 5),
    "Graph | Full": Place(lambda: Graph(FEW, 5) | Full(5), 5),
    "Grid | Blocks": Place(lambda: Grid((3, 4), 3, border="circular") | Blocks(2, grid=(3, 4)), 12),
    "AllTokens - Window": Place(lambda: AllTokens(max_tokens=6) - Window(1), 5, main=True),
    "Full - Graph": Place(lambda: Full(5) - Graph(FEW, 5), 5),
    "Blocks & causal": Place(lambda: Blocks(3) & AllTokens(causal=True), 5, 4),
    "Graph & Window": Place(lambda: Graph(FEW, 5, self_loops="add") & Window(1), 5),
    "nested": Place(lambda: (Window(1, 0) | Global(1) | Graph(BETWEEN, 5)) & AllTokens(causal=True), 5),
    "ragged union": Place(lambda: Window(1) | Global(1), 5, batch=(RAGGED, RAGGED)),
    "KNN | Window": Place(lambda: KNN(1) | Window(1, 0), 5, call=POINTS),
    "Random | Window": Place(lambda: Random(1, seed=2) | Window(1, 0), 5),
    "KNN": Place(lambda: KNN(2), 5, call=POINTS),
    "KNN of two sets": Place(lambda: KNN(3), 5, 3, call=OTHERS),
    "KNN ragged": Place(lambda: KNN(2), 5, call=POINTS, batch=(RAGGED, RAGGED)),
    "KNN of all": Place(lambda: KNN(9), 5, call=POINTS),
    "Radius": Place(lambda: Radius(2.0), 5, call=POINTS),
    "Radius of two sets": Place(lambda: Radius(1.5), 5, 3, call=OTHERS),
    "Radius ragged": Place(lambda: Radius(2.0), 5, call=POINTS, batch=(RAGGED, RAGGED)),
    "Random": Place(lambda: Random(2, seed=3), 5),
    "Random of two lengths": Place(lambda: Random(3, seed=1), 5, 3),
    "Random ragged": Place(lambda: Random(2, seed=0), 5, 4, batch=(RAGGED, torch.tensor([0, 1, 1, 2]))),
    "Random of all": Place(lambda: Random(6, seed=0), 4),
    "own": Place(lambda: Previous(), 4, main=True),
    "own listed": Place(lambda: Listed(), 4),
}

ATTENTION = {"needs": "target"}
RULES: dict[str, Rule] = {
    "Static": Rule(lambda n: Static(4, 6), "pairs", main=True),
    "Static groups": Rule(lambda n: Static(4, 6, groups=2, root=True), "pairs target"),
    "Static value": Rule(lambda n: Static(4, 6, value=True), "pairs"),
    "Static output": Rule(lambda n: Static(4, 6, output=True, bias=False), "pairs"),
    "Static heads": Rule(lambda n: Static(4, 6, heads=2), "pairs", main=True),
    "Static bare heads": Rule(lambda n: Static(4, 4, heads=2, value=False, output=True), "pairs"),
    "Static softmax": Rule(lambda n: Static(4, 6, heads=3, normalise="softmax"), "pairs"),
    "Static relation": Rule(lambda n: Static(4, 4, normalise="relation"), "pairs"),
    "SharedKernel": Rule(lambda n: SharedKernel(4, 6), "relations", main=True),
    "SharedKernel narrow": Rule(lambda n: SharedKernel(4, 2, value=True, bias=False), "relations"),
    "SharedKernel groups": Rule(lambda n: SharedKernel(4, 6, groups=2), "relations"),
    "SharedKernel depthwise": Rule(lambda n: SharedKernel(4, 4, groups=4, root=True), "relations target"),
    "SharedKernel bases": Rule(lambda n: SharedKernel(4, 6, bases=2, groups=2), "relations"),
    "SharedKernel heads": Rule(lambda n: SharedKernel(4, 6, heads=2), "relations", main=True),
    "SharedKernel softmax": Rule(lambda n: SharedKernel(4, 6, heads=2, bases=2, normalise="softmax"), "relations"),
    "SharedKernel mean": Rule(lambda n: SharedKernel(4, 6, reduce="mean", root=True), "relations target"),
    "SharedKernel max": Rule(lambda n: SharedKernel(4, 6, reduce="max"), "relations"),
    "SharedKernel relation": Rule(lambda n: SharedKernel(4, 6, normalise="relation"), "relations"),
    "SharedKernel symmetric": Rule(lambda n: SharedKernel(4, 6, normalise="symmetric"), "relations one set", main=True),
    "fixed sum": Rule(lambda n: SharedKernel(4, 4, fixed=True), main=True),
    "fixed mean": Rule(lambda n: SharedKernel(4, 6, fixed=True, reduce="mean", output=True)),
    "fixed max": Rule(lambda n: SharedKernel(4, 6, fixed=True, reduce="max", output=True), main=True),
    "fixed symmetric": Rule(lambda n: SharedKernel(4, 6, fixed=True, normalise="symmetric", value=True), "one set"),
    "GAT": Rule(lambda n: EdgeLearned(4, 6, AdditiveScore(6, 2), heads=2, normalise="softmax"), "target", main=True),
    "GAT edges": Rule(
        lambda n: EdgeLearned(4, 6, AdditiveScore(6, 2, edge_channels=3), heads=2, normalise="softmax", bias=False),
        "target",
        attr=3,
    ),
    "GATv2 without edges": Rule(
        lambda n: EdgeLearned(4, 6, AdditiveScoreV2(6, 2, target_channels=4), heads=2, normalise="softmax"), "target"
    ),
    "GATv2": Rule(
        lambda n: EdgeLearned(4, 6, AdditiveScoreV2(6, 3, edge_channels=2), heads=3, normalise="softmax", root=True),
        "target",
        attr=2,
    ),
    "Bahdanau": Rule(
        lambda n: EdgeLearned(
            4,
            4,
            AdditiveScoreV2(6, 2, source_channels=4, target_channels=4, activation=nn.Tanh()),
            heads=2,
            normalise="softmax",
            value=False,
        ),
        "target",
    ),
    "NNConv": Rule(lambda n: EdgeLearned(4, 6, EdgeMLP(2, 24, hidden=(3,), activation=nn.Tanh)), attr=2, main=True),
    "NNConv module": Rule(
        lambda n: EdgeLearned(4, 6, nn.Sequential(nn.Linear(2, 12), nn.Tanh()), groups=2, reduce="mean"), attr=2
    ),
    "EdgeMLP max": Rule(lambda n: EdgeLearned(4, 6, EdgeMLP(2, 2, activation=nn.Tanh), heads=2, reduce="max"), attr=2),
    "CFConv": Rule(
        lambda n: EdgeLearned(4, 4, RadialFilter(4, cutoff=2.0, gaussians=4), groups=4, value=True, output=True),
        coordinates=True,
    ),
    "continuous kernel": Rule(
        lambda n: EdgeLearned(4, 6, OffsetMLP(n.axes, 24, hidden=(3,), activation=nn.Tanh)), "offset", main=True
    ),
    "plain function": Rule(lambda n: EdgeLearned(4, 4, bilinear, heads=2, normalise="relation"), "target"),
    "plain function symmetric": Rule(
        lambda n: EdgeLearned(4, 4, distance, heads=1, normalise="symmetric"), "target one set"
    ),
    "own score": Rule(lambda n: OwnScore(), "target", main=True),
    "own matrix": Rule(lambda n: OwnMatrix()),
    "attention": Rule(lambda n: QKSoftmax(4, 2), "target", main=True),
    "grouped queries": Rule(
        lambda n: QKSoftmax(4, 4, kv_heads=2, head_channels=2, bias=False, qkv_bias=True), "target"
    ),
    "TransformerConv": Rule(
        lambda n: QKSoftmax(4, 2, out_channels=6, head_channels=3, edge_channels=3, root=True, output=False),
        "target",
        3,
    ),
    "ALiBi": Rule(lambda n: QKSoftmax(4, 2, score_bias=ALiBi(2), bias=False), "target", main=True),
    "RelativeBias": Rule(lambda n: QKSoftmax(4, 2, score_bias=RelativeBias.offsets(2, 3), scale=0.7), "target"),
    "Rotary": Rule(lambda n: QKSoftmax(4, 2, position=Rotary(2)), "target", main=True),
    "Rotary 2-D": Rule(lambda n: QKSoftmax(4, 2, head_channels=4, position=Rotary(4, axes=2)), "target", axes=2),
    "swin": Rule(lambda n: QKSoftmax(4, 2, score_bias=RelativeBias.swin(2, (6, 6))), "target", axes=2),
    "cross-attention": Rule(lambda n: QKSoftmax(4, 2, source_channels=3), "target two sets", channels=(3, 4)),
    "split sources": Rule(lambda n: QKSoftmax(4, 2, source_channels=(2, 3)), "target two sets", channels=(5, 4)),
}
