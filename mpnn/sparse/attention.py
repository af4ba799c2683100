"""Softmax over the edges of each row, and attention over them in one step."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mpnn.functions import apply, fold, twinned, unfold
from mpnn.sparse.csr import Csr
from mpnn.sparse.products import Rows, SegmentMax, SegmentSum, sddmm, spmm


def row_softmax(csr: Csr, scores: Tensor) -> Tensor:
    """Softmax over each row's edges: (K, E); a score of -inf has weight 0, also in a row without others."""
    weight = (scores - apply(Rows, csr, apply(SegmentMax, csr, scores.detach()))).exp()
    total = apply(SegmentSum, csr, weight)
    return weight / apply(Rows, csr, torch.where(total == 0, 1, total))


@twinned
class EdgeAttention(Function):
    """Softmax attention over each row's edges in one step: queries (scaled), keys, values → (output, weights).

    Its backward runs the same products with the transpose; differentiated once more, it goes through the three parts.
    """

    @staticmethod
    def forward(csr: Csr, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        weight = row_softmax(csr, sddmm(csr, query, key))
        return spmm(csr, weight, value), weight

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.csr = inputs[0]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs[1:], output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple:
        query, key, value, weight = ctx.saved_tensors
        csr, flipped = ctx.csr, ctx.csr.transpose
        if torch.is_grad_enabled():
            return None, *torch.func.vjp(partial(_in_parts, csr), query, key, value)[1](grad)
        change = sddmm(csr, grad, value)
        share = apply(Rows, csr, apply(SegmentSum, csr, weight * change))
        slope = weight * (change - share)
        back = slope.index_select(-1, flipped.order)
        grad_value = spmm(flipped, weight.index_select(-1, flipped.order), grad)
        return None, spmm(csr, slope, key), spmm(flipped, back, query), grad_value

    @staticmethod
    def vmap(info: Any, in_dims: tuple, csr: Csr, *inputs: Tensor) -> tuple:
        size = info.batch_size
        folded = [fold(x, d, size) for x, d in zip(inputs, in_dims[1:], strict=True)]
        (output, at), (weight, _) = (unfold(y, size) for y in EdgeAttention.apply(csr, *folded))
        return (output, weight), (at, at)


def _in_parts(csr: Csr, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return spmm(csr, row_softmax(csr, sddmm(csr, query, key)), value)
