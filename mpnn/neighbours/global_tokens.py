"""Global: a few tokens that see all and are seen by all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mpnn.checks import positive
from mpnn.cover import Cover, band
from mpnn.edges import Edges, blocks_of
from mpnn.neighbours.base import Neighbours
from mpnn.slots import device_of, extent, row_numbers, sequences, spread


class Global(Neighbours):
    """The first ``count`` tokens see all and are seen by all: N(i) = {0, …, M - 1} for i < count, else {j : j < count}.

    Targets and sources are numbered from the start of each set, and in a ``batch`` from the start of each graph. It is
    made to stand in an expression: ``Window(256) | Global(16)`` is Longformer's attention.

    Raises:
        TypeError, ValueError: where ``count`` is no int ≥ 1.

    Source: Longformer (Beltagy et al., 2020), `arXiv:2004.05150 <https://arxiv.org/abs/2004.05150>`_.

    Example::

        >>> from mpnn.neighbours import Global
        >>> Global(1).edges(3, 3).source
        tensor([0, 1, 2, 0, 0])
    """

    axes = 1
    enumerates = True
    listed = True
    tiled = True

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = positive("count", count)

    def _ends(self, tokens: Any, targets: int, sources: int, i: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """For targets i: whether each is global, the first source of its graph, its last global one + 1, its end."""
        first, _, low, high, _ = sequences(tokens, targets, sources)
        graph = (torch.searchsorted(first, i.contiguous(), right=True) - 1).clamp(min=0)
        return (
            i - first[graph] < self.count,
            low[graph],
            torch.minimum(low[graph] + self.count, high[graph]),
            high[graph],
        )

    def edges(self, targets: int, sources: int, *, rows: slice | None = None, tokens: Any = None) -> Edges:
        i = row_numbers(rows, targets, device_of(tokens))
        if targets == 0:
            none = i[:0]
            return Edges(none, none, None, none[:, None])
        is_global, low, few, high = self._ends(tokens, targets, sources, i)
        target, source, valid = spread(i, low, torch.where(is_global, high, few), sources)
        start = 0 if rows is None else rows.indices(targets)[0]
        slot = extent(tokens, targets, sources, i)[2]
        return Edges(source, target, None, (source - slot[target - start])[:, None], valid=valid).compact()

    def holds(self, target: Tensor, source: Tensor, targets: int, sources: int, tokens: Any = None) -> Tensor:
        if targets == 0:
            return (target == source) & False
        is_global, low, few, high = self._ends(tokens, targets, sources, target)
        return (source >= low) & (source < torch.where(is_global, high, few))

    def cover(self, targets: int, sources: int, tokens: Any = None) -> Cover:
        first, length, low, high, slot = sequences(tokens, targets, sources)
        seen = length.clamp(max=self.count)
        few = torch.minimum(low + self.count, high)
        return [
            *band(first, seen, slot, low, high, tile=256),
            *band(first + seen, length - seen, slot, low, few, tile=1 << 12),
        ]

    def row_blocks(self, targets: int, sources: int, edges: int) -> Iterator[slice]:
        seen = torch.full((targets,), self.count)
        seen[: self.count] = sources
        return iter(blocks_of(torch.nn.functional.pad(seen.cumsum(0), (1, 0)), edges))

    def degree(self, targets: int, sources: int) -> int:
        return min(sources, self.count + -(-self.count * sources // max(1, targets)))  # on average

    def key(self) -> tuple:
        return (self.count,)

    def extra_repr(self) -> str:
        return f"{self.count}"
