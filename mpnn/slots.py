"""Slots: where the tokens of a call stand, in their graph of a batch or on a grid; what neighbourhoods count by."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mpnn.tokens.base import Tokens


class SameSet(tuple):
    """(source, target) tokens that are one set seen twice, as keys and queries are: target i is source i."""


def two(tokens: Any) -> tuple[Tokens | None, Tokens | None]:
    """(source, target) tokens of a call."""
    return tokens if isinstance(tokens, tuple) else (tokens, tokens)


def device_of(tokens: Any) -> torch.device | None:
    """The device on which edges are wanted."""
    source, _ = two(tokens)
    return None if source is None else source.x.device


def row_numbers(rows: slice | None, targets: int, device: torch.device | None = None) -> Tensor:
    """The targets of a slice as a tensor."""
    if rows is None:
        return torch.arange(targets, device=device)
    start, stop, _ = rows.indices(targets)
    return torch.arange(start, stop, device=device)


def extent(tokens: Any, targets: int, sources: int, i: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For targets ``i``: the first source of their graph, the one after its last, and the slot that i itself has.

    Without ``batch`` there is one graph, and target i sits at slot i + M - N: the ends are aligned.
    """
    source, target = two(tokens)
    if source is None or source.batch is None:
        zero = torch.zeros_like(i)
        return zero, zero + sources, i + (sources - targets)
    batch_s, batch_t = source.batch.long(), target.batch.long()  # type: ignore[union-attr]
    graph = batch_t[i]
    low, high = torch.searchsorted(batch_s, graph), torch.searchsorted(batch_s, graph, right=True)
    end_t = torch.searchsorted(batch_t, graph, right=True)
    return low, high, high - (end_t - i)


def sequences(tokens: Any, targets: int, sources: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Of each graph of a batch, or of the one sequence: first target, number of targets, first source, the source after
    the last, and the slot of the first target."""
    _, target = two(tokens)
    if target is None or target.batch is None:
        first = torch.zeros(1, dtype=torch.int64, device=device_of(tokens))
        length = first + targets
    else:
        _, length = torch.unique_consecutive(target.batch, return_counts=True)
        first = length.cumsum(0) - length
    return first, length, *extent(tokens, targets, sources, first)


def spread(i: Tensor, low: Tensor, high: Tensor, sources: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """The pairs of targets ``i`` with the sources low ≤ j < high of each: (target, source, valid)."""
    if torch.compiler.is_compiling():
        j = torch.arange(sources, device=i.device).expand(i.shape[0], sources)
        valid = (j >= low[:, None]) & (j < high[:, None])
        return i[:, None].expand(-1, sources).reshape(-1), j.reshape(-1), valid.reshape(-1)
    count = (high - low).clamp(min=0)
    target = torch.repeat_interleave(i, count)
    start = torch.repeat_interleave(low - (count.cumsum(0) - count), count)
    return target, torch.arange(target.shape[0], device=i.device) + start, None


def grid_size(rule: Any, own: tuple[int, ...] | None, tokens: Any) -> tuple[int, ...]:
    """A grid's shape: the rule's own, or the call's."""
    source, _ = two(tokens)
    grid = None if source is None else source.grid
    if own is not None:
        if grid is not None and tuple(grid) != own:
            raise ValueError(f"expected grid={own}, as {rule} was built with, got {tuple(grid)}")
        return own
    if grid is None:
        raise ValueError(f"expected grid= at the call, since {rule} was built without a size, got None")
    if len(grid) != rule.axes:
        raise ValueError(f"expected a grid of {rule.axes} axes for {rule}, got {tuple(grid)}")
    return tuple(grid)


def product(shape: tuple[int, ...]) -> int:
    """Number of cells."""
    return math.prod(shape)
