"""Products with a sparse matrix that is fixed, and whose transpose is at hand: the least that a layer's sum can be."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from torch import Tensor
from torch.autograd import Function

from mpnn.functions import apply, twinned
from mpnn.memo import lasting, outside
from mpnn.sparse.csr import Csr
from mpnn.sparse.products import product


class Fixed:
    """The matrix (N, M) of some edges with weights (1, E) that are never written to and want no gradient.

    ``transpose``: the same of the transposed matrix, made where it is first asked for.
    """

    def __init__(self, csr: Csr, weight: Tensor) -> None:
        self.csr, self.weight, self.matrix = csr, weight, csr.kept(weight)
        self._transpose: Fixed | None = None

    def times(self, x: Tensor) -> Tensor:
        """A x, without a gradient."""
        return product(self.matrix, x)

    @property
    def transpose(self) -> Fixed:
        """Aᵀ."""
        if self._transpose is None:
            with outside() if lasting(self.weight) else nullcontext():
                back = self.csr.transpose
                self._transpose = Fixed(back, self.weight.index_select(-1, back.order))
        return self._transpose


@twinned
class Product(Function):
    """A x for a fixed A: x (M, D) → (N, D). Its derivative is itself, of Aᵀ."""

    @staticmethod
    def forward(a: Fixed, x: Tensor) -> Tensor:
        return a.times(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.a = inputs[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return None, apply(Product, ctx.a.transpose, grad)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, a: Fixed, x: Tensor) -> tuple:
        """The vmapped axis beside the columns: one product for all."""
        size, wide = info.batch_size, x.movedim(in_dims[1], 1)  # (M, size, D)
        return apply(Product, a, wide.flatten(1)).unflatten(1, (size, -1)), 1
