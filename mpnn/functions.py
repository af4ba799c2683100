"""Functions: how an ``autograd.Function`` is called at the least cost.

A Function with ``setup_context`` and a vmap rule is what functional transforms need, but binding its signature costs
tens
of microseconds a call. Where no transform is active a twin in the older style, made from the same three methods, runs
instead; where no gradient is wanted, the bare forward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def twinned(function: type[Function]) -> type[Function]:
    """Give a Function of the newer style its twin of the older one."""

    def forward(ctx: Any, *inputs: Any) -> Any:
        output = function.forward(*inputs)
        function.setup_context(ctx, inputs, output)
        return output

    methods = {"forward": staticmethod(forward), "backward": staticmethod(function.backward)}
    function.twin = type(function.__name__, (Function,), methods)  # type: ignore[attr-defined]
    return function


def apply(function: Any, *inputs: Any) -> Any:
    """The function of these inputs, by the cheapest way that has every derivative."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return function.apply(*inputs)
    if torch.is_grad_enabled():
        for t in inputs:
            if isinstance(t, Tensor) and t.requires_grad:
                return function.twin.apply(*inputs)
    return function.forward(*inputs)


def fold(x: Tensor, dim: int | None, size: int) -> Tensor:
    """A vmapped axis as the outer part of the first one."""
    x = x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
    return x.flatten(0, 1)


def unfold(x: Tensor, size: int) -> tuple[Tensor, int]:
    """The outer part of the first axis as a vmapped axis: what a vmap rule returns."""
    return x.unflatten(0, (size, x.shape[0] // size)), 0
