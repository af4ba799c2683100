"""fft: kernels shared over a sequence, by ``F.conv1d`` where they are short and by the FFT where they are long.

One weight per distance of two tokens makes the layer a correlation, y_i = Σ_t w_t x_{i - (N-1) + t}: N + M - 1 taps, or
the M that do not look ahead where it is causal. Both ways run on (B, C, tokens). Half precision is computed in float32.
The FFT's rounding is that of the largest values anywhere in the sequence: about 1e-7 of them in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mpnn.checks import autocasting, wide
from mpnn.correlation import Correlation, fast_length, forward_only, plain, taps_of
from mpnn.kernels.base import Call
from mpnn.reasons import no_correlation
from mpnn.spec import Spec

name = "fft"

# Measured on the CPU: an FFT's operation takes as long as one of a convolution. The spectrum of a matrix of channels is
# also transposed and multiplied, which takes as long as so many transforms, more where it leaves the cache.
_MATRIX, _LARGE_MATRIX, _CACHE = 6, 30, 1 << 21


def unsupported(spec: Spec) -> list[str]:
    """Why this call is no correlation over one sequence."""
    return no_correlation(spec)


def run(call: Call, reference: Any) -> Tensor:
    """The aggregate: (..., N, C)."""
    rule, value, n, m = call.weight, call.value, call.targets, call.sources
    if autocasting(value.device.type):
        with torch.autocast(value.device.type, enabled=False):
            return run(call, reference)
    x = value.to(wide(value.dtype))
    if rule.heads is not None:  # the channels of a head are samples of one channel
        x = x.reshape(call.entries, rule.heads, m, value.shape[-1]).permute(0, 3, 2, 1).flatten(0, 1)
    else:
        x = x.reshape(call.entries, m, value.shape[-1])
    y = _prepared(call, x.shape[0])(x).to(value.dtype)
    if rule.heads is not None:
        y = y.unflatten(0, (call.entries, -1)).permute(0, 3, 2, 1).flatten(2)
    else:
        y = y.transpose(1, 2)
    return call.blank_targets(y.reshape(*call.lead, n, rule.after))


def shortcut(call: Call, reference: Any) -> Callable[[Tensor], Tensor] | None:
    """The whole layer for tokens of this shape; None where more than a correlation belongs to it."""
    rule, dtype = call.weight, call.value.dtype
    if rule.root is not None or rule.output is not None or rule.value is not None or rule.heads is not None:
        return None
    if dtype != wide(dtype):
        return None
    correlate, given, out = _prepared(call, call.entries), (call.entries, *call.value.shape[-2:]), call.lead

    def layer(x: Tensor) -> Tensor:
        y = correlate(x.reshape(given)).transpose(1, 2)
        y = y if rule.bias is None else y + rule.bias
        return y if len(out) == 1 else y.reshape(*out, *y.shape[1:])

    return layer


def _prepared(call: Call, batch: int) -> Callable[[Tensor], Tensor]:
    """The correlation of (B, M, in) → (B, out, N), by the faster way for these numbers."""
    rule, rule_of_places, n, m = call.weight, call.neighbours, call.targets, call.sources
    groups, dtype = rule.heads or rule.groups, wide(call.value.dtype)
    used = taps_of(rule_of_places, n, m)
    count = used.stop - used.start
    per_group = 1 if rule.heads is not None else rule.before // rule.groups
    out = rule.heads or rule.after
    compiling = torch.compiler.is_compiling()

    def taps() -> Tensor:
        """The weights of the distances that this call has, ascending: (taps, out, in/groups)."""
        weight = rule.matrices().to(dtype)
        if compiling:  # a slice would compile once more where it is the whole
            weight = weight.index_select(0, used.start + torch.arange(count, device=weight.device))
        else:
            weight = weight[used]
        return weight[..., None] if rule.heads is not None else weight

    if not by_fft(batch, out, per_group, count, m, n):
        ahead = (n - 1, count - m)
        return lambda x: F.conv1d(F.pad(x.transpose(1, 2), ahead), taps().permute(1, 2, 0), groups=groups)
    length = fast_length(m + n - 1)
    if compiling or call.transformed:
        return lambda x: plain(x, taps(), n, groups, length)
    if not torch.is_grad_enabled():
        return lambda x: forward_only(x, taps(), n, groups, length)
    return lambda x: Correlation.apply(x, taps(), n, groups, length)


def by_fft(batch: int, out: int, per_group: int, taps: int, sources: int, targets: int) -> bool:
    """Whether the FFT is the faster way; never where torch.compile knows no lengths."""
    if not all(isinstance(k, int) for k in (batch, taps, sources, targets)):
        return False
    length = fast_length(sources + targets - 1)
    matrix = 1 if per_group == 1 else _MATRIX if 4 * out * per_group * length <= _CACHE else _LARGE_MATRIX
    transforms = 2 * batch * out + matrix * out * per_group
    return 2 * batch * out * per_group * targets * taps > transforms * 2.5 * length * math.log2(max(2, length))
