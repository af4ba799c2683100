"""Parts of an attention, joined by their log-sum-exps, with a backward of their own.

Each part covers some of a target's sources and none twice. With out_p, lse_p of each,

    lse = log Σ_p exp(lse_p)        out = Σ_p exp(lse_p - lse) · out_p

and in the backward every part runs with the joint ``out`` and ``lse``: its weights are then those of the whole, so the
gradients of the parts add up exactly, and no autograd goes through the joining. The parts' backwards cannot be
differentiated: one that runs with gradients enabled recomputes through the reference.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Function

from mpnn.functions import apply, fold, twinned, unfold
from mpnn.recompute import Unwritten
from mpnn.scores import all_heads


class Part(Protocol):
    """Attention over some of the pairs.

    Shapes: query (B, heads, N, D), key, value (B, heads, M, D) → out (B, heads, N, D), lse (B, heads, N) in float32 or
    float64; a target without a source has out 0 and lse -inf. B may be a multiple of the call's entries, a vmapped axis
    standing before them. ``backward`` gets the joint out and lse and returns the gradients of query, key, value.
    """

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]: ...

    def backward(
        self, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]: ...


def attention(call: Any, parts: Sequence[Part], reference: Callable[[Any], Tensor]) -> Tensor:
    """The aggregate of a call whose pairs the parts cover: (..., N, C)."""
    query, key, value = (four(call.nodes[n], call.lead) for n in ("query", "key", "value"))
    key, value = (all_heads(t, query.shape[1]) for t in (key, value))
    y, _ = apply(Parts, tuple(parts), by_reference(call, reference), query, key, value)
    y = y.transpose(1, 2).flatten(-2)
    return call.blank_targets(y.reshape(*call.lead, *y.shape[-2:]))


def join(outs: Sequence[Tensor], lses: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The joint out and lse."""
    if len(outs) == 1:
        return outs[0], lses[0]
    together = torch.stack(list(lses))
    lse = together.logsumexp(0)
    share = (together - lse.masked_fill(lse == -torch.inf, 0)).exp()
    total = share[0][..., None] * outs[0]
    for s, out in zip(share[1:], outs[1:], strict=True):
        total.addcmul_(s[..., None], out.to(total.dtype))
    return total.to(outs[0].dtype), lse


@twinned
class Parts(Function):
    """The joint attention of parts, and its log-sum-exp, which has no gradient."""

    @staticmethod
    def forward(
        parts: tuple[Part, ...], again: ByReference, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        found = [part.forward(query, key, value) for part in parts]
        return join([out for out, _ in found], [lse for _, lse in found])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.parts, ctx.again = inputs[:2]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs[2:], *output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple:
        query, key, value, out, lse = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, None, *pull(ctx.again, (query, key, value), ctx.needs_input_grad[2:], grad)
        ctx.again.read.check()
        grads: list[Tensor] = []
        for part in ctx.parts:
            more = part.backward(grad, query, key, value, out, lse)
            grads = [a + b for a, b in zip(grads, more, strict=True)] if grads else list(more)
        return None, None, *grads

    @staticmethod
    def vmap(info: Any, in_dims: tuple, parts: tuple[Part, ...], again: ByReference, *inputs: Tensor) -> tuple:
        """The vmapped axis as the outer part of the batch."""
        size = info.batch_size
        folded = [fold(t, d, size) for t, d in zip(inputs, in_dims[2:], strict=True)]
        (out, at), (lse, _) = (unfold(y, size) for y in Parts.apply(parts, again, *folded))
        return (out, lse), (at, at)


def four(x: Tensor, lead: tuple[int, ...]) -> Tensor:
    """(..., heads, N, D) as (B, heads, N, D)."""
    return x if x.ndim == 4 else x.reshape(math.prod(lead), *x.shape[-3:])


class ByReference:
    """The same attention through the reference, which has every derivative."""

    def __init__(self, call: Any, reference: Callable[[Any], Tensor]) -> None:
        self.call, self.reference, self.read = call, reference, Unwritten(call)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.read.check()
        call = self.call
        more = query.shape[0] // max(1, call.entries)  # a vmapped axis stands before the others
        lead = call.lead if more == 1 else (more, *call.lead)
        given = (("query", query), ("key", key), ("value", value))
        shaped = {n: t.reshape(*lead, *t.shape[-3:]) for n, t in given}
        y = self.reference(dataclasses.replace(call, nodes=call.nodes | shaped, lead=lead))
        return y.reshape(query.shape[0], call.targets, query.shape[1], -1).transpose(1, 2)


def by_reference(call: Any, reference: Callable[[Any], Tensor]) -> ByReference:
    """A call's attention through the reference, as a function of queries, keys and values."""
    return ByReference(call, reference)


def pull(
    again: Callable[..., Tensor], inputs: tuple[Tensor, ...], needed: Sequence[bool], grad: Tensor
) -> list[Tensor | None]:
    """Gradients of the recomputed output, differentiable themselves."""
    pullback = torch.func.vjp(again, *inputs)[1]
    return [g if n else None for g, n in zip(pullback(grad), needed, strict=True)]


def per_entry(x: Tensor, entries: int) -> Tensor:
    """What stands for each batch entry (B or 1, ...), repeated for a vmapped axis before it."""
    return x if x.shape[0] in (1, entries) else x.repeat(entries // x.shape[0], *(1,) * (x.ndim - 1))
