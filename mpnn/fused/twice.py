"""The derivatives of fused attention: torch's fused backward, and where that is differentiated, the reference's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mpnn.functions import fold, unfold
from mpnn.partial import pull

_grad, _keeps = torch.is_grad_enabled, torch._C._autograd._get_current_graph_task_keep_graph
_FLASH = "ScaledDotProductFlashAttentionForCpuBackward0"


class Fused(Function):
    """Fused attention with its own fused backward; differentiated once more, it recomputes through the reference."""

    @staticmethod
    def forward(ctx: Any, attention: Any, again: Any, *inputs: Tensor) -> Tensor:
        with torch.enable_grad():
            inner = [t.detach().requires_grad_(t.requires_grad) for t in inputs]
            out = attention(*inner)
        ctx.inner, ctx.again = (out, inner), again
        ctx.save_for_backward(*inputs)
        return out.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        if torch.is_grad_enabled():
            return (None, None, *pull(ctx.again, ctx.saved_tensors, ctx.needs_input_grad[2:], grad))
        out, inner = ctx.inner or ctx.saved_tensors  # of a graph that was freed, which autograd says
        keep = _keeps()
        grads = iter(torch.autograd.grad(out, [t for t in inner if t.requires_grad], grad, retain_graph=keep))
        if not keep:
            ctx.inner = None
        return None, None, *(next(grads) if t.requires_grad else None for t in inner)


def differentiable_twice(node: Any, again: Any, held: list[Tensor]) -> None:
    """The CPU's fused attention by torch's own autograd, whose backward cannot be differentiated: where a backward runs
    with gradients enabled, its results are replaced by the reference's. A hook costs less than a Function.

    ``node`` is the output's. Any other than the fused one is torch's written-out path, which has every derivative.
    """
    if type(node).__name__ != _FLASH:
        return

    def replace(found: tuple, grads: tuple) -> tuple | None:
        if _grad():
            needed = tuple(g is not None for g in found[:3])
            return (*pull(again, tuple(held), needed, grads[0]), *found[3:])
        if not _keeps():
            held.clear()  # as autograd frees what it saved
        return None

    node.register_hook(replace)


class Transformed(Function):
    """Fused attention inside functional transforms: its backward is always the reference's."""

    @staticmethod
    def forward(attention: Any, again: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attention(query, key, value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.again = inputs[1]
        ctx.save_for_backward(*inputs[2:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return (None, None, *pull(ctx.again, ctx.saved_tensors, ctx.needs_input_grad[2:], grad))

    @staticmethod
    def vmap(info: Any, in_dims: tuple, attention: Any, again: Any, *inputs: Tensor) -> tuple:
        """The vmapped axis as the outer part of the batch."""
        folded = [fold(t, d, info.batch_size) for t, d in zip(inputs, in_dims[2:], strict=True)]
        return unfold(Transformed.apply(attention, again, *folded), info.batch_size)
