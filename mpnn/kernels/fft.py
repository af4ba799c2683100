"""fft: kernels shared over a sequence, by ``F.conv1d`` where they are short and by the FFT where they are long.

One weight per distance of two tokens makes the layer a correlation, y_i = Σ_t w_t x_{i - (N-1) + t}: N + M - 1 taps, or
the M that do not look ahead where it is causal. Both ways run on (B, C, tokens). Half precision is computed in float32.
The FFT's rounding is that of the largest values anywhere in the sequence: about 1e-7 of them in float32.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mpnn.checks import wide
from mpnn.kernels.base import Call
from mpnn.spec import Spec

name = "fft"

# Measured on the CPU: an FFT's operation takes as long as one of a convolution. The spectrum of a matrix of channels is
# also transposed and multiplied, which takes as long as so many transforms, more where it leaves the cache.
_MATRIX, _LARGE_MATRIX, _CACHE = 6, 30, 1 << 22


def unsupported(spec: Spec) -> list[str]:
    """Why this call is no correlation over one sequence."""
    why = []
    if spec.weight != "SharedKernel" or spec.neighbours not in ("AllTokens", "Full"):
        why.append("needs AllTokens(max_tokens=m) or Full with SharedKernel: one weight per distance of two tokens")
    if spec.fixed:
        why.append("fixed=True has no kernel: every weight is 1")
    if spec.reduce != "sum" or spec.normalise is not None:
        why.append("sums without normalisation only")
    if spec.pair_mask or spec.edge_weight or spec.edge_attr:
        why.append("pair_mask and edge data make the kernel depend on the place")
    if spec.ragged:
        why.append("batch: each graph would be a sequence of its own; pad them to leading dimensions with mask=")
    if spec.targets == 0 or spec.sources == 0:
        why.append("there is no token to convolve")
    return why


def run(call: Call, reference: Any) -> Tensor:
    """The aggregate: (..., N, C)."""
    rule, value, n = call.weight, call.value, call.targets
    if torch.is_autocast_enabled(value.device.type):
        with torch.autocast(value.device.type, enabled=False):
            return run(call, reference)
    x, dtype = value, wide(value.dtype)
    if rule.heads is not None:  # the channels of a head are samples of one channel
        x = x.reshape(call.entries, rule.heads, call.sources, -1).permute(0, 3, 1, 2).flatten(0, 1)
    else:
        x = x.reshape(call.entries, call.sources, -1).transpose(1, 2)
    x, taps = x.to(dtype), _taps(call).to(dtype)
    groups = rule.heads or rule.groups
    if by_fft(x.shape[0], taps.shape[0], taps.shape[1], taps.shape[2], call.sources, n):
        plain = call.transformed or torch.compiler.is_compiling()
        y = (_long if plain else _Long.apply)(x, taps, n, groups)
    else:
        y = F.conv1d(F.pad(x, (n - 1, taps.shape[2] - call.sources)), taps, groups=groups)
    y = y.to(value.dtype)
    if rule.heads is not None:
        y = y.unflatten(0, (call.entries, -1)).permute(0, 3, 2, 1).flatten(2)
    else:
        y = y.transpose(1, 2)
    return call.blank_targets(y.reshape(*call.lead, n, rule.after))


def _taps(call: Call) -> Tensor:
    """The weights of the distances that this call has, ascending: (out, in/groups, taps)."""
    rule, neighbours = call.weight, call.neighbours
    limit = getattr(neighbours, "max_tokens", call.sources)
    first, count = limit - call.sources, call.sources if neighbours.causal else call.sources + call.targets - 1
    weight = rule.matrices()
    if torch.compiler.is_compiling():  # a slice would compile once more where it is the whole
        weight = weight.index_select(0, first + torch.arange(count, device=weight.device))
    else:
        weight = weight[first : first + count]
    return weight.t()[:, None] if rule.heads is not None else weight.permute(1, 2, 0)


def by_fft(batch: int, out: int, per_group: int, taps: int, sources: int, targets: int) -> bool:
    """Whether the FFT is the faster way; never where torch.compile knows no lengths."""
    if not all(isinstance(k, int) for k in (batch, taps, sources, targets)):
        return False
    length = fast_length(sources + targets - 1)
    matrix = 1 if per_group == 1 else _MATRIX if 4 * out * per_group * length <= _CACHE else _LARGE_MATRIX
    transforms = 2 * batch * out + matrix * out * per_group
    return 2 * batch * out * per_group * targets * taps > transforms * 2.5 * length * math.log2(max(2, length))


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


def _long(x: Tensor, taps: Tensor, targets: int, groups: int) -> Tensor:
    """The correlation by FFT: x (B, in, M), taps (out, in/groups, T) → (B, out, N), as plain torch operations."""
    length = fast_length(x.shape[-1] + targets - 1)
    made = _times(_spectrum(x, length), _spectrum(taps.flip(-1), length), groups)
    return _outputs(torch.fft.irfft(made, length), taps.shape[-1] - targets, targets)


class _Long(torch.autograd.Function):
    """The same with the backward of a correlation: three FFTs, where autograd's takes six, of full length.

    With gradients enabled in the backward (double backward) it makes the spectra anew, as plain torch operations.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, targets: int, groups: int) -> Tensor:
        ctx.length, ctx.targets, ctx.groups = fast_length(x.shape[-1] + targets - 1), targets, groups
        seen, kernel = _spectrum(x, ctx.length), _spectrum(taps.flip(-1), ctx.length)
        ctx.save_for_backward(x, taps, *((seen, kernel) if any(ctx.needs_input_grad) else ()))
        made = torch.fft.irfft(_times(seen, kernel, groups), ctx.length)
        return _outputs(made, taps.shape[-1] - targets, targets)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, taps, seen, kernel = ctx.saved_tensors
        if torch.is_grad_enabled():
            seen, kernel = _spectrum(x, ctx.length), _spectrum(taps.flip(-1), ctx.length)
        first = taps.shape[-1] - ctx.targets
        grad = _spectrum(F.pad(grad, (first, 0)), ctx.length).unflatten(1, (ctx.groups, -1))
        to_x = to_taps = None
        if ctx.needs_input_grad[0]:
            kernel = kernel.unflatten(0, (ctx.groups, -1)).conj()
            if kernel.shape[1] == kernel.shape[2] == 1:
                made = grad * kernel[:, 0]
            else:
                made = torch.einsum("bgof,goif->bgif", grad, kernel)
            to_x = torch.fft.irfft(made.flatten(1, 2), ctx.length)[..., : x.shape[-1]]
        if ctx.needs_input_grad[1]:
            seen = seen.unflatten(1, (ctx.groups, -1)).conj()
            if seen.shape[2] == grad.shape[2] == 1:
                made = (grad * seen).sum(0)[:, None]
            else:
                made = torch.einsum("bgof,bgif->goif", grad, seen)
            to_taps = torch.fft.irfft(made.flatten(0, 1), ctx.length)[..., : taps.shape[-1]].flip(-1)
        return to_x, to_taps, None, None


def _spectrum(x: Tensor, length: int) -> Tensor:
    return torch.fft.rfft(x, length)


def _times(x: Tensor, kernel: Tensor, groups: int) -> Tensor:
    """Spectra of samples (B, in, F) and kernels (out, in/groups, F) → (B, out, F)."""
    if kernel.shape[0] == groups and kernel.shape[1] == 1:
        return x * kernel[:, 0]
    product = torch.einsum("bgif,goif->bgof", x.unflatten(1, (groups, -1)), kernel.unflatten(0, (groups, -1)))
    return product.flatten(1, 2)


def _outputs(made: Tensor, first: int, count: int) -> Tensor:
    """``count`` outputs from ``first`` on; targets before the first source have nothing."""
    return made[..., first : first + count] if first >= 0 else F.pad(made[..., : first + count], (-first, 0))
