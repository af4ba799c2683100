"""Where tokens stand and which of them are real: counted places, places on a grid, masks from lengths."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mpnn import checks


def mask_from_lengths(lengths: Tensor, length: int, *, side: str = "right") -> Tensor:
    """The mask of sequences padded to ``length``: True for the real tokens, whatever their ids are.

    Shapes:
        lengths: integer ``(...)``
        returns: bool ``(..., length)``

    Raises:
        ValueError: if ``side`` is neither "right" nor "left" (the side of the padding).

    >>> mask_from_lengths(torch.tensor([1, 3]), 3)
    tensor([[ True, False, False],
            [ True,  True,  True]])
    """
    checks.one_of("side", side, ("right", "left"))
    slots = torch.arange(length, device=lengths.device)
    if side == "right":
        return slots < lengths.unsqueeze(-1)
    return slots >= length - lengths.unsqueeze(-1)


def counted_positions(mask: Tensor, batch: Tensor | None = None) -> Tensor:
    """The place of each real token among the real tokens before it, ``cumsum(mask) - 1``, restarting in each graph.

    Masked tokens get the place of the last real token before them, at least 0, so that a table can be looked up.

    Shapes:
        mask: bool ``(..., N)``
        batch: integer ``(N,)``, sorted; needs a mask of shape ``(N,)``
        returns: int64 ``(..., N)``

    >>> counted_positions(torch.tensor([False, True, True, True]), torch.tensor([0, 0, 1, 1]))
    tensor([0, 0, 0, 1])
    """
    counted = mask.cumsum(-1)
    if batch is not None:
        # The first slot of each token's graph; what was counted before that slot is taken off.
        first = torch.searchsorted(batch.contiguous(), batch.contiguous())
        counted = counted - (counted - mask.long())[first]
    return (counted - 1).clamp(min=0)


def grid_positions(grid: tuple[int, ...], device: torch.device | None = None) -> Tensor:
    """The places of a grid's cells in row-major order: the last axis runs fastest.

    Shapes:
        returns: int64 ``(prod(grid), len(grid))``

    >>> grid_positions((3, 4))[3:5]
    tensor([[0, 3],
            [1, 0]])
    """
    axes = torch.meshgrid(*(torch.arange(size, device=device) for size in grid), indexing="ij")
    return torch.stack(axes, dim=-1).reshape(math.prod(grid), len(grid))
