"""What the names in a sweep's expressions stand for, and the model of one cell."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mpnn.data import Dataset
from mpnn.experiments.expressions import evaluate
from mpnn.experiments.recipes import grid_graph
from mpnn.models import Transformer
from mpnn.neighbours import KNN, AllTokens, Blocks, Full, Global, Graph, Grid, Neighbours, Radius, Random, Window
from mpnn.positions import (
    ALiBi,
    GraphCode,
    LaplacianEigenvectors,
    Learned,
    PositionCode,
    RandomWalk,
    RelativeBias,
    Rotary,
    ScoreBias,
    Sinusoidal,
)
from mpnn.tokens import Tokens
from mpnn.tokens.places import grid_positions
from mpnn.weights import AdditiveScore, AdditiveScoreV2, EdgeLearned, OffsetMLP, QKSoftmax, SharedKernel, Static, Weight

CLASSES = (Full, Grid, Graph, AllTokens, Window, Blocks, Global, Random, KNN, Radius)
NUMBERS = ("grid", "tokens", "channels", "heads")  # of the data set and of the model, as names
NEIGHBOURS: dict[str, Any] = {one.__name__: one for one in CLASSES} | {"grid_graph": grid_graph}
NETWORKS: dict[str, Any] = {one.__name__: one for one in (AdditiveScore, AdditiveScoreV2, OffsetMLP)}
WEIGHTS: dict[str, Any] = {one.__name__: one for one in (Static, SharedKernel, EdgeLearned, QKSoftmax)} | NETWORKS
CODES = (Sinusoidal, Learned, Rotary, ALiBi, RelativeBias, LaplacianEigenvectors, RandomWalk)
POSITIONS: dict[str, Any] = {one.__name__: one for one in CODES} | {
    "none": None,
    "sinusoidal": "Sinusoidal(channels)",
    "learned": "Learned(channels, tokens)",
    "rotary": "Rotary(channels // heads)",
    "alibi": "ALiBi(heads)",
    "relative": "RelativeBias(heads)",
    "laplacian": "LaplacianEigenvectors(channels, 8)",
    "random_walk": "RandomWalk(channels, 8)",
}


def numbers(data: Dataset, channels: int, heads: int) -> dict[str, Any]:
    """The values of the names in lower case."""
    return {"grid": data.grid, "tokens": data.tokens, "channels": channels, "heads": heads}


def weight_makers(channels: int, heads: int, axes: int) -> dict[str, Callable[..., Any]]:
    """The weights with their widths filled in; a name alone is the published layer with few parameters.

    `Static` has a number per pair and head (token mixing), `SharedKernel` a matrix per relation (convolution),
    `EdgeLearned` GAT's score, `QKSoftmax` is attention.
    """

    def static(**options: Any) -> Weight:
        return Static(channels, channels, **({"heads": heads} | options if "groups" not in options else options))

    def shared(**options: Any) -> Weight:
        return SharedKernel(channels, channels, **options)

    def additive(kind: type) -> Callable[..., dict[str, Any]]:
        def make(**options: Any) -> dict[str, Any]:
            network = kind(channels, **({"heads": heads} | options))
            return {"network": network, "heads": network.heads, "normalise": "softmax"}

        return make

    def offset(**options: Any) -> dict[str, Any]:
        if not axes:
            raise ValueError("OffsetMLP reads the offset from target to source, which the edges of a graph do not have")
        return {"network": OffsetMLP(axes, channels, **options), "groups": channels}

    def learned(network: Any = None, **options: Any) -> Weight:
        made = (additive(AdditiveScore) if network is None else network)() if not isinstance(network, dict) else network
        return EdgeLearned(channels, channels, **(made | options))

    def attention(**options: Any) -> Weight:
        return QKSoftmax(channels, **({"heads": heads} | options))

    return {
        "Static": static,
        "SharedKernel": shared,
        "EdgeLearned": learned,
        "QKSoftmax": attention,
        "AdditiveScore": additive(AdditiveScore),
        "AdditiveScoreV2": additive(AdditiveScoreV2),
        "OffsetMLP": offset,
    }


def neighbours_of(text: str, data: Dataset) -> Neighbours:
    """The neighbourhood that an expression stands for on a data set."""
    found = evaluate(text, NEIGHBOURS | {"grid": data.grid, "tokens": data.tokens})
    if not isinstance(found, Neighbours):
        raise TypeError(f"expected neighbours, got {text}, which is {found!r}")
    return found


def position_of(text: str, values: dict[str, Any]) -> nn.Module | None:
    """The positional code that an expression stands for, with its own parameters each time."""
    found = evaluate(text, POSITIONS | values)
    return evaluate(found, POSITIONS | values) if isinstance(found, str) else found


class Placed(nn.Module):
    """The tokens of a data set with their cells' coordinates as positions: (..., N, C) → Tokens."""

    def __init__(self, grid: tuple[int, ...]) -> None:
        super().__init__()
        self.grid = grid

    def forward(self, x: Tensor) -> Tokens:
        return Tokens(x, positions=grid_positions(self.grid, x.device), grid=self.grid)


class OfGrid(nn.Module):
    """A code of a graph's nodes on the graph of a data set's cells, whoever hears whom: x → x + code."""

    def __init__(self, code: GraphCode, grid: tuple[int, ...]) -> None:
        super().__init__()
        self.code = code
        edges = grid_graph(grid).edges(math.prod(grid), math.prod(grid))
        self.register_buffer("edge_index", torch.stack([edges.source, edges.target]), persistent=False)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        return self.code(x, self.edge_index)


def build(
    neighbours: str, weight: str, position: str, data: Dataset, channels: int, depth: int, heads: int
) -> nn.Module:
    """A Transformer of these rules: embedding, `depth` blocks of the layer and a channel MLP, mean, classes.

    A code of tokens is added after the embedding, and so is one of a graph's nodes, for the graph of the data's grid;
    `Rotary` turns queries and keys, and a score bias is added to the scores, so that both need `QKSoftmax`.

    Raises:
        TypeError, ValueError: of the rules, where they do not fit each other.
    """
    values = numbers(data, channels, heads)
    rule = neighbours_of(neighbours, data)
    code = position_of(position, values)
    makers = weight_makers(channels, heads, rule.axes)
    added: nn.Module | None = code if isinstance(code, PositionCode) else None
    if isinstance(code, GraphCode):
        added = OfGrid(code, data.grid)
    name = "score_bias" if isinstance(code, ScoreBias) else "position"

    def make(_: int) -> Weight:
        if code is None or added is not None:
            found = evaluate(weight, makers | values)
        elif "QKSoftmax" not in weight:
            acts = "is added to scores" if name == "score_bias" else "turns queries and keys"
            raise ValueError(f"{type(code).__name__} {acts}, which only QKSoftmax has; {weight} has none")
        else:  # each block has its own
            inside = {name: position_of(position, values)}
            attention = makers["QKSoftmax"]
            found = evaluate(weight, makers | values | {"QKSoftmax": lambda **options: attention(**inside, **options)})
        if not isinstance(found, Weight):
            raise TypeError(f"expected a weight, got {weight}")
        return found

    # A code of several axes reads the cells' coordinates; the others count the tokens.
    placed = Placed(data.grid) if getattr(code, "axes", 0) else None
    return Transformer(
        data.channels,
        channels,
        depth,
        data.classes,
        neighbours=rule,
        weight=make,
        tokens=placed,
        position=added,
        hidden=2 * channels,
    )
