"""Long correlations of single channels by compiled Fourier transforms, with a backward of their own.

Tokens stay as they lie, channels side by side: no transposed copy is made, and no spectrum outlives its channels.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from mpnn.correlation import fast_length, plain
from mpnn.functions import batched
from mpnn.native.calls import at
from mpnn.native.threads import run

_LEAST = 8  # jobs that channels alone should make; fewer are cut by batch entries
_LANES = 8  # channels of a job, as mpnn.native.butterflies has, which would import numba here
_TYPES: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}


@dataclasses.dataclass(frozen=True)
class Long:
    """y_i = Σ_t k_t · x_(i - (N - 1) + t), each channel with its own taps: x (B, M, C), k (T, C) → y (B, N, C)."""

    x: Tensor
    taps: Tensor
    targets: int

    def _run(self, name: str, buffers: int, tensors: list[Tensor | None]) -> None:
        """A pass over these tensors of three axes, whose addresses and steps it reads."""
        from mpnn.native import long_jobs
        from mpnn.native.fourier import factors

        sizes = self.sizes
        number, channels, length = _TYPES[self.x.dtype], sizes[2], sizes[3]
        table = torch.from_numpy(factors(length, number is np.float64))
        steps = [n for t in tensors for n in ((0, 0, 0) if t is None else t.stride())]
        numbers = [*sizes, *at(*tensors), *steps, table.data_ptr()]
        jobs = -(-channels // _LANES) * self.chunks
        space = buffers * 2 * length * _LANES * self.x.element_size()
        run(getattr(long_jobs, name)(number), jobs, 12 * buffers * sizes[0] * channels * length, space, numbers)

    @functools.cached_property
    def each(self) -> int:
        """How many batch entries a job has: few, where channels alone make few jobs."""
        batch, blocks = self.x.shape[0], -(-self.x.shape[2] // _LANES)
        return max(1, -(-batch // max(1, _LEAST // max(1, blocks))))

    @functools.cached_property
    def chunks(self) -> int:
        """How many jobs share a block of channels."""
        return -(-self.x.shape[0] // self.each)

    @functools.cached_property
    def blank(self) -> int:
        """How many targets stand before the first source."""
        return max(0, self.targets - self.taps.shape[0])

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """What both passes read first."""
        from mpnn.native.fourier import length_for

        (batch, sources, channels), taps = self.x.shape, self.taps.shape[0]
        length, begin = length_for(-(-(sources + self.targets - 1) // 2)), max(0, taps - self.targets)
        return batch, self.each, channels, length, sources, taps, begin, self.targets - self.blank

    def forward(self) -> Tensor:
        """The outputs."""
        y = self.x.new_empty(self.x.shape[0], self.targets, self.x.shape[2])
        y[:, : self.blank] = 0
        self._run("correlate", 2, [self.x, self.taps[None], y[:, self.blank :]])
        return y

    def backward(self, grad: Tensor, needed: tuple[bool, bool]) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of x and of the taps."""
        x, taps = self.x, self.taps
        lines = taps.stride(0) < taps.stride(1)  # the gradient lies as the taps do, so that it need not be copied
        d_x = x.new_empty(x.shape) if needed[0] else None
        parts = taps.new_empty(self.chunks, *(taps.shape[::-1] if lines else taps.shape))
        by_row = parts.transpose(1, 2) if lines else parts
        self._run("gradients", 4, [x, taps[None], grad[:, self.blank :], d_x, by_row if needed[1] else None])
        if not needed[1]:
            return d_x, None
        total = parts[0] if self.chunks == 1 else parts.sum(0)
        return d_x, total.t() if lines else total


class Correlation(Function):
    """:class:`Long`, with a backward; where that is differentiated too, by plain torch operations."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, targets: int) -> Tensor:
        ctx.save_for_backward(x, taps)
        ctx.targets = targets
        return Long(x, taps, targets).forward()

    @staticmethod
    @batched
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, taps = ctx.saved_tensors
        needed = ctx.needs_input_grad
        if not torch.is_grad_enabled():
            return *Long(x, taps, ctx.targets).backward(grad, needed[:2]), None
        length = fast_length(x.shape[1] + ctx.targets - 1)
        y = plain(x, taps[..., None], ctx.targets, x.shape[2], length).transpose(1, 2)
        wanted = [t for t, need in zip((x, taps), needed, strict=False) if need]
        found = iter(torch.autograd.grad(y, wanted, grad, create_graph=True))
        return next(found) if needed[0] else None, next(found) if needed[1] else None, None
