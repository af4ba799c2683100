"""MLP, CNN, GNN and Transformer: one Network with other neighbours and weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from mpnn.checks import positive
from mpnn.message_passing import MessagePassing
from mpnn.models.blocks import PlainBlock, ResidualBlock, Skip
from mpnn.models.network import Network, Readout
from mpnn.neighbours import AllTokens, Full, Graph, Grid, Neighbours
from mpnn.weights import QKSoftmax, SharedKernel, Static, Weight


class Units(nn.Module):
    """Features as tokens of one channel: (..., n) → (..., n, 1)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(-1)


class Values(nn.Module):
    """Tokens of one channel as features: (..., n, 1) → (..., n)."""

    def forward(self, x: Tensor, tokens: Any) -> Tensor:
        return x.squeeze(-1)


def _block(layer: MessagePassing, activation: type[nn.Module] | None, residual: bool) -> nn.Module:
    if isinstance(activation, nn.Module):
        kind = type(activation).__name__
        raise TypeError(f"expected activation to be a class, of which each layer makes one, got a {kind}; pass {kind}")
    block = PlainBlock(layer, None if activation is None else activation())
    return Skip(block) if residual else block


def MLP(sizes: Sequence[int], *, activation: type[nn.Module] = nn.ReLU, residual: bool = False) -> Network:
    """A multilayer perceptron, ``Full`` × ``Static``: units are tokens of one channel, each layer sees all of the last.

    Args:
        sizes: units per layer, inputs and outputs included. residual: a hidden layer of equal width adds its input.

    Shapes: (..., sizes[0]) → (..., sizes[-1]); the same function as ``nn.Sequential(nn.Linear, activation, …)``.

    Example::

        >>> import torch
        >>> from mpnn.models import MLP
        >>> MLP((40, 100, 100, 10))(torch.ones(4, 40)).shape
        torch.Size([4, 10])
    """
    if isinstance(sizes, int) or len(sizes) < 2:
        raise ValueError(f"expected sizes to be a tuple, at least of inputs and outputs, got {sizes}; as (64, 100, 10)")
    last = len(sizes) - 2
    blocks = [
        _block(MessagePassing(Full(a, b), Static()), activation if i < last else None, residual and a == b and i < last)
        for i, (a, b) in enumerate(pairwise(sizes))
    ]
    return Network(blocks, tokens=Units(), readout=Values())


def _widths(channels: Any) -> None:
    if isinstance(channels, int):
        raise TypeError(f"expected channels to be a tuple, one width a layer, got {channels}; write ({channels},)")


def _each(name: str, value: Any, layers: int) -> list[Any]:
    values = list(value) if isinstance(value, list | tuple) and len(value) == layers else [value] * layers
    if isinstance(value, list | tuple) and len(value) != layers:
        raise ValueError(f"expected one {name}, or one for each of {layers} layers, got {value!r}")
    return values


def CNN(  # type: ignore[no-untyped-def]
    in_channels: int, channels: Sequence[int], classes: int, *, size: tuple[int, ...] | int, kernel_size=3, stride=1,
    padding="same",
    border: str = "zeros", activation: type[nn.Module] = nn.ReLU, readout: str = "mean", residual: bool = False,
) -> Network:  # fmt: skip
    """A convolutional network, ``Grid`` × ``SharedKernel``: every cell sees its window with one kernel.

    Args:
        channels: a width per layer. size: the grid's shape, or an int for one axis; its cells, row by row, are the
        tokens.
        kernel_size, stride, padding: one value, or one per layer. readout: a pool of :class:`Readout`.
        residual: a layer that keeps its shape adds its input.

    Shapes: (B, N, in_channels) → (B, classes); the same function as ``nn.Sequential(nn.Conv2d, activation, …,
    nn.Linear)``.

    Example::

        >>> import torch
        >>> from mpnn.models import CNN
        >>> CNN(1, (8, 16), 10, size=(28, 28), stride=2, padding=1)(torch.ones(4, 784, 1)).shape
        torch.Size([4, 10])
    """
    _widths(channels)
    layers = len(channels)
    options = zip(
        *(_each(n, v, layers) for n, v in (("kernel_size", kernel_size), ("stride", stride), ("padding", padding))),
        strict=True,
    )
    blocks, width, grid = [], in_channels, (size,) if isinstance(size, int) else tuple(size)
    for out, (k, s, p) in zip(channels, options, strict=True):
        rule = Grid(grid, k, stride=s, padding=p, border=border)
        target = rule.target_size(grid)
        blocks.append(
            _block(
                MessagePassing(rule, SharedKernel(width, out)), activation, residual and width == out and target == grid
            )
        )
        width, grid = out, target
    cells = 1
    for n in grid:
        cells *= n
    return Network(blocks, readout=Readout(width * cells if readout == "flatten" else width, classes, readout))


def _made(weight: Callable[..., Weight], *widths: int) -> Weight:
    """The weight of one layer, by the function that makes it of the layer's widths."""
    one = len(widths) == 1
    example = "lambda c: QKSoftmax(c, heads=4)" if one else "lambda before, after: SharedKernel(before, after)"
    wanted = f"expected weight to be a function of a layer's width{'' if one else 's'}, as {example}"
    if isinstance(weight, nn.Module) or not callable(weight):
        raise TypeError(f"{wanted}, got {type(weight).__name__}(…), one weight; each layer makes its own")
    try:
        inspect.signature(weight).bind(*widths)
    except TypeError as error:
        raise TypeError(
            f"{wanted}, got one that does not fit the call weight({', '.join(map(str, widths))}): {error}"
        ) from None
    return weight(*widths)


def gcn(in_channels: int, out_channels: int) -> Weight:
    """GCN's weight: one matrix, symmetric degrees."""
    return SharedKernel(in_channels, out_channels, normalise="symmetric")


def GNN(
    in_channels: int, channels: Sequence[int], classes: int, *, neighbours: Neighbours | None = None,
    weight: Callable[[int, int], Weight] = gcn, activation: type[nn.Module] = nn.ReLU,
    position: nn.Module | None = None,
    readout: str = "mean", residual: bool = False,
) -> Network:  # fmt: skip
    """A graph network, ``Graph`` × any weight; by default a GCN with loops added.

    Args:
        channels: a width per layer. neighbours: by default ``Graph(self_loops="add")``, the call brings the edges.
        weight: makes a layer's weight from its two widths. position: a code added to the input.
        readout: a pool of :class:`Readout`; "none" classifies every node. residual: a layer of equal widths adds its
        input.

    Shapes: (N, in_channels) or (B, N, in_channels), edge_index (2, E) → (graphs or B, classes), or (…, N, classes).

    Example::

        >>> import torch
        >>> from mpnn.models import GNN
        >>> GNN(4, (16, 16), 3, readout="none")(torch.ones(5, 4), torch.tensor([[0, 1], [1, 2]])).shape
        torch.Size([5, 3])
    """
    _widths(channels)
    rule = Graph(self_loops="add") if neighbours is None else neighbours
    blocks, width = [], in_channels
    for out in channels:
        blocks.append(_block(MessagePassing(rule, _made(weight, width, out)), activation, residual and width == out))
        width = out
    return Network(blocks, position=position, readout=Readout(width, classes, readout))


def Transformer(
    in_channels: int | None, channels: int, depth: int, classes: int, *, heads: int = 4,
    neighbours: Neighbours | None = None,
    weight: Callable[[int], Weight] | None = None, tokens: nn.Module | None = None, position: nn.Module | None = None,
    hidden: int | None = None, dropout: float = 0.0, readout: str = "mean",
) -> Network:  # fmt: skip
    """A pre-norm Transformer encoder, ``AllTokens`` × ``QKSoftmax``; any other rule in its place by one argument.

    Args:
        in_channels: of the tokens, embedded by a Linear; None where they have ``channels`` already (a tokeniser's).
        neighbours: who sends, by default ``AllTokens()``; ``AllTokens(causal=True)`` makes a decoder, ``Window(4)`` a
            local one.
        weight: makes a layer's weight from its width, by default ``QKSoftmax(channels, heads)``;
            ``lambda c: SharedKernel(c, c)`` on a ``Grid`` or a ``Window`` makes convolutions.
        tokens: a tokeniser. position: a code added to the embedded tokens, as ``Sinusoidal(channels)``.
        hidden: width of the channel MLP, by default 4 · channels. readout: a pool of :class:`Readout`.

    Shapes: (B, N, in_channels) → (B, classes), or (B, N, classes) with ``readout="none"``.

    Source: ``nn.TransformerEncoder`` of ``nn.TransformerEncoderLayer(norm_first=True, activation="gelu")`` with a
    final norm.

    Example::

        >>> import torch
        >>> from mpnn.models import Transformer
        >>> Transformer(1, 32, 2, 10)(torch.ones(4, 40, 1)).shape
        torch.Size([4, 10])
    """
    positive("depth", depth, 0)
    rule = AllTokens() if neighbours is None else neighbours
    make = (lambda c: QKSoftmax(c, heads, dropout=dropout)) if weight is None else weight
    wide = 4 * channels if hidden is None else hidden
    blocks = [
        ResidualBlock(MessagePassing(rule, _made(make, channels)), channels, wide, dropout=dropout)
        for _ in range(depth)
    ]
    return Network(
        blocks, tokens=tokens, embed=None if in_channels is None else nn.Linear(in_channels, channels),
        position=position,
        readout=Readout(channels, classes, readout, norm=nn.LayerNorm(channels)),
    )  # fmt: skip
