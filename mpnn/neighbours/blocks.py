"""Blocks: tokens cut into blocks, each token sees its own block and perhaps a halo around it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mpnn.checks import positive
from mpnn.cover import Cover, band, product
from mpnn.edges import Edges
from mpnn.neighbours.base import Neighbours
from mpnn.slots import device_of, grid_size, row_numbers, sequences
from mpnn.slots import product as count_of


class Blocks(Neighbours):
    """Block attention: N(i) = {j : lower(b) - halo ≤ j < lower(b + 1) + halo}, where b = ⌊(i - shift)/size⌋ and
    lower(b) = size·b + shift; on a grid axis by axis.

    Blocks do not wrap around and ragged ones at the ends are kept. Targets and sources are numbered from the start of
    each set, and in a ``batch`` from the start of each graph. Swin's layers are ``Blocks(7, grid=g)`` and
    ``Blocks(7, grid=g, shift=3)``; HaloNet's is ``Blocks(8, grid=g, halo=3)``.

    Args:
        size: tokens of a block; on a grid an int for every axis or one per axis.
        grid: the grid's shape; with a tuple for ``size`` and no grid the call gives ``grid=``.
        shift, halo: like ``size``; an int or one per axis.

    Raises:
        TypeError, ValueError: where ``size`` is no int ≥ 1 or ``halo`` none ≥ 0; at the call where the tokens are not
            the grid's cells.

    Source: Swin (Liu et al., 2021), `arXiv:2103.14030 <https://arxiv.org/abs/2103.14030>`_; HaloNet (Vaswani et al.,
    2021), `arXiv:2103.12731 <https://arxiv.org/abs/2103.12731>`_.

    Example::

        >>> from mpnn.neighbours import Blocks
        >>> Blocks(2, shift=1).edges(4, 4).source
        tensor([0, 1, 2, 1, 2, 3])
    """

    enumerates = True
    listed = True
    tiled = True

    def __init__(self, size: Any, *, grid: Any = None, shift: Any = 0, halo: Any = 0) -> None:
        super().__init__()
        grid = (grid,) if isinstance(grid, int) else grid
        given = {
            n: len(v)
            for n, v in (("size", size), ("grid", grid), ("shift", shift), ("halo", halo))
            if isinstance(v, tuple | list)
        }
        if len(set(given.values())) > 1:
            raise ValueError(f"expected one number of axes for size, grid, shift and halo, got {given}")
        if grid is not None and not isinstance(grid, tuple | list):
            raise TypeError(f"expected grid to be a tuple of ints or an int, got {grid!r}")
        if 0 in given.values():
            raise ValueError(f"expected at least one axis, got size={size!r}, grid={grid!r}")
        self.on_grid = "size" in given or "grid" in given
        self.axes = next(iter(given.values()), 1)
        if given and not self.on_grid:
            raise ValueError(f"expected grid= or a tuple for size, since {next(iter(given))} is one, got size={size!r}")
        each = [tuple(v) if isinstance(v, tuple | list) else (v,) * self.axes for v in (size, shift, halo)]
        self.size = tuple(positive("size", s) for s in each[0])
        self.shift = tuple(_whole("shift", s) for s in each[1])
        self.halo = tuple(positive("halo", h, 0) for h in each[2])
        self.grid = None if grid is None else tuple(positive("grid", n) for n in grid)
        self.reads_grid = self.fixed_places = self.on_grid

    def _bounds(self, axis: int, i: Tensor) -> Tensor:
        """The lower end of the block of each coordinate, the halo included."""
        size, shift = self.size[axis], self.shift[axis]
        return (i - shift).div(size, rounding_mode="floor") * size + shift - self.halo[axis]

    def _reach(self, axis: int) -> int:
        return self.size[axis] + 2 * self.halo[axis]

    def _places(self, tokens: Any, targets: int, sources: int, i: Tensor) -> list[tuple[Tensor, Any, Any]]:
        """Per axis: the coordinates of targets i, the number of source cells, the number of the first source."""
        if not self.on_grid:
            first, _, low, high, _ = sequences(tokens, targets, sources)
            graph = (torch.searchsorted(first, i.contiguous(), right=True) - 1).clamp(min=0)
            return [(i - first[graph], (high - low)[graph], low[graph])]
        places: list[tuple[Tensor, Any, Any]] = []
        rest = i
        for n in reversed(grid_size(self, self.grid, tokens)):
            places.insert(0, (rest % n, n, 0))
            rest = rest // n
        return places

    def edges(self, targets: int, sources: int, *, rows: slice | None = None, tokens: Any = None) -> Edges:
        i = row_numbers(rows, targets, device_of(tokens))
        if targets == 0:
            return Edges(i[:0], i[:0], None, i[:0, None].expand(0, self.axes))
        cell, valid = torch.zeros_like(i)[:, None], torch.ones_like(i, dtype=torch.bool)[:, None]
        offsets: list[Tensor] = []
        for a, (at, count, start) in enumerate(self._places(tokens, targets, sources, i)):
            low = self._bounds(a, at)[:, None]
            most = min(self._reach(a), count if self.on_grid else sources)
            raw = low.clamp(min=0) + torch.arange(most, device=i.device)
            count, start = (t[:, None] if isinstance(t, Tensor) else t for t in (count, start))
            inside = (raw < low + self._reach(a)) & (raw < count)
            kept = start + raw
            if torch.compiler.is_compiling():
                kept = kept.clamp(max=(count if self.on_grid else max(1, sources)) - 1)
            stride = count if isinstance(count, int) else 1
            cell = (cell[:, :, None] * stride + kept[:, None]).flatten(1)
            offsets = [o[:, :, None].expand(-1, -1, raw.shape[1]).flatten(1) for o in offsets]
            offsets.append((raw - at[:, None])[:, None].expand(-1, valid.shape[1], -1).flatten(1))
            valid = (valid[:, :, None] & inside[:, None]).flatten(1)
        target = i[:, None].expand_as(cell).reshape(-1)
        offset = torch.stack([o.reshape(-1) for o in offsets], -1)
        return Edges(cell.reshape(-1), target, None, offset, valid=valid.reshape(-1)).compact()

    def holds(self, target: Tensor, source: Tensor, targets: int, sources: int, tokens: Any = None) -> Tensor:
        if targets == 0:
            return (target == source) & False
        kept, rest = torch.ones((), dtype=torch.bool, device=target.device), source
        for a, (at, count, start) in reversed([*enumerate(self._places(tokens, targets, sources, target))]):
            j = rest % count if self.on_grid else rest - start
            rest = rest // count if self.on_grid else rest
            low = self._bounds(a, at)
            kept = kept & (j >= low) & (j < low + self._reach(a)) & (j >= 0) & (j < count)
        return kept

    def cover(self, targets: int, sources: int, tokens: Any = None) -> Cover:
        if self.on_grid:
            cells = grid_size(self, self.grid, tokens)
            axes = [self._tiles(a, n) for a, n in enumerate(cells)]
            return product(axes, cells, cells, device_of(tokens))
        first, length, low, high, _ = sequences(tokens, targets, sources)
        size, shift, halo = self.size[0], self.shift[0], self.halo[0]
        lowest = -shift // size
        count = ((length - 1 - shift).div(size, rounding_mode="floor") - lowest + 1) * (length > 0)
        graph = torch.repeat_interleave(torch.arange(len(first), device=first.device), count)
        block = torch.arange(len(graph), device=first.device) - (count.cumsum(0) - count)[graph] + lowest
        begin = block * size + shift
        start, stop = begin.clamp(min=0), torch.minimum(begin + size, length[graph])
        seen = (begin - halo).clamp(min=0), torch.minimum(begin + size + halo, (high - low)[graph])
        own = first[graph] + start
        return band(own, stop - start, own, low[graph] + seen[0], low[graph] + seen[1], tile=256)

    def _tiles(self, axis: int, n: int) -> list[tuple[list[int], list[int]]]:
        size, shift, halo = self.size[axis], self.shift[axis], self.halo[axis]
        lowers = range(-shift // size * size + shift, n, size)  # floor((0 - shift) / size) is the first block
        inside = lambda a, b: [*range(max(0, a), min(b, n))]  # noqa: E731
        return [(inside(b, b + size), inside(b - halo, b + size + halo)) for b in lowers]

    def check(self, targets: int, sources: int, tokens: Any) -> None:
        if self.on_grid:
            size = grid_size(self, self.grid, tokens)
            for kind, got in (("sources", sources), ("targets", targets)):
                if got != count_of(size):
                    raise ValueError(f"expected {count_of(size)} {kind} for {self} on a grid of {size}, got {int(got)}")

    def degree(self, targets: int, sources: int) -> int:
        return count_of(tuple(self._reach(a) for a in range(self.axes)))

    def key(self) -> tuple:
        return self.size, self.grid, self.shift, self.halo, self.on_grid

    def extra_repr(self) -> str:
        shown = {"grid": self.grid, "shift": self.shift, "halo": self.halo}
        plain = {"grid": None, "shift": (0,) * self.axes, "halo": (0,) * self.axes}
        one = lambda v: v[0] if v is not None and not self.on_grid else v  # noqa: E731
        return ", ".join([f"{one(self.size)}", *(f"{n}={one(v)}" for n, v in shown.items() if v != plain[n])])


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"expected {name} to be an int, got {value!r} ({type(value).__name__})")
    return value
