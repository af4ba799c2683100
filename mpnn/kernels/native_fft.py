"""native_fft: long kernels of single channels by Fourier transforms that numba compiles, on the tokens as they lie.

torch's transforms want every channel in a line, so ``fft`` copies tokens in and out, and takes whole spectra through
memory. Here some channels at a time go side by side through the whole correlation, each a transform of its own. The
backward transforms them again, so that a forward keeps its inputs alone. Half precision is computed in float32. As in
``fft``, the rounding is that of a channel's largest values anywhere in the sequence: about 1e-7 of them in float32.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpnn.checks import wide
from mpnn.correlation import fast_length, plain, taps_of
from mpnn.kernels.base import Call
from mpnn.native.long import Correlation, Long
from mpnn.reasons import no_correlation, no_memory
from mpnn.spec import Spec

name = "native_fft"
INSTALLED = importlib.util.find_spec("numba") is not None
SHORT, FEW = 128, 4  # sources and targets together; channels


def unsupported(spec: Spec) -> list[str]:
    """Why this call is no correlation of single channels over one sequence."""
    why = no_correlation(spec)
    if not INSTALLED:
        why.append("numba is not installed: pip install 'mpnn[native]'")
    if spec.device != "cpu":
        why.append("compiled for the CPU")
    if spec.family != "groups" or not spec.parts == spec.channels == spec.out_channels:
        why.append("needs groups=channels: a kernel for each channel")
    if not spec.batch:
        why.append("there is no sample")
    if spec.compiling:
        why.append("torch.compile does not trace what numba compiled")
    return why + no_memory(spec)


def slower(spec: Spec) -> list[str]:
    """Why ``fft`` is the faster one, where none is forced."""
    why = []
    if spec.sources + spec.targets < SHORT:
        why.append(f"fewer than {SHORT} sources and targets: fft is faster")
    if spec.channels < FEW:
        why.append(f"fewer than {FEW} channels, which run side by side: fft is faster")
    return why


def run(call: Call, reference: Any) -> Tensor:
    """The aggregate: (..., N, C)."""
    dtype = wide(call.value.dtype)
    y = _prepared(call)(call.value.reshape(call.entries, *call.value.shape[-2:]).to(dtype))
    return call.blank_targets(y.reshape(*call.lead, *y.shape[1:]).to(call.value.dtype))


def shortcut(call: Call, reference: Any) -> Callable[[Tensor], Tensor] | None:
    """The whole layer for tokens of this shape; None where more than a correlation belongs to it."""
    rule, dtype = call.weight, call.value.dtype
    if rule.root is not None or rule.output is not None or rule.value is not None or dtype != wide(dtype):
        return None
    correlate, given, lead = _prepared(call), (call.entries, *call.value.shape[-2:]), call.lead

    def layer(x: Tensor) -> Tensor:
        y = correlate(x.reshape(given))
        y = y if rule.bias is None else y + rule.bias
        return y if len(lead) == 1 else y.reshape(*lead, *y.shape[1:])

    return layer


def _prepared(call: Call) -> Callable[[Tensor], Tensor]:
    """The correlation of (B, M, C) → (B, N, C)."""
    rule, targets, dtype = call.weight, call.targets, wide(call.value.dtype)
    used = taps_of(call.neighbours, targets, call.sources)
    if call.transformed:  # as plain torch operations
        length = fast_length(call.sources + targets - 1)
        of = lambda: rule.matrices()[used].to(dtype)  # noqa: E731
        return lambda x: plain(x, of(), targets, rule.groups, length).transpose(1, 2)

    def correlate(x: Tensor) -> Tensor:
        taps = rule.matrices()[used].squeeze(-1).to(dtype)
        if torch.is_grad_enabled() and (x.requires_grad or taps.requires_grad):
            return Correlation.apply(x, taps, targets)
        return Long(x, taps, targets).forward()

    return correlate
