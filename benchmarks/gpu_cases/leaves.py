"""Leaves on a device, and what is asked of results in their dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.case import Work
from benchmarks.tensors import normal

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
SQUARE = 2**28  # entries of a mask or of scores over all pairs: beyond it a peer that makes them is left out


def on(device: str, dtype: torch.dtype, *shape: int, seed: int = 1) -> Tensor:
    """A leaf of the same numbers on every device."""
    return normal(*shape, seed=seed).detach().to(device, dtype).requires_grad_()


def given(device: str, dtype: torch.dtype, *shape: int) -> dict[str, Tensor]:
    """q, k, v."""
    return {name: on(device, dtype, *shape, seed=seed) for seed, name in enumerate("qkv", 1)}


def bytes_of(work: Work, dtype: torch.dtype) -> Work:
    """Work that was counted for four bytes a number."""
    part = torch.finfo(dtype).bits / 32
    return Work(work.flops, work.streamed * part, tuple((b * part, t * part) for b, t in work.gathers))
