"""A learned code for each place."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpnn import checks
from mpnn.positions.base import PositionCode, check_values


class Learned(PositionCode):
    """Adds row p of a table to the token at position p: ``x + weight[p]``.

    On a grid of shape ``max_length`` the rows are its cells in row-major order and positions have an axis for each
    number; without positions the tokens are the whole grid.

    Args:
        channels: channels of the tokens.
        max_length: an int, or the grid's shape.

    Shapes:
        x: ``(..., N, channels)``
        positions: integer ``(N,)`` or ``(..., N)``, on a grid one dimension more; 0 … N-1 when None
        weight: ``(prod(max_length), channels)``

    Raises:
        ValueError: for more tokens than ``max_length``.
        IndexError: for a position outside of the table.

    Source: Gehring et al., 2017; GPT-2; on a grid: Dosovitskiy et al. (ViT), 2021.

    >>> Learned(4, 8)(torch.zeros(2, 3, 4)).shape
    torch.Size([2, 3, 4])
    """

    def __init__(self, channels: int, max_length: int | Sequence[int]) -> None:
        super().__init__()
        self.channels = checks.positive("channels", channels)
        self.axes = 0 if isinstance(max_length, int) else len(max_length)
        self.size = (max_length,) if isinstance(max_length, int) else tuple(max_length)
        for n in self.size:
            checks.positive("max_length", n)
        self.weight = nn.Parameter(torch.empty(math.prod(self.size), channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the table from N(0, 0.02²), as GPT-2, BERT and ViT do."""
        nn.init.normal_(self.weight, std=0.02)

    def default(self, count: int, device: torch.device) -> Tensor:
        rows = len(self.weight)
        if self.axes and count != rows:
            raise ValueError(
                f"expected {rows} tokens for max_length {self.size}, got {count}; pass positions= or resize() the table"
            )
        if count > rows:
            raise ValueError(f"length {count} > max_length {rows}; resize({count}) gives a longer, interpolated table")
        return self.weight[:count]

    def code(self, positions: Tensor) -> Tensor:
        places = positions.long()
        if self.axes == 0:
            places = places.unsqueeze(-1)
        row = torch.zeros_like(places[..., 0])
        for axis, size in enumerate(self.size):
            place = places[..., axis]
            check_values((place >= 0) & (place < size), f"expected positions from 0 to {size - 1}", place)
            row = row * size + place
        return F.embedding(row, self.weight)

    def resize(self, max_length: int | Sequence[int]) -> Learned:
        """A code of another length or shape with this table interpolated (linear; bicubic on two axes, as ViT)."""
        new = Learned(self.channels, max_length).to(self.weight)
        if len(new.size) != len(self.size):
            raise ValueError(f"expected a max_length with {len(self.size)} numbers like {self.size}, got {new.size}")
        if len(self.size) > 3:
            raise ValueError(f"torch interpolates up to three axes, got {self.size}")
        mode = ("linear", "bicubic", "trilinear")[len(self.size) - 1]
        table = self.weight.detach().float().T.unflatten(1, self.size).unsqueeze(0)
        with torch.no_grad():
            new.weight.copy_(F.interpolate(table, new.size, mode=mode, align_corners=False)[0].flatten(1).T)
        return new

    def extra_repr(self) -> str:
        return f"{self.channels}, max_length={self.size if self.axes else self.size[0]}"
