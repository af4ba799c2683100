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
    return weight / apply(Rows, csr, total.clamp(min=1 / 4))  # 1 at least, or 0 in a fully masked row


@twinned
class EdgeAttention(Function):
    """Softmax attention over each row's edges in one step: queries (scaled), keys, values → (output, weights).

    Its backward runs the same products with the transpose; differentiated once more, it goes through the three parts.
    """

    @staticmethod
    def forward(csr: Csr, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return _attention(csr, query, key, value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.csr = inputs[0]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs[1:], output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple:
        query, key, value, weight = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, *torch.func.vjp(partial(_in_parts, ctx.csr), query, key, value)[1](grad)
        return None, *_gradients(ctx.csr, query, key, value, weight, grad)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, csr: Csr, *inputs: Tensor) -> tuple:
        size = info.batch_size
        folded = [fold(x, d, size) for x, d in zip(inputs, in_dims[1:], strict=True)]
        (output, at), (weight, _) = (unfold(y, size) for y in EdgeAttention.apply(csr, *folded))
        return (output, weight), (at, at)


@twinned
class TokenAttention(Function):
    """The same of tokens as linear layers leave them, the heads of each side by side: (B, N, heads, D) of all three.

    Turning heads before tokens within one Function spares autograd a dozen steps, which on small graphs is what a call
    costs.
    """

    @staticmethod
    def forward(csr: Csr, scale: float, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        y, weight = _attention(csr, _heads_first(query) * scale, _heads_first(key), _heads_first(value))
        return _tokens_first(y, query.shape[2]), weight

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.csr, ctx.scale = inputs[:2]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs[2:], output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple:
        query, key, value, weight = ctx.saved_tensors
        if torch.is_grad_enabled():
            pull = torch.func.vjp(partial(_tokens_in_parts, ctx.csr, ctx.scale), query, key, value)[1]
            return None, None, *pull(grad)
        heads = query.shape[2]
        three = _heads_first(query) * ctx.scale, _heads_first(key), _heads_first(value)
        found = _gradients(ctx.csr, *three, weight, _heads_first(grad), ctx.scale)
        return None, None, *(_tokens_first(g, heads) for g in found)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, csr: Csr, scale: float, *inputs: Tensor) -> tuple:
        size = info.batch_size
        folded = [fold(x, d, size) for x, d in zip(inputs, in_dims[2:], strict=True)]
        (output, at), (weight, _) = (unfold(y, size) for y in TokenAttention.apply(csr, scale, *folded))
        return (output, weight), (at, at)


def _attention(csr: Csr, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    weight = row_softmax(csr, sddmm(csr, query, key))
    return spmm(csr, weight, value), weight


def _gradients(
    csr: Csr, query: Tensor, key: Tensor, value: Tensor, weight: Tensor, grad: Tensor, scale: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the queries before they were scaled, the keys and the values."""
    flipped = csr.transpose
    change = sddmm(csr, grad, value)
    share = apply(Rows, csr, apply(SegmentSum, csr, weight * change))
    slope = weight * (change - share)
    back = slope.index_select(-1, flipped.order)
    grad_value = spmm(flipped, weight.index_select(-1, flipped.order), grad)
    grad_query = spmm(csr, slope, key)
    return grad_query if scale == 1 else grad_query * scale, spmm(flipped, back, query), grad_value


def _in_parts(csr: Csr, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return spmm(csr, row_softmax(csr, sddmm(csr, query, key)), value)


def _tokens_in_parts(csr: Csr, scale: float, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    y = _in_parts(csr, _heads_first(query) * scale, _heads_first(key), _heads_first(value))
    return _tokens_first(y, query.shape[2])


def _heads_first(x: Tensor) -> Tensor:
    """(B, N, heads, D) → (B·heads, N, D)."""
    b, n, heads, d = x.shape
    return x.transpose(1, 2).reshape(b * heads, n, d)


def _tokens_first(x: Tensor, heads: int) -> Tensor:
    """(B·heads, N, D) → (B, N, heads, D), in this order in memory."""
    k, n, d = x.shape
    return x.view(k // heads, heads, n, d).transpose(1, 2).contiguous()
