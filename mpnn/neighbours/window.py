"""Window: each token sees the tokens within a distance of its own slot."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mpnn.checks import positive
from mpnn.cover import Cover, band
from mpnn.edges import Edges
from mpnn.neighbours.base import Neighbours
from mpnn.slots import device_of, extent, row_numbers, sequences


class Window(Neighbours):
    """A sliding window: N(i) = {i + M - N + s·dilation : -left ≤ s ≤ right}, cut off at the ends.

    ``right`` defaults to ``left``; ``right=0`` is causal. The window counts slots, not positions. With N targets and M
    sources the ends are aligned: target i sits at i + M - N. With ``batch`` it stays inside each graph.

    Relations: the step s, ascending, left + right + 1 of them.

    Raises:
        TypeError, ValueError: where a reach is no int ≥ 0 or the dilation no int ≥ 1.

    Source: Longformer (Beltagy et al., 2020), `arXiv:2004.05150 <https://arxiv.org/abs/2004.05150>`_.

    Example::

        >>> from mpnn.neighbours import Window
        >>> Window(1, 0).edges(3, 3).source
        tensor([0, 0, 1, 1, 2])
    """

    axes = 1
    counts_slots = True
    enumerates = True
    listed = True
    tiled = True

    def __init__(self, left: int, right: int | None = None, *, dilation: int = 1) -> None:
        super().__init__()
        self.left = positive("left", left, 0)
        self.right = self.left if right is None else positive("right", right, 0)
        self.dilation = positive("dilation", dilation)
        self.relations = self.left + self.right + 1
        self.causal = self.right == 0

    def edges(self, targets: int, sources: int, *, rows: slice | None = None, tokens: Any = None) -> Edges:
        i = row_numbers(rows, targets, device_of(tokens))
        low, high, slot = extent(tokens, targets, sources, i)
        step = torch.arange(-self.left, self.right + 1, device=i.device)
        source = slot[:, None] + step * self.dilation
        valid = (source >= low[:, None]) & (source < high[:, None])
        relation = (step + self.left).expand_as(source)
        offset = (step * self.dilation).expand_as(source)
        target = i[:, None].expand_as(source)
        inside = source.clamp(min=0).clamp(max=max(sources - 1, 0)) if torch.compiler.is_compiling() else source
        flat = (inside.reshape(-1), target.reshape(-1), relation.reshape(-1), offset.reshape(-1, 1))
        return Edges(*flat, valid=valid.reshape(-1)).compact()

    def holds(self, target: Tensor, source: Tensor, targets: int, sources: int, tokens: Any = None) -> Tensor:
        low, high, slot = extent(tokens, targets, sources, target)
        step, d = source - slot, self.dilation
        near = (step >= -self.left * d) & (step <= self.right * d) & (source >= low) & (source < high)
        return near if d == 1 else near & (step % d == 0)

    def cover(self, targets: int, sources: int, tokens: Any = None) -> Cover:
        first, length, low, high, slot = sequences(tokens, targets, sources)
        residue = torch.arange(min(self.dilation, max(1, targets)), device=first.device)
        first, low, high, slot = (
            (t[:, None] + r).flatten()
            for t, r in ((first, residue), (low, 0 * residue), (high, 0 * residue), (slot, residue))
        )
        length = ((length[:, None] - residue).clamp(min=0) + self.dilation - 1).flatten() // self.dilation
        tile = min(256, max(32, 3 * self.relations // 4))  # the fused backward wants long tiles, its forward short ones
        return band(first, length, slot, low, high, left=self.left, right=self.right, step=self.dilation, tile=tile)

    def within(self, other: Neighbours) -> bool:
        return super().within(other) or any(
            isinstance(rule, Window)
            and self.dilation % rule.dilation == 0
            and self.left * self.dilation <= rule.left * rule.dilation
            and self.right * self.dilation <= rule.right * rule.dilation
            for rule in other.operands()
        )

    def degree(self, targets: int, sources: int) -> int:
        return self.relations

    def key(self) -> tuple:
        return self.left, self.right, self.dilation

    def extra_repr(self) -> str:
        dilated = f", dilation={self.dilation}" if self.dilation > 1 else ""
        return f"{self.left}, {self.right}{dilated}"
