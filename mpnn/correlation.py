"""Correlations of long sequences by the FFT: plain, without a backward, and with a backward of three FFTs.

Samples (B, M, in) and taps (T, out, in/groups) make outputs (B, out, N); ``length`` is that of the transforms.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mpnn.functions import batched

BLOCK, ROWS = 1 << 19, 16  # numbers of one transform of several lines, and the fewest lines


def fast_length(n: int) -> int:
    """The smallest 2^a · 3^b · 5^c ≥ n, for which FFTs are fast."""
    best = 1 << max(0, n - 1).bit_length()
    fives = 1
    while fives < best:
        odd = fives
        while odd < best:
            best = min(best, odd << (-(-n // odd) - 1).bit_length())
            odd *= 3
        fives *= 5
    return best


def taps_of(neighbours: Any, targets: int, sources: int) -> slice:
    """Which relations are taps: those of the distances that a call of these sizes has, ascending."""
    first = getattr(neighbours, "max_tokens", sources) - sources
    return slice(first, first + (sources if neighbours.causal else sources + targets - 1))


def plain(x: Tensor, taps: Tensor, targets: int, groups: int, length: int) -> Tensor:
    """The correlation by FFT as plain torch operations: x (B, M, in), taps (T, out, in/groups) → (B, out, N)."""
    seen = torch.fft.rfft(x.transpose(1, 2), length)
    kernel = torch.fft.rfft(taps.permute(1, 2, 0).flip(-1), length)
    return _outputs(torch.fft.irfft(_filtered(seen, kernel, groups), length), taps.shape[0] - targets, targets)


def forward_only(x: Tensor, taps: Tensor, targets: int, groups: int, length: int) -> Tensor:
    """The same without a backward: nothing is kept, single channels run some at a time, which stay in the cache."""
    first, rows = taps.shape[0] - targets, max(ROWS, BLOCK // length)
    if x.shape[2] != groups or taps.shape[1] != groups:
        made = _filtered(torch.fft.rfft(_lines(x), length), torch.fft.rfft(_lines_of_taps(taps), length), groups)
        return _outputs(torch.fft.irfft(made, length), first, targets)
    if groups <= rows:
        seen = torch.fft.rfft(_lines(x), length)
        seen *= torch.fft.rfft(_lines_of_taps(taps)[:, 0], length)
        return _outputs(torch.fft.irfft(seen, length), first, targets)
    lines, kernels = _lines(x), _lines_of_taps(taps)[:, 0]
    y = lines.new_empty(x.shape[0], groups, targets)
    for a in range(0, groups, rows):
        seen = torch.fft.rfft(lines[:, a : a + rows], length)
        seen *= torch.fft.rfft(kernels[a : a + rows], length)
        y[:, a : a + rows] = _outputs(torch.fft.irfft(seen, length), first, targets)
    return y


class Correlation(torch.autograd.Function):
    """The same with the backward of a correlation: three FFTs, where autograd's takes six, some of full length.

    With gradients enabled in the backward (double backward) it makes the spectra anew, as plain torch operations.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, targets: int, groups: int, length: int) -> Tensor:
        ctx.length, ctx.targets, ctx.groups = length, targets, groups
        seen, kernel = torch.fft.rfft(_lines(x), length), torch.fft.rfft(_lines_of_taps(taps), length)
        ctx.save_for_backward(x, taps, seen, kernel)
        return _outputs(torch.fft.irfft(_filtered(seen, kernel, groups), length), taps.shape[0] - targets, targets)

    @staticmethod
    @batched
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, taps, seen, kernel = ctx.saved_tensors
        length, groups = ctx.length, ctx.groups
        if torch.is_grad_enabled():
            seen = torch.fft.rfft(x.transpose(1, 2), length)
            kernel = torch.fft.rfft(taps.permute(1, 2, 0).flip(-1), length)
        grad = torch.fft.rfft(F.pad(grad, (taps.shape[0] - ctx.targets, 0)), length)
        grad, seen = grad.unflatten(1, (groups, -1)), seen.unflatten(1, (groups, -1))
        kernel = kernel.unflatten(0, (groups, -1))
        to_x = to_taps = None
        if ctx.needs_input_grad[0]:
            made = _product("bgof,goif->bgif", grad, kernel.conj())
            to_x = torch.fft.irfft(made.flatten(1, 2), length)[..., : x.shape[1]].transpose(1, 2)
        if ctx.needs_input_grad[1]:
            single = grad.shape[2] == seen.shape[2] == 1
            made = (
                torch.einsum("bgof,bgif->goif", grad, seen.conj())
                if not single
                else (grad * seen.conj()).sum(0)[:, None]
            )
            to_taps = torch.fft.irfft(made.flatten(0, 1), length)[..., : taps.shape[0]].flip(-1).permute(2, 0, 1)
        return to_x, to_taps, None, None, None


def _filtered(seen: Tensor, kernel: Tensor, groups: int) -> Tensor:
    """Spectra of samples (B, in, F) and of kernels (out, in/groups, F) → (B, out, F)."""
    seen, kernel = seen.unflatten(1, (groups, -1)), kernel.unflatten(0, (groups, -1))
    return _product("bgif,goif->bgof", seen, kernel).flatten(1, 2)


def _product(indices: str, a: Tensor, b: Tensor) -> Tensor:
    """The einsum of spectra (B, G, ·, F) and of kernels (G, out, in, F), elementwise where groups are one channel."""
    single = a.shape[2] == b.shape[1] == b.shape[2] == 1
    return a * b[:, :, 0] if single else torch.einsum(indices, a, b)


def _lines(x: Tensor) -> Tensor:
    """(B, N, C) → (B, C, N), contiguous: sample by sample where they are large, since torch has a fast way for 2-D."""
    if x.shape[0] > 1 and x.shape[1] * x.shape[2] < BLOCK // 16:
        return x.transpose(1, 2).contiguous()
    if x.shape[0] == 1:
        return x[0].t().contiguous()[None]
    return torch.stack([sample.t().contiguous() for sample in x])


def _lines_of_taps(taps: Tensor) -> Tensor:
    """(T, out, in/groups) → (out, in/groups, T), the last tap first."""
    return taps.permute(1, 2, 0).flip(-1).contiguous()  # no copy more: SharedKernel keeps them in lines


def _outputs(made: Tensor, first: int, count: int) -> Tensor:
    """``count`` outputs from ``first`` on; targets before the first source have nothing."""
    return made[..., first : first + count] if first >= 0 else F.pad(made[..., : first + count], (-first, 0))
