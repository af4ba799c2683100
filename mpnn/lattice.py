"""Lattice: the windows of one axis of a grid, and what its border shows beyond the end."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

BORDERS = ("zeros", "clamp", "circular", "reflect", "replicate")


class Axis(NamedTuple):
    """The windows of one axis: target t sees the cells stride · t - before + dilation · k, 0 ≤ k < kernel."""

    kernel: int
    stride: int
    dilation: int
    before: int  # padding
    after: int
    border: str

    @property
    def span(self) -> int:
        """Cells from a window's first to its last."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def middle(self) -> int:
        """The cell in the middle of the first target's window."""
        return (self.kernel - 1) // 2 * self.dilation - self.before

    @property
    def relations(self) -> int:
        """How many offsets there are."""
        return 2 * self.kernel - 1 if self.border == "clamp" else self.kernel

    def targets(self, n: int) -> int:
        """The number of targets for n source cells."""
        return (n + self.before + self.after - self.span) // self.stride + 1

    def check(self, rule: Any, number: int, n: int) -> None:
        """Refuse a length n that the window or the border does not fit, of axis ``number`` of a rule."""
        k, d, padding = self.kernel, self.dilation, max(self.before, self.after)
        if self.border == "clamp" and n < k * d:
            raise ValueError(f"border='clamp' with kernel {k} and dilation {d} needs length ≥ {k * d}, got {n}")
        limit = {"reflect": n - 1, "circular": n}.get(self.border)
        if limit is not None and padding > limit:
            raise ValueError(
                f"border={self.border!r} needs padding ≤ {limit} on axis {number} of length {n}, got {padding}"
            )
        least = self.span - self.before - self.after
        if n < least:
            raise ValueError(f"expected axis {number} of length ≥ {least} for {rule}, got {n}")

    def cells(self, n: int, t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """For target coordinates t: source cell, validity, offset and relation, each (len(t), kernel)."""
        k, d = self.kernel, self.dilation
        slot = torch.arange(k, device=t.device)
        if self.border == "clamp":
            length = (n - t % d + d - 1) // d  # cells of the same remainder: dilated windows shift among these
            start = torch.minimum((t // d - k // 2).clamp(min=0), length - k)
            raw = (start[:, None] + slot) * d + (t % d)[:, None]
            offset = raw - t[:, None]
            return raw, torch.ones_like(raw, dtype=torch.bool), offset, offset // d + k - 1
        raw = (t * self.stride - self.before)[:, None] + slot * d
        inside = (raw >= 0) & (raw < n)
        offset = raw - (t * self.stride + self.middle)[:, None]
        if self.border == "circular":
            cell = raw % n
        elif self.border == "reflect":
            cell = n - 1 - (n - 1 - raw.abs()).abs()
        else:
            cell = raw.clamp(0, n - 1)
        valid = inside if self.border == "zeros" else torch.ones_like(inside)
        return cell, valid, offset, slot.expand_as(raw)


def windows(lines: list[Axis], size: tuple[int, ...], i: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For targets i of a grid: source cell, validity and relation (len(i), *kernel), offset (len(i), *kernel, axes)."""
    shape = (i.shape[0], *(line.kernel for line in lines))
    cell = torch.zeros(shape, dtype=torch.int64, device=i.device)
    relation, valid = cell, torch.ones(shape, dtype=torch.bool, device=i.device)
    offsets: list[Tensor] = []
    rest = i
    for a in reversed(range(len(lines))):
        view = [shape[x] if x in (0, a + 1) else 1 for x in range(len(shape))]
        out = lines[a].targets(size[a])
        cells, inside, offset, kind = (x.reshape(view) for x in lines[a].cells(size[a], rest % out))
        rest = rest // out
        cell = cell + cells * math.prod(size[a + 1 :])
        valid = valid & inside
        offsets.insert(0, offset.expand(shape))
        relation = relation + kind * math.prod(line.relations for line in lines[a + 1 :])
    return cell, valid, torch.stack(offsets, -1), relation
