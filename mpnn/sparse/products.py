"""Sparse products over the edges of a graph, closed under differentiation.

``Spmm`` (sum weighted rows), ``Sddmm`` (sampled inner products) and ``SegmentSum``/``Rows`` are each other's
derivatives, so any order of them exists; each has a vmap rule that folds the new axis into the first. None relies on
the autograd of ``torch.sparse``, which rebuilds the transpose in every backward and fails on duplicate edges.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mpnn.functions import apply, fold, twinned, unfold
from mpnn.sparse.csr import Csr


def rows3(x: Tensor) -> Tensor:
    """(..., M, D) as (K, M, D); sizes are spelt out, since -1 means nothing where there are no tokens."""
    return x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:])


def spmm(csr: Csr, weight: Tensor | None, x: Tensor) -> Tensor:
    """y[k, row] = Σ_e weight[k, e] · x[k, col_e]: weight (K or 1, E) in the rows' order or None for 1, x (K, M, D)."""
    weight = csr.ones(x.dtype) if weight is None else weight
    return apply(Spmm, csr, weight, x)


def sddmm(csr: Csr, a: Tensor, b: Tensor) -> Tensor:
    """s[k, e] = a[k, row_e] · b[k, col_e]: (K, N, D), (K, M, D) → (K, E)."""
    return apply(Sddmm, csr, a, b)


def product(matrix: Tensor, x: Tensor) -> Tensor:
    """The CSR matrix times x: on the CPU torch's row-wise reduction, which is the faster one, elsewhere cuSPARSE."""
    return torch.sparse.mm(matrix, x, "sum") if x.device.type == "cpu" else torch.sparse.mm(matrix, x)


def _sampled(csr: Csr, a: Tensor, b: Tensor) -> Tensor:
    """Inner products at the edges, some at a time: no tensor over all edges and channels."""
    step = max(1, (1 << 22) // a.shape[1])
    ends = zip(csr.row.split(step), csr.col.split(step), strict=True)
    return torch.cat([(a[i] * b[j.long()]).sum(-1) for i, j in ends])


@twinned
class Spmm(Function):
    """Weighted sums of rows over each target's edges."""

    @staticmethod
    def forward(csr: Csr, weight: Tensor, x: Tensor) -> Tensor:
        if csr.row.shape[0] == 0 or x.numel() == 0:
            return x.new_zeros(x.shape[0], csr.shape[0], x.shape[2])
        if weight.shape[0] == 1:  # one matrix for all: their columns side by side
            wide = x[0] if x.shape[0] == 1 else x.transpose(0, 1).reshape(x.shape[1], -1)
            y = product(csr.kept(weight), wide)
            return y.unsqueeze(0) if x.shape[0] == 1 else y.view(csr.shape[0], *x.shape[::2]).transpose(0, 1)
        together = csr.repeated(x.shape[0])
        if together is not None:
            return product(together.matrix(weight.reshape(-1)), x.flatten(0, 1)).view(x.shape[0], -1, x.shape[2])
        products = zip(weight, x, strict=True)
        return torch.stack([product(csr.matrix(w.contiguous()), v.contiguous()) for w, v in products])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.csr = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        weight, x = ctx.saved_tensors
        csr, grad_weight, grad_x = ctx.csr, None, None
        if ctx.needs_input_grad[1]:
            grad_weight = sddmm(csr, grad, x)
            grad_weight = grad_weight.sum(0, keepdim=True) if weight.shape[0] == 1 else grad_weight
        if ctx.needs_input_grad[2]:
            turned = csr.turned(weight) if not ctx.needs_input_grad[1] else None
            turned = weight.index_select(-1, csr.transpose.order) if turned is None else turned
            grad_x = spmm(csr.transpose, turned, grad)
        return None, grad_weight, grad_x

    @staticmethod
    def vmap(info: Any, in_dims: tuple, csr: Csr, weight: Tensor, x: Tensor) -> tuple:
        size = info.batch_size
        lead = x.shape[0] if in_dims[2] is None else x.movedim(in_dims[2], 0).shape[1]
        if in_dims[1] is not None:
            weight = weight.movedim(in_dims[1], 0)
            weight = weight.expand(size, lead, weight.shape[-1]).flatten(0, 1)
        elif weight.shape[0] > 1:
            weight = fold(weight, None, size)
        return unfold(apply(Spmm, csr, weight, fold(x, in_dims[2], size)), size)


@twinned
class Sddmm(Function):
    """Inner products of the two ends of each edge."""

    @staticmethod
    def forward(csr: Csr, a: Tensor, b: Tensor) -> Tensor:
        if csr.row.shape[0] == 0 or a.numel() == 0 or b.numel() == 0:
            return a.new_zeros(a.shape[0], csr.row.shape[0])
        if (
            a.device.type != "cpu" or csr.row.shape[0] > a.shape[1] * b.shape[1]
        ):  # duplicates that torch's sample refuses
            return torch.stack([_sampled(csr, u, v) for u, v in zip(a, b, strict=True)])
        together = csr.repeated(a.shape[0])
        if together is not None:
            pattern = together.kept(together.ones(a.dtype))
            b = b.flatten(0, 1).t()
            return torch.sparse.sampled_addmm(pattern, a.flatten(0, 1), b, beta=0.0).values().view(a.shape[0], -1)
        pattern = csr.kept(csr.ones(a.dtype))
        sample = [
            torch.sparse.sampled_addmm(pattern, u.contiguous(), v.t(), beta=0.0) for u, v in zip(a, b, strict=True)
        ]
        return torch.stack([s.values() for s in sample])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.csr = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        a, b = ctx.saved_tensors
        csr = ctx.csr
        grad_a = spmm(csr, grad, b) if ctx.needs_input_grad[1] else None
        flipped = csr.transpose
        grad_b = spmm(flipped, grad.index_select(-1, flipped.order), a) if ctx.needs_input_grad[2] else None
        return None, grad_a, grad_b

    @staticmethod
    def vmap(info: Any, in_dims: tuple, csr: Csr, a: Tensor, b: Tensor) -> tuple:
        size = info.batch_size
        return unfold(apply(Sddmm, csr, fold(a, in_dims[1], size), fold(b, in_dims[2], size)), size)


@twinned
class SegmentSum(Function):
    """s[k, row] = Σ_e x[k, e]: (K, E) → (K, rows)."""

    @staticmethod
    def forward(csr: Csr, x: Tensor) -> Tensor:
        return _segments(csr, x, "sum", 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.csr = inputs[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return None, apply(Rows, ctx.csr, grad)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, csr: Csr, x: Tensor) -> tuple:
        return unfold(apply(SegmentSum, csr, fold(x, in_dims[1], info.batch_size)), info.batch_size)


@twinned
class Rows(Function):
    """s[k, e] = x[k, row_e]: (K, rows) → (K, E)."""

    @staticmethod
    def forward(csr: Csr, x: Tensor) -> Tensor:
        return x.index_select(-1, csr.row)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.csr = inputs[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return None, apply(SegmentSum, ctx.csr, grad)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, csr: Csr, x: Tensor) -> tuple:
        return unfold(apply(Rows, csr, fold(x, in_dims[1], info.batch_size)), info.batch_size)


@twinned
class SegmentMax(Function):
    """The largest entry of each row, finite for an empty or fully masked one; a shift, so it has no gradient."""

    @staticmethod
    def forward(csr: Csr, x: Tensor) -> Tensor:
        return _segments(csr, x, "max", -torch.inf).clamp_(min=torch.finfo(x.dtype).min)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, csr: Csr, x: Tensor) -> tuple:
        return unfold(apply(SegmentMax, csr, fold(x, in_dims[1], info.batch_size)), info.batch_size)


def _segments(csr: Csr, x: Tensor, reduce: str, empty: float) -> Tensor:
    if csr.shape[0] == 0 or x.shape[0] == 0 or x.shape[1] == 0:
        return x.new_full((x.shape[0], csr.shape[0]), empty)
    together = csr.repeated(x.shape[0])
    if together is not None:
        flat = torch.segment_reduce(x.reshape(-1), reduce, offsets=together.offsets, initial=empty)
        return flat.view(x.shape[0], -1)
    return torch.stack([torch.segment_reduce(v.contiguous(), reduce, offsets=csr.offsets, initial=empty) for v in x])
