"""A learned bias for each distance, or each class of distances, and head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mpnn import checks
from mpnn.positions.base import ScoreBias
from mpnn.positions.buckets import Buckets, OffsetBuckets, T5Buckets, WindowBuckets


class RelativeBias(ScoreBias):
    """Biases scores by a learned number for the pair's offset and head: ``weight[bucket(source - target)]``.

    Args:
        heads: how many heads.
        buckets: which offsets share a number: ``OffsetBuckets(max_distance)``, ``T5Buckets(...)``,
            ``WindowBuckets(window)`` or a ``Buckets`` of your own. ``RelativeBias.offsets``, ``.t5`` and ``.swin`` make
            them. Offsets beyond the largest one share its number.

    Shapes:
        target_positions, source_positions: integers that broadcast; on a grid with a last dimension of ``axes``
        weight: ``(buckets.count, heads)``, the layout of T5's and Swin's tables
        returns: ``(..., heads)``, float32 at least

    Source: Shaw et al., 2018; Raffel et al. (T5), 2020; Liu et al. (Swin), 2021.

    >>> bias = RelativeBias.t5(heads=4)
    >>> bias(torch.arange(5)[:, None], torch.arange(5)[None]).shape
    torch.Size([5, 5, 4])
    """

    index: Tensor

    def __init__(self, heads: int, buckets: Buckets | None = None) -> None:
        super().__init__()
        self.heads = checks.positive("heads", heads)
        self.buckets = T5Buckets() if buckets is None else buckets
        self.axes = self.buckets.axes
        self.constant("index", self.buckets.table())
        self.weight = nn.Parameter(torch.empty(self.buckets.count, heads))
        self.reset_parameters()

    @classmethod
    def offsets(cls, heads: int, max_distance: int) -> RelativeBias:
        """A number for each offset from -max_distance to max_distance."""
        return cls(heads, OffsetBuckets(max_distance))

    @classmethod
    def t5(cls, heads: int, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True) -> RelativeBias:
        """T5's logarithmic buckets; ``bidirectional=False`` for a causal model."""
        return cls(heads, T5Buckets(buckets, max_distance, bidirectional))

    @classmethod
    def swin(cls, heads: int, window: tuple[int, ...]) -> RelativeBias:
        """Swin's table over the offsets inside a window of the grid."""
        return cls(heads, WindowBuckets(window))

    def reset_parameters(self) -> None:
        """Draws the table from N(0, 0.02²), cut at two units, as Swin does."""
        nn.init.trunc_normal_(self.weight, std=0.02)

    def forward(self, target_positions: Tensor, source_positions: Tensor) -> Tensor:
        offset = source_positions.long() - target_positions.long()
        parts = offset.unbind(-1) if self.axes else (offset,)
        place = torch.zeros_like(parts[0])
        for part, limit in zip(parts, self.buckets.limits, strict=True):
            place = place * (2 * limit + 1) + part.clamp(-limit, limit) + limit
        # First the small table by offset, so that the many pairs cost one look-up each; the heads lie outermost in
        # memory, where dense attention reads them, which also makes the look-up's backward 3 × faster.
        table = self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))[self.index]
        return table.t().index_select(1, place.reshape(-1)).view(self.heads, *place.shape).movedim(0, -1)

    def extra_repr(self) -> str:
        return f"{self.heads}, {self.buckets}"
