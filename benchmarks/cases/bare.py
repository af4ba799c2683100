"""The least that torch must be called for, without a layer around it: what dispatch is measured against."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F


class Rows:
    """Edges sorted by target as a CSR matrix, with its transpose."""

    def __init__(self, edge_index: Tensor, nodes: int) -> None:
        target, order = torch.sort(edge_index[1], stable=True)
        source = edge_index[0][order]
        self.nodes, self.row = nodes, target
        self.start = self._start(target)
        self.pointer, self.column = self.start.int(), source.int()
        _, self.flip = torch.sort(source, stable=True)
        self.back_pointer, self.back_column = self._start(source[self.flip]).int(), target[self.flip].int()
        self.ones = torch.ones(len(target))

    def _start(self, ends: Tensor) -> Tensor:
        return F.pad(torch.bincount(ends, minlength=self.nodes).cumsum(0), (1, 0))

    def matrix(self, values: Tensor) -> Tensor:
        return _csr(self.pointer, self.column, values, self.nodes)

    def transposed(self, values: Tensor) -> Tensor:
        return _csr(self.back_pointer, self.back_column, values[self.flip], self.nodes)


def _csr(pointer: Tensor, column: Tensor, values: Tensor, nodes: int) -> Tensor:
    return torch.sparse_csr_tensor(pointer, column, values, (nodes, nodes), check_invariants=False)


def matrix(rows: Rows, values: Tensor) -> Tensor:
    """The sparse matrix, without torch's word that its CSR is in beta."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        return rows.matrix(values)


class Product(Function):
    """A · x for a fixed sparse A whose transpose is at hand."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, transpose: Tensor, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.transpose = transpose
        return torch.sparse.mm(a, x, "sum")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:  # type: ignore[override]
        return None, None, torch.sparse.mm(ctx.transpose, grad, "sum")


class Attention(Function):
    """Softmax attention over sorted edges by sampled products: q, k, v (heads, N, D)."""

    @staticmethod
    def forward(ctx: Any, rows: Rows, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # type: ignore[override]
        pattern, scale = rows.matrix(rows.ones), q.shape[-1] ** -0.5
        scores = torch.stack([_sample(pattern, a, b, scale) for a, b in zip(q, k, strict=True)])
        weights = []
        for s in scores:
            top = torch.segment_reduce(s, "max", offsets=rows.start)
            w = (s - top[rows.row]).exp_()
            weights.append(w / torch.segment_reduce(w, "sum", offsets=rows.start, initial=0.0)[rows.row])
        ctx.rows, ctx.scale = rows, scale
        ctx.save_for_backward(q, k, v, *weights)
        return torch.stack([torch.sparse.mm(rows.matrix(w), x, "sum") for w, x in zip(weights, v, strict=True)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:  # type: ignore[override]
        rows, (q, k, v, *weights) = ctx.rows, ctx.saved_tensors
        pattern = rows.matrix(rows.ones)
        found: tuple[list[Tensor], ...] = ([], [], [])
        for g, a, b, x, w in zip(grad.contiguous(), q, k, v, weights, strict=True):
            change = _sample(pattern, g, x, 1.0)
            share = torch.segment_reduce(w * change, "sum", offsets=rows.start, initial=0.0)
            slope = w * (change - share[rows.row]) * ctx.scale
            found[0].append(torch.sparse.mm(rows.matrix(slope), b, "sum"))
            found[1].append(torch.sparse.mm(rows.transposed(slope), a, "sum"))
            found[2].append(torch.sparse.mm(rows.transposed(w), g, "sum"))
        return None, *(torch.stack(parts) for parts in found)


def _sample(pattern: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    return torch.sparse.sampled_addmm(pattern, a.contiguous(), b.t(), beta=0.0, alpha=scale).values()


def heads(x: Tensor, count: int) -> Tensor:
    """(..., N, C) as (..., heads, N, C/heads)."""
    return x.unflatten(-1, (count, -1)).transpose(-3, -2)


def join(y: Tensor) -> Tensor:
    """(..., heads, N, D) as (..., N, heads·D)."""
    return y.transpose(-3, -2).flatten(-2)
