"""Covers: which tokens stand together in a tile, so that dense attention over tiles meets every pair of a rule.

A cover is a list of groups of tiles of one shape, (targets (t, T), sources (t, K)), token numbers or -1 for none. Every
target that has a source is in one tile, and every source of a target is in its tile. A tile may hold other pairs than
the rule's; its ``holds`` says which.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

Cover = list[tuple[Tensor, Tensor]]

_SHAPES = 16  # from this many shapes of tiles on, they are padded to fewer


def band(
    first: Tensor, length: Tensor, slot: Tensor, low: Tensor, high: Tensor, *, left: int | None = None,
    right: int | None = None, step: int = 1, tile: int = 64,
) -> Cover:  # fmt: skip
    """The cover of sequences in which a target sees the sources around its slot.

    Sequence q has ``length`` targets first + step·a at slots slot + step·a. Each sees the sources j ≡ slot (mod step),
    low ≤ j < high, from ``left`` steps before its slot to ``right`` steps after; None is without limit.
    """
    count = (length + tile - 1) // tile
    seq = torch.repeat_interleave(torch.arange(len(first), device=first.device), count)
    start = (torch.arange(len(seq), device=first.device) - (count.cumsum(0) - count)[seq]) * tile
    size = torch.minimum(length[seq] - start, torch.tensor(tile, device=first.device))
    at, below, above = slot[seq], -((slot - low)[seq] // step), (high - 1 - slot)[seq] // step
    least = below if left is None else torch.maximum(below, start - left)
    most = above if right is None else torch.minimum(above, start + size - 1 + right)
    kept = (size > 0) & (most >= least)
    tiles = (first[seq] + step * start, size, at + step * least, most - least + 1)
    return _grouped(*(t[kept] for t in tiles), step=step)


def _grouped(first_t: Tensor, count_t: Tensor, first_s: Tensor, count_s: Tensor, *, step: int) -> Cover:
    """Tiles of intervals, those of one shape together; many shapes are padded to fewer."""
    shape = torch.stack([count_t, count_s], 1)
    if len(torch.unique(shape, dim=0)) > _SHAPES:
        shape = _rounded(shape)
    shapes, which = torch.unique(shape, dim=0, return_inverse=True)
    groups = []
    for number, (targets, sources) in enumerate(shapes.tolist()):
        mine = which == number
        group = []
        for first, count, width in ((first_t, count_t, targets), (first_s, count_s, sources)):
            place = torch.arange(width, device=first.device)
            index = first[mine, None] + place * step
            group.append(index.masked_fill(place >= count[mine, None], -1))
        groups.append((group[0], group[1]))
    return sorted(groups, key=lambda g: int(g[0][0, 0]))


def _rounded(count: Tensor) -> Tensor:
    """Up to the next of 1, 2, 3, 4, 6, 8, 12, 16, 24, …: at most half as much again."""
    power = 2 ** (count - 1).clamp(min=1).to(torch.float64).log2().floor().long()
    middle = power + power // 2
    return torch.where(count <= 2, count, torch.where(count <= middle, middle, 2 * power))


def axis(cells: Tensor, valid: Tensor, tile: int, step: int = 1) -> list[tuple[list[int], list[int]]]:
    """Tiles of one axis: (targets, sources) of each, from the source cells (targets, kernel) of every target.

    With ``step`` the targets of one remainder stand together, as those of a dilated window do.
    """
    made = []
    for remainder in range(min(step, len(cells))):
        mine = torch.arange(remainder, len(cells), step, device=cells.device)
        for part in mine.split(tile):
            seen = torch.unique(cells[part][valid[part]])
            made.append((part.tolist(), seen.tolist()))
    return made


def product(axes: list[list[tuple[list[int], list[int]]]], targets: tuple, sources: tuple, device: object) -> Cover:
    """The cover of a grid from the tiles of its axes."""
    found: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}
    for tiles in itertools.product(*axes):
        ends = []
        for end, size in ((0, targets), (1, sources)):
            flat = torch.zeros(1, dtype=torch.int64)
            for tile, n in zip(tiles, size, strict=True):
                flat = (flat[:, None] * n + torch.tensor(tile[end], dtype=torch.int64)).flatten()
            ends.append(flat)
        if len(ends[0]) and len(ends[1]):
            found.setdefault((len(ends[0]), len(ends[1])), []).append((ends[0], ends[1]))
    return [
        (torch.stack([t for t, _ in group]).to(device), torch.stack([s for _, s in group]).to(device))  # type: ignore[call-overload]
        for group in found.values()
    ]
