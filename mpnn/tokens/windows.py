"""Cutting a grid of values into patches and joining patches again, on any number of axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mpnn import checks


def checked_windows(patch: Any, stride: Any, pad: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """``patch`` and ``stride`` as tuples, refused where a stride would skip values between two patches."""
    for name, value in (("patch", patch), ("stride", stride)):
        if name == "stride" and value is None:
            continue
        if not isinstance(value, Sequence) or not all(isinstance(n, int) for n in value) or not value:
            raise TypeError(f"expected {name} to be a tuple of one int an axis, as (4, 4) for images, got {value!r}")
        if min(value) < 1:
            raise ValueError(f"expected every number of {name} to be at least 1, got {tuple(value)}")
    patch = tuple(patch)
    stride = patch if stride is None else tuple(stride)
    if len(stride) != len(patch):
        raise ValueError(f"expected stride to have {len(patch)} numbers like patch {patch}, got {stride}")
    if any(s > k for s, k in zip(stride, patch, strict=True)):
        raise ValueError(f"stride {stride} would skip values between patches of {patch}; a stride is at most the patch")
    checks.one_of("pad", pad, ("refuse", "pad"))
    return patch, stride


def windows_grid(size: Sequence[int], patch: tuple[int, ...], stride: tuple[int, ...], pad: str) -> tuple[int, ...]:
    """How many patches each axis of ``size`` holds, with the end padded or, under ``pad="refuse"``, exactly covered."""
    if pad == "refuse":
        for axis, (n, k, s) in enumerate(zip(size, patch, stride, strict=True)):
            if n < k or (n - k) % s:
                over = f"shorter than a patch of {k}" if n < k else f"{(n - k) % s} too long for stride {s}"
                raise ValueError(
                    f"size {tuple(size)} cannot be cut into patches of {patch}: axis {axis} of {n} is {over}; "
                    'pass pad="pad" to fill the end with zeros, or crop'
                )
        return tuple((n - k) // s + 1 for n, k, s in zip(size, patch, stride, strict=True))
    return tuple(max(0, -(-(n - k) // s)) + 1 for n, k, s in zip(size, patch, stride, strict=True))


def cut(values: Tensor, patch: tuple[int, ...], stride: tuple[int, ...], pad: str) -> tuple[Tensor, tuple[int, ...]]:
    """Patches in row-major order and their grid; the values of one patch run as a convolution's kernel does.

    Shapes:
        values: ``(..., C, *size)``
        returns: ``(..., N, C * prod(patch))``
    """
    axes = len(patch)
    size = values.shape[-axes:]
    grid = windows_grid(size, patch, stride, pad)
    ends = [(g - 1) * s + k - n for g, s, k, n in zip(grid, stride, patch, size, strict=True)]
    if any(end > 0 for end in ends):
        values = F.pad(values, [n for end in reversed(ends) for n in (0, end)])
    lead = values.shape[: -axes - 1]
    for axis in range(axes):
        values = values.unfold(len(lead) + 1 + axis, patch[axis], stride[axis])
    values = values.movedim(len(lead), len(lead) + axes)  # (..., *grid, C, *patch)
    return values.reshape(*lead, math.prod(grid), values.shape[len(lead) + axes] * math.prod(patch)), grid


def join(patches: Tensor, size: Sequence[int], patch: tuple[int, ...], stride: tuple[int, ...], pad: str) -> Tensor:
    """The inverse of ``cut``: every value is the mean of the patches that hold it, and padding is cut off.

    Shapes:
        patches: ``(..., N, C * prod(patch))``
        returns: ``(..., C, *size)``
    """
    grid = windows_grid(size, patch, stride, pad)
    if patches.ndim < 2 or patches.shape[-2] != math.prod(grid) or patches.shape[-1] % math.prod(patch):
        raise ValueError(
            f"expected patches of shape (..., {math.prod(grid)}, C * {math.prod(patch)}) for size {tuple(size)}, "
            f"got {tuple(patches.shape)}"
        )
    full = [(g - 1) * s + k for g, s, k in zip(grid, stride, patch, strict=True)]
    cells = math.prod(full)
    slots = cut(torch.arange(cells, device=patches.device).view(1, *full), patch, stride, pad)[0].flatten()
    values = patches.unflatten(-1, (-1, math.prod(patch))).movedim(-2, -3).flatten(-2)
    total = values.new_zeros(*values.shape[:-1], cells).index_add(-1, slots, values)
    count = values.new_zeros(cells).index_add(0, slots, values.new_ones(1).expand(len(slots)))
    whole = (total / count).unflatten(-1, full)
    return whole[(..., *(slice(n) for n in size))]
