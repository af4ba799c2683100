"""Functions: how an ``autograd.Function`` and an ``nn.Linear`` are called at the least cost.

A Function with ``setup_context`` and a vmap rule is what functional transforms need, but binding its signature costs
tens of microseconds a call. Where no transform is active a twin in the older style, made from the same three methods,
runs instead; where no gradient is wanted, the bare forward. A module's call takes as long as a small product; a plain
``nn.Linear`` that nobody listens to is its product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook as _heard_everywhere

_forward = nn.Linear.forward
_is_batched = torch._C._functorch.is_legacy_batchedtensor


def twinned(function: type[Function]) -> type[Function]:
    """Give a Function of the newer style its twin of the older one."""

    def forward(ctx: Any, *inputs: Any) -> Any:
        output = function.forward(*inputs)
        function.setup_context(ctx, inputs, output)
        return output

    methods = {"forward": staticmethod(forward), "backward": staticmethod(batched(function.backward))}
    function.twin = type(function.__name__, (Function,), methods)  # type: ignore[attr-defined]
    return function


def batched(function: Callable) -> Callable:
    """A backward of the older style that runs under ``torch.autograd.grad(is_grads_batched=True)`` too."""

    def backward(ctx: Any, *grads: Any) -> Any:
        for grad in grads:
            if _is_batched(grad):
                return _one_by_one(function, ctx, grads)
        return function(ctx, *grads)

    return backward


def _one_by_one(backward: Any, ctx: Any, grads: tuple) -> tuple:
    """A backward under ``torch.autograd.grad(is_grads_batched=True)``, whose batched tensors have no memory that
    compiled code or a sparse product could read: once for each of them."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    whole = [torch._remove_batch_dim(g, level, 1, 0) if _is_batched(g) else g for g in grads]
    if any(_is_batched(g) for g in whole):
        raise RuntimeError("expected is_grads_batched=True once, got it within itself; use torch.func.vmap for more")
    count = next(len(w) for w, g in zip(whole, grads, strict=True) if _is_batched(g))
    saved = _Unpacked(ctx)
    each = [
        backward(saved, *(w[i] if _is_batched(g) else g for w, g in zip(whole, grads, strict=True)))
        for i in range(count)
    ]
    return tuple(
        None if g[0] is None else torch._add_batch_dim(torch.stack(g), 0, level) for g in zip(*each, strict=True)
    )


class _Unpacked:
    """A context whose saved tensors are unpacked once, for several backwards."""

    def __init__(self, ctx: Any) -> None:
        self._ctx, self.saved_tensors = ctx, ctx.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


def apply(function: Any, *inputs: Any) -> Any:
    """The function of these inputs, by the cheapest way that has every derivative."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return function.apply(*inputs)
    if torch.is_grad_enabled():
        for t in inputs:
            if isinstance(t, Tensor) and t.requires_grad:
                return function.twin.apply(*inputs)
    return function.forward(*inputs)


def heard(module: nn.Module) -> bool:
    """Whether somebody would notice that a module's parameters are used without calling it: hooks, a forward or a
    compiled call of its own."""
    own = module.__dict__
    hooks = own["_forward_pre_hooks"] or own["_forward_hooks"] or own["_backward_pre_hooks"] or own["_backward_hooks"]
    return bool(hooks) or "forward" in own or module._compiled_call_impl is not None or _heard_everywhere()


def linear(layer: Any, x: Tensor) -> Tensor:
    """``layer(x)``, by the product alone where the layer is an ``nn.Linear`` without hooks or a forward of its own."""
    return layer(x) if torch.compiler.is_compiling() else eager_linear(layer, x)


def eager_linear(layer: Any, x: Tensor) -> Tensor:
    """:func:`linear` where nothing is traced."""
    if type(layer) is not nn.Linear or nn.Linear.forward is not _forward:
        return layer(x)
    if heard(layer):
        return layer(x)
    parameters = layer.__dict__["_parameters"]
    if "weight" not in parameters or "bias" not in parameters:  # lent or replaced: an attribute like any other
        return layer(x)
    return F.linear(x, parameters["weight"], parameters["bias"])


def fold(x: Tensor, dim: int | None, size: int) -> Tensor:
    """A vmapped axis as the outer part of the first one."""
    x = x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
    return x.flatten(0, 1)


def unfold(x: Tensor, size: int) -> tuple[Tensor, int]:
    """The outer part of the first axis as a vmapped axis: what a vmap rule returns."""
    return x.unflatten(0, (size, x.shape[0] // size)), 0
