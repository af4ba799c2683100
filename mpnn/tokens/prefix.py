"""Tokens of the model's own in front of those of the data: class tokens, read out at the end, and registers."""

from __future__ import annotations

import torch
from torch import Tensor

from mpnn.tokens.base import Tokens


def prepend(tokens: Tokens, learned: Tensor) -> Tokens:
    """The tokens with ``learned`` rows in front: they take part, at position 0 and at the mean of the coordinates.

    A row of tokens with extra ones in front is no grid any more, so that ``grid`` is dropped.

    Shapes:
        learned: ``(P, C)``
        returns: P + N tokens

    >>> prepend(Tokens(torch.ones(2, 3, 4), positions=torch.arange(3)), torch.zeros(1, 4)).positions
    tensor([0, 0, 1, 2])
    """
    extra = len(learned)
    if tokens.batch is not None:
        raise ValueError("extra tokens cannot stand in front of several graphs, got tokens with batch=")
    mask, positions, coordinates = tokens.mask, tokens.positions, tokens.coordinates
    if mask is not None:
        mask = torch.cat([mask.new_ones(*mask.shape[:-1], extra), mask], dim=-1)
    if positions is not None:
        slots = -2 if tokens.grid is not None and len(tokens.grid) > 1 else -1  # (N, axes) on a grid, else (..., N)
        first = torch.zeros_like(positions.narrow(slots, 0, 1)).repeat_interleave(extra, slots)
        positions = torch.cat([first, positions], slots)
    if coordinates is not None:
        coordinates = torch.cat([coordinates.mean(-2, keepdim=True).repeat_interleave(extra, -2), coordinates], dim=-2)
    x = torch.cat([learned.to(tokens.x.dtype).expand(*tokens.x.shape[:-2], extra, -1), tokens.x], dim=-2)
    return Tokens(x, mask=mask, positions=positions, coordinates=coordinates)
