"""segment: gather, weigh, and reduce with torch_scatter over compressed rows.

Messages are written once per edge, then summed row by row without atomics. It serves what no product does: a maximum,
and a matrix or a score per edge that a network makes.
"""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mpnn.functions import apply, twinned
from mpnn.kernels.base import Call
from mpnn.normalise import messages_of, normalised
from mpnn.reasons import FORWARD_MODE, TRACED, UNLISTED, no_memory
from mpnn.segments import segment_maximum
from mpnn.sparse.csr import Csr
from mpnn.spec import Spec

name = "segment"
INSTALLED = importlib.util.find_spec("torch_scatter") is not None
LIMIT = 1 << 24  # numbers over edges held at once


def unsupported(spec: Spec) -> list[str]:
    """Why this call is no segmented reduction."""
    why = []
    if not INSTALLED:
        why.append("torch_scatter is not installed: pip install 'mpnn[scatter]'")
    if not spec.listed:
        why.append(UNLISTED)
    if spec.compiling:
        why.append(TRACED)
    if "jvp" in spec.transforms:
        why.append(FORWARD_MODE)
    if spec.dropout and spec.transforms:
        why.append("dropout under a functional transform")
    edges = spec.edges or 0
    each = spec.channels * spec.out_channels // spec.parts if spec.family == "groups" else 0
    if edges * (each + spec.batch * max(spec.channels, spec.out_channels)) > LIMIT:
        why.append(f"its tensors over {edges} edges would exceed 64 MiB; the reference works in blocks")
    return why + no_memory(spec)


def run(call: Call, reference: Any) -> Tensor:
    """The aggregate: (..., N, C)."""
    rule = call.weight
    csr = Csr.of(call.all_edges(), call.targets, call.sources)
    pairs = call.pairs(csr.edges, csr.order)
    weight, keep = normalised(call, pairs, csr.order, 0, call.targets)
    if call.dropout:
        weight = torch.nn.functional.dropout(weight, call.dropout)
    messages = messages_of(call, pairs, weight)
    heads = rule.heads is not None
    if keep is not None:
        keep = keep.transpose(-2, -1)[..., None] if heads else keep
    total, largest = partial(apply, SumRows, csr), partial(apply, MaxRows, csr)
    y = segment_maximum(messages, keep, csr.row, total, largest) if rule.reduce == "max" else total(messages)
    if rule.reduce == "mean":
        one = messages.new_ones(len(pairs), 1) if keep is None else keep.to(messages.dtype)
        y = y / apply(SumRows, csr, one).clamp(min=1)
    y = y.transpose(-3, -2).flatten(-2) if heads else y
    return y.to(call.value.dtype)


def _reduce(csr: Csr, x: Tensor, how: str) -> Tensor:
    """(..., E, C) → (..., N, C) over sorted rows."""
    import torch_scatter

    if x.numel() == 0:
        return x.new_zeros(*x.shape[:-2], csr.shape[0], x.shape[-1])
    pointer = csr.offsets.expand(*x.shape[:-2], -1)
    return torch_scatter.segment_csr(x.contiguous(), pointer.contiguous(), reduce=how)


@twinned
class SumRows(Function):
    """Sums over each row's edges; its derivative is a gather, a plain torch operation."""

    @staticmethod
    def forward(csr: Csr, x: Tensor) -> Tensor:
        return _reduce(csr, x, "sum")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.csr = inputs[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return None, grad.index_select(-2, ctx.csr.row)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, csr: Csr, x: Tensor) -> tuple:
        return apply(SumRows, csr, x.movedim(in_dims[1], 0)), 0


@twinned
class MaxRows(Function):
    """The largest entry of each row, without a gradient."""

    @staticmethod
    def forward(csr: Csr, x: Tensor) -> Tensor:
        return _reduce(csr, x, "max")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, csr: Csr, x: Tensor) -> tuple:
        return apply(MaxRows, csr, x.movedim(in_dims[1], 0)), 0
