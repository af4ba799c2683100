"""Boxes: neighbourhoods whose targets each see a box of sources, and which blocks of pairs such boxes reach.

Along each axis a, target i sees the places ``low[a, i], low[a, i] + step_a, … < high[a, i]``. A window is a box of one
axis, a grid's window one of several. Blocks of pairs are found from the ends of the intervals, never pair by pair.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mpnn.neighbours import AllTokens, Blocks, Grid, Window
from mpnn.neighbours.base import Neighbours
from mpnn.slots import extent, grid_size, product

BORDERS = (None, "zeros", "clamp")  # of grids: others show a cell more than once


@dataclass(frozen=True)
class Boxes:
    """The sources of each target: ``low``, ``high`` int64 (axes, N), ``steps``, the sources' shape, row-major."""

    low: Tensor
    high: Tensor
    steps: tuple[int, ...]
    size: tuple[int, ...]

    def places(self) -> Tensor:
        """The place of each source: int64 (axes, M)."""
        flat = torch.arange(product(self.size), device=self.low.device)
        rest = [product(self.size[a + 1 :]) for a in range(len(self.size))]
        return torch.stack([flat // r % n for r, n in zip(rest, self.size, strict=True)])


def boxes_of(rule: Neighbours, targets: int, sources: int, tokens: Any, device: torch.device) -> Boxes:
    """The boxes of a rule of ``RULES``."""
    return RULES[type(rule).__name__](rule, targets, sources, tokens, device)


def _window(rule: Window, targets: int, sources: int, tokens: Any, device: torch.device) -> Boxes:
    first, end, slot = extent(tokens, targets, sources, torch.arange(targets, device=device))
    step = rule.dilation
    low = slot - rule.left * step
    low = low + ((first - low).clamp(min=0) + step - 1) // step * step  # the first place of the window in the graph
    return Boxes(low[None], torch.minimum(end, slot + rule.right * step + 1)[None], (step,), (sources,))


def _all_tokens(rule: AllTokens, targets: int, sources: int, tokens: Any, device: torch.device) -> Boxes:
    first, end, slot = extent(tokens, targets, sources, torch.arange(targets, device=device))
    return Boxes(first[None], (torch.minimum(end, slot + 1) if rule.causal else end)[None], (1,), (sources,))


def _grid(rule: Grid, targets: int, sources: int, tokens: Any, device: torch.device) -> Boxes:
    size = rule.size_of(tokens)
    out, low, high = rule.target_size(size), [], []
    for a, n in enumerate(size):
        cell, valid, _, _ = rule.lines[a].cells(n, torch.arange(out[a], device=device))
        at = torch.arange(targets, device=device) // product(out[a + 1 :]) % out[a]
        low.append(torch.where(valid, cell, n).amin(-1)[at])
        high.append(torch.where(valid, cell + 1, 0).amax(-1)[at])
    return Boxes(torch.stack(low), torch.stack(high), rule.dilation, size)


def _blocks(rule: Blocks, targets: int, sources: int, tokens: Any, device: torch.device) -> Boxes:
    size, low, high = grid_size(rule, rule.grid, tokens) if rule.on_grid else (sources,), [], []
    places = rule._places(tokens, targets, sources, torch.arange(targets, device=device))
    for a, (at, count, start) in enumerate(places):
        first = rule._bounds(a, at)
        low.append(start + first.clamp(min=0))
        high.append(start + torch.minimum(first + rule._reach(a), torch.as_tensor(count, device=device)))
    return Boxes(torch.stack(low), torch.stack(high), (1,) * len(size), size)


RULES: dict[str, Callable[..., Boxes]] = {
    "Window": _window,
    "Blocks": _blocks,
    "Grid": _grid,
    "AllTokens": _all_tokens,
}


def reached(boxes: Boxes, block: int) -> tuple[Tensor, Tensor]:
    """Which blocks of ``block`` targets × ``block`` sources have some pair, and which have every one: bool (rows,
    columns).

    A dilated window counts as reaching all between its ends. A block that several rows of a grid fill together is not
    counted as full, and neither is one that ends beyond the last token.
    """
    start, stop = _intervals(boxes)
    rows, columns = (-(-n // block) for n in (boxes.low.shape[1], product(boxes.size)))
    row = torch.arange(start.shape[0], device=start.device)[:, None].expand_as(start) // block
    some = _covered(row, start // block, -(-stop // block), stop > start, (rows, columns)) > 0
    if boxes.steps[-1] > 1:
        return some, torch.zeros_like(some)
    first, end = -(-start // block), stop // block
    return some, _covered(row, first, end, end > first, (rows, columns)) == block


def _intervals(boxes: Boxes) -> tuple[Tensor, Tensor]:
    """The flat sources of each target as intervals along the last axis: start, stop (N, places on the other axes)."""
    low, high, outer = boxes.low, boxes.high, range(len(boxes.size) - 1)
    counts = [int(((high[a] - low[a] + boxes.steps[a] - 1) // boxes.steps[a]).amax().clamp(min=0)) for a in outer]
    starts, stops = [], []
    for at in itertools.product(*(range(c) for c in counts)):
        base, inside = torch.zeros_like(low[-1]), torch.ones_like(low[-1], dtype=torch.bool)
        for a, k in zip(outer, at, strict=True):
            place = low[a] + k * boxes.steps[a]
            inside = inside & (place < high[a])
            base = base + place * product(boxes.size[a + 1 :])
        starts.append(base + low[-1])
        stops.append(torch.where(inside, base + high[-1], 0))
    if not starts:
        return low.new_zeros(low.shape[1], 0), low.new_zeros(low.shape[1], 0)
    return torch.stack(starts, 1), torch.stack(stops, 1)


def _covered(row: Tensor, first: Tensor, end: Tensor, valid: Tensor, shape: tuple[int, int]) -> Tensor:
    """How many of the intervals first ≤ column < end cover each entry of (rows, columns): by their two ends, summed."""
    steps = torch.zeros(shape[0] * (shape[1] + 1), dtype=torch.int64, device=row.device)
    for column, sign in ((first, 1), (end, -1)):
        at = (row * (shape[1] + 1) + column)[valid]
        steps.index_add_(0, at, torch.full_like(at, sign))
    return steps.view(shape[0], shape[1] + 1).cumsum(-1)[:, :-1]
