"""Long correlations of single channels by compiled Fourier transforms, with a backward of their own.

Tokens stay as they lie, channels side by side: no transposed copy is made, and no spectrum outlives its channels.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from mpnn.correlation import fast_length, plain
from mpnn.native.jobs import run

_LEAST = 8  # jobs that channels alone should make; fewer are cut by batch entries
_ROW = 16  # channels of a job


@dataclasses.dataclass(frozen=True)
class Long:
    """y_i = Σ_t k_t · x_(i - (N - 1) + t), each channel with its own taps: x (B, M, C), k (T, C) → y (B, N, C)."""

    x: Tensor
    taps: Tensor
    targets: int

    def _common(self) -> tuple[Any, tuple[int, ...], Tensor, int, int]:
        """Sizes and factors; the first output that has sources; how many jobs there are."""
        from mpnn.native.fourier import factors, length_for

        (batch, sources, channels), taps = self.x.shape, self.taps.shape[0]
        blocks = -(-channels // _ROW)
        each = -(-batch // max(1, min(batch, _LEAST // blocks)))
        length = length_for(sources + self.targets - 1)
        begin, blank = max(0, taps - self.targets), max(0, self.targets - taps)
        sizes = (batch, each, channels, length, sources, taps, begin, self.targets - blank)
        double = self.x.dtype == torch.float64
        table = torch.from_numpy(factors(length, double))
        return (np.float64 if double else np.float32)(1), sizes, table, blank, blocks * -(-batch // each)

    def forward(self) -> Tensor:
        """The outputs."""
        from mpnn.native.long_jobs import correlate

        one, sizes, table, blank, jobs = self._common()
        x, taps = self.x, self.taps
        y = x.new_empty(x.shape[0], self.targets, x.shape[2])
        y[:, :blank] = 0
        inside = y[:, blank:]
        given = (x.data_ptr(), taps.data_ptr(), inside.data_ptr())
        steps = (x.stride(), (0, *taps.stride()), inside.stride())

        def work(first: int, end: int) -> None:
            space = [x.new_empty(sizes[3], _ROW) for _ in range(2)]
            correlate(first, end, one, sizes, *steps, given, table.data_ptr(), tuple(t.data_ptr() for t in space))

        run(work, jobs, _cost(sizes))
        return y

    def backward(self, grad: Tensor, needed: tuple[bool, bool]) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of x and of the taps."""
        from mpnn.native.long_jobs import gradients

        one, sizes, table, blank, jobs = self._common()
        x, taps = self.x, self.taps
        inside = grad[:, blank:]
        chunks = -(-x.shape[0] // sizes[1])
        d_x = x.new_empty(x.shape) if needed[0] else None
        lines = taps.stride(0) < taps.stride(1)  # the gradient lies as the taps do, so that it need not be copied
        d_taps = taps.new_empty(chunks, *(taps.shape[::-1] if lines else taps.shape))
        by_row = d_taps.transpose(1, 2) if lines else d_taps
        given = tuple(t.data_ptr() for t in (x, taps, inside))
        made = (0 if d_x is None else d_x.data_ptr(), d_taps.data_ptr() if needed[1] else 0)
        d_x_steps = x.stride() if d_x is None else d_x.stride()
        steps = (x.stride(), (0, *taps.stride()), inside.stride(), d_x_steps, by_row.stride())

        def work(first: int, end: int) -> None:
            space = [x.new_empty(sizes[3], _ROW) for _ in range(4)]
            gradients(first, end, one, sizes, *steps, given, made, table.data_ptr(), tuple(t.data_ptr() for t in space))

        run(work, jobs, 2 * _cost(sizes))
        if not needed[1]:
            return d_x, None
        total = d_taps[0] if chunks == 1 else d_taps.sum(0)
        return d_x, total.t() if lines else total


def _cost(sizes: tuple[int, ...]) -> int:
    batch, _, channels, length = sizes[:4]
    return 12 * batch * channels * length


class Correlation(Function):
    """:class:`Long`, with a backward; where that is differentiated too, by plain torch operations."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, targets: int) -> Tensor:
        ctx.save_for_backward(x, taps)
        ctx.targets = targets
        return Long(x, taps, targets).forward()

    @staticmethod
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
