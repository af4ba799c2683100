"""Hops: a polynomial in one step of message passing (SGConv, TAGConv, ChebConv)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mpnn.edge_index import read
from mpnn.interop.stacks import redraw


class Hops(nn.Module):
    """y = Σ_k W_k T_k(x) + b, T_0 = x, T_1 = step(x), T_k = a · step(T_{k-1}) + c · T_{k-2}.

    Args:
        step: a MessagePassing that keeps the width. linears: W_first, W_{first + 1}, …, modules of the width of x.
        first: the power of the first (SGConv has the last power only). recurrence: (a, c), (1, 0) for plain powers,
            (2, -1) for Chebyshev's polynomials. bias: its width, 0 for none.

    Shapes: the call of ``step``: x (N, C), edge_index (2, E), edge_weight (E,) → (N, out).

    Source: Wu et al. (2019), `arXiv:1902.07153 <https://arxiv.org/abs/1902.07153>`_; Du et al. (2017),
    `arXiv:1710.10370 <https://arxiv.org/abs/1710.10370>`_.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing
        >>> from mpnn.interop.hops import Hops
        >>> from mpnn.neighbours import Graph
        >>> from mpnn.weights import SharedKernel
        >>> step = MessagePassing(Graph(), SharedKernel(None, None, fixed=True, bias=False))
        >>> hops = Hops(step, [torch.nn.Linear(2, 3)], first=2)
        >>> hops(torch.ones(3, 2), torch.tensor([[0, 1], [1, 2]])).shape
        torch.Size([3, 3])
    """

    def __init__(  # type: ignore[no-untyped-def]
        self, step: nn.Module, linears, *, first=0, recurrence=(1.0, 0.0), bias=0
    ) -> None:
        super().__init__()
        self.step, self.linears = step, nn.ModuleList(linears)
        self.first, self.recurrence = first, tuple(recurrence)
        self.bias = nn.Parameter(torch.zeros(bias)) if bias else None

    def forward(self, x: Tensor, *args: Any, **given: Any) -> Tensor:
        a, c = self.recurrence
        before, now, total = x, x, None
        for power in range(self.first + len(self.linears)):
            if power == 1:
                now = self.step(x, *args, **given)
            elif power > 1:
                after = a * self.step(now, *args, **given)
                before, now = now, after + c * before if c else after
            if power >= self.first:
                term = self.linears[power - self.first](now)
                total = term if total is None else total + term
        assert total is not None
        return total if self.bias is None else total + self.bias

    def reset_parameters(self) -> None:
        """Draw the linears again; the bias becomes 0."""
        redraw(*self.linears)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        return f"first={self.first}, recurrence={self.recurrence}"


class ScaledLaplacian(nn.Module):
    """Hops over L̂ = 2 L / λ_max - I, with L = D - A, I - D^-½ A D^-½ ("sym") or I - D^-1 A ("rw"), as ChebConv.

    Degrees are of sources, loops are left out. ``lambda_max``: a number, or one a graph of ``batch``; by default twice
    the largest entry of L.

    Shapes: x (N, C), edge_index (2, E), edge_weight (E,), batch (N,), lambda_max () or (graphs,) → (N, out).

    Source: Defferrard et al. (2016), `arXiv:1606.09375 <https://arxiv.org/abs/1606.09375>`_; ``ChebConv``.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing
        >>> from mpnn.interop.hops import Hops, ScaledLaplacian
        >>> from mpnn.neighbours import Graph
        >>> from mpnn.weights import SharedKernel
        >>> step = MessagePassing(Graph(), SharedKernel(None, None, fixed=True, bias=False))
        >>> linears = [torch.nn.Linear(2, 3, bias=False) for _ in range(3)]
        >>> cheb = ScaledLaplacian(Hops(step, linears, recurrence=(2.0, -1.0)), "sym")
        >>> cheb(torch.ones(3, 2), torch.tensor([[0, 1], [1, 2]])).shape
        torch.Size([3, 3])
    """

    def __init__(self, hops: nn.Module, normalization: str | None) -> None:
        super().__init__()
        self.hops, self.normalization = hops, normalization

    def forward(
        self,
        x: Tensor,
        edge_index: Any,
        *,
        edge_weight: Tensor | None = None,
        batch: Any = None,
        lambda_max: Any = None,
    ) -> Tensor:
        index, values, _ = read(edge_index)
        index, weight, loops = self._laplacian(index, values if edge_weight is None else edge_weight, x)
        if lambda_max is None:
            top = 2.0 * torch.cat([weight, loops]).max()
        else:
            top = torch.as_tensor(lambda_max, dtype=x.dtype, device=x.device)
        at_edge = at_loop = top
        if batch is not None and top.numel() > 1:
            at_edge, at_loop = top[batch[index[0]]], top[batch]
        weight, loops = 2.0 * weight / at_edge, 2.0 * loops / at_loop
        weight, loops = (t.masked_fill(t == float("inf"), 0) for t in (weight, loops))
        node = torch.arange(x.shape[-2], device=x.device, dtype=index.dtype)
        joined = torch.cat([index, node.expand(2, -1)], 1)
        return self.hops(x, joined, edge_weight=torch.cat([weight, loops - 1]))

    def _laplacian(self, index: Tensor, weight: Tensor | None, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(edges, their entries of L with 0 at given loops, the diagonal)."""
        source, target = index[0], index[1]
        weight = x.new_ones(index.shape[1]) if weight is None else weight.to(x.dtype)
        weight = weight.masked_fill(source == target, 0)
        degree = x.new_zeros(x.shape[-2]).index_add(0, source, weight)
        if self.normalization is None:
            return index, -weight, degree
        # the gradient of a power at 0 is no number
        inverse = torch.where(degree == 0, 1, degree).pow(-0.5 if self.normalization == "sym" else -1.0) * (degree != 0)
        scaled = inverse[source] * weight
        return index, -(scaled * inverse[target] if self.normalization == "sym" else scaled), torch.ones_like(degree)

    def extra_repr(self) -> str:
        return f"normalization={self.normalization!r}"

    def reset_parameters(self) -> None:
        """Draw the linears again."""
        redraw(self.hops)
