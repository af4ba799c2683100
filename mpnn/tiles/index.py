"""Tiles: the cover of a rule with the masks of its tiles, made once for its sizes.

Masks that several tiles share are stored once, so a window of any length has one for all its inner tiles. Tiles at a
constant distance are read through views: a slab of keys of a one-dimensional window is never copied.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mpnn import limits
from mpnn.listing import kept_for
from mpnn.memo import outside
from mpnn.neighbours import Neighbours


@dataclasses.dataclass
class Slab:
    """Which tokens the tiles of a group hold: (tiles, width) numbers, or a first one and a distance between tiles."""

    index: Tensor  # (tiles, width), absent tokens as 0
    first: int | None = None  # of tiles of consecutive tokens at one distance
    step: int = 0
    absent: Tensor | None = None  # (tiles, width): what is no token; None where all are

    @staticmethod
    def of(index: Tensor) -> Slab:
        tiles, width = index.shape
        first, step = int(index[0, 0]), int(index[1, 0] - index[0, 0]) if tiles > 1 else width
        ruler = first + torch.arange(tiles, device=index.device)[:, None] * step
        even = step >= 0 and torch.equal(index, ruler + torch.arange(width, device=index.device))
        absent = index < 0
        alone = first if even and first >= 0 else None
        return Slab(index.clamp(min=0), alone, step, absent if bool(absent.any()) else None)

    def take(self, x: Tensor, tiles: slice) -> Tensor:
        """Rows of x (tokens, G, D) by tile, (tiles, G, width, D); a view where the tiles are even."""
        width, count = self.index.shape[1], tiles.stop - tiles.start
        if self.first is None:
            return x.index_select(0, self.index[tiles].flatten()).view(count, width, *x.shape[1:]).transpose(1, 2)
        n, g, d = x.stride()
        start = x.storage_offset() + (self.first + tiles.start * self.step) * n
        return x.as_strided((count, x.shape[1], width, x.shape[2]), (self.step * n, g, n, d), start)

    def put(self, total: Tensor, slab: Tensor, tiles: slice) -> None:
        """Write rows by tile (tiles, G, width, …), each token in one tile, to total (tokens + 1, G, …), whose last row
        takes what is no token."""
        rows = slab.transpose(1, 2).flatten(0, 1)
        width = self.index.shape[1]
        if self.first is not None and self.step == width:
            start = self.first + tiles.start * width
            total[start : start + len(rows)] = rows
        else:
            index = self.index[tiles].flatten()
            if self.absent is not None:
                index = index.masked_fill(self.absent[tiles].flatten(), len(total) - 1)
            total.index_copy_(0, index, rows)

    def add(self, total: Tensor, slab: Tensor, tiles: slice) -> None:
        """Add rows by tile (tiles, G, width, D) to where ``take`` found them in total (tokens, G, D)."""
        width = self.index.shape[1]
        slab = slab.transpose(1, 2)
        if self.first is None or 0 < self.step * 32 < width:
            total.index_add_(0, self.index[tiles].flatten(), slab.flatten(0, 1).to(total.dtype))
            return
        if self.step == 0:
            total[self.first : self.first + width] += slab.sum(0)
            return
        n, g, d = total.stride()
        for a in range(0, width, self.step):  # pieces of neighbouring tiles that do not overlap
            piece = slab[:, a : a + self.step]
            start = total.storage_offset() + (self.first + tiles.start * self.step + a) * n
            total.as_strided(piece.shape, (self.step * n, n, g, d), start).add_(piece)


@dataclasses.dataclass
class Group:
    """Tiles of one shape. ``masks`` (c, T, K) bool, the distinct ones, None where every pair meets; ``which`` (tiles,)
    of them each tile has; ``some`` (c, T): whether a target has a source, None where all do."""

    targets: Slab
    sources: Slab
    masks: Tensor | None
    which: Tensor
    some: Tensor | None
    added: dict[torch.dtype, Tensor] = dataclasses.field(default_factory=dict)

    def pattern(self, tiles: slice, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
        """The masks as what is added to scores, (tiles or 1, 1, T, K), and which targets have a source, (tiles or 1,
        1, T); None where nothing is, and all do."""
        if self.masks is None:
            return None, None
        alone = len(self.masks) == 1
        some = None if self.some is None else (self.some if alone else self.some.index_select(0, self.which[tiles]))
        some = some if some is None else some[:, None]
        if alone or self.masks[0].numel() * self.shape[0] <= limits.block:  # kept, of one mask or of all tiles
            if dtype not in self.added:
                with outside():
                    every = self.masks if alone else self.masks[self.which]
                    self.added[dtype] = minus_infinity(every, dtype)[:, None]
            return (self.added[dtype] if alone else self.added[dtype][tiles]), some
        return minus_infinity(self.masks.index_select(0, self.which[tiles]), dtype)[:, None], some

    @property
    def shape(self) -> tuple[int, int, int]:
        return *self.targets.index.shape, self.sources.index.shape[1]

    def chunks(self, each: int) -> Iterator[slice]:
        """Slices of tiles, each tile counted as so many numbers held at once."""
        count, step = self.shape[0], max(1, 2 * limits.block // max(1, each))
        return (slice(a, min(a + step, count)) for a in range(0, count, step))


@dataclasses.dataclass
class Tiles:
    """All groups of a rule. ``place`` (N,): where a target stands among the targets of all groups, the number of these
    for a target in no tile; None where the two orders are one."""

    groups: list[Group]
    place: Tensor | None

    def back(self, x: Tensor) -> Tensor:
        """(targets of all groups, …) in the order of the targets."""
        if self.place is None:
            return x
        return torch.cat([x, x.new_zeros(1, *x.shape[1:])]).index_select(0, self.place)


def minus_infinity(kept: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a pair meets, else -inf."""
    return torch.zeros(kept.shape, dtype=dtype, device=kept.device).masked_fill_(~kept, -torch.inf)


def tiles_of(rule: Neighbours, targets: int, sources: int, tokens: Any, device: torch.device) -> Tiles:
    """The tiles of a rule, kept for its sizes."""
    return kept_for(
        rule, "tiles", targets, sources, tokens, device, lambda: _made(rule, targets, sources, tokens, device)
    )


def _made(rule: Neighbours, targets: int, sources: int, tokens: Any, device: torch.device) -> Tiles:
    groups, order = [], []
    for at, seen in rule.cover(targets, sources, tokens):
        order.append(at.flatten())
        slabs = Slab.of(at), Slab.of(seen)
        if rule.complete and bool((at >= 0).all() and (seen >= 0).all()):  # known without a look at the pairs
            groups.append(Group(*slabs, None, torch.zeros_like(at[:, 0]), None))
            continue
        masks, which = _masks(rule, at, seen, targets, sources, tokens)
        some = masks.any(-1)
        groups.append(Group(*slabs, None if masks.all() else masks, which, None if some.all() else some))
    flat = torch.cat(order) if order else torch.zeros(0, dtype=torch.int64, device=device)
    if torch.equal(flat, torch.arange(targets, device=device)):
        return Tiles(groups, None)
    place = torch.full((targets + 1,), len(flat), device=device)
    place[torch.where(flat < 0, targets, flat)] = torch.arange(len(flat), device=device)
    return Tiles(groups, place[:-1].clone())


def _masks(
    rule: Neighbours, at: Tensor, seen: Tensor, targets: int, sources: int, tokens: Any
) -> tuple[Tensor, Tensor]:
    """The distinct masks of a group (c, T, K), and which of them each tile has."""
    size = at.shape[1] * seen.shape[1]
    generator = torch.Generator().manual_seed(0)
    weigh = torch.rand(size, generator=generator, dtype=torch.float64).to(at.device)
    found: dict[float, int] = {}
    kept: list[Tensor] = []
    which: list[int] = []
    step = max(1, limits.block // 4 // size)
    for i, j in zip(at.split(step), seen.split(step), strict=True):
        real = (i >= 0)[:, :, None] & (j >= 0)[:, None, :]
        meets = rule.holds(i.clamp(min=0)[:, :, None], j.clamp(min=0)[:, None, :], targets, sources, tokens) & real
        for mask, mark in zip(meets, (meets.flatten(1).to(weigh.dtype) @ weigh).tolist(), strict=True):
            number = found.get(mark)
            if number is None or not torch.equal(kept[number], mask):
                found[mark] = number = len(kept)
                kept.append(mask.clone())
            which.append(number)
    return torch.stack(kept), torch.tensor(which, device=at.device)
