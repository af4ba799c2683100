"""Attention over compressed rows in one step, by compiled functions, with a backward of its own.

Tensors hold the heads of a token side by side: (B, N, heads, D), the memory order of a linear layer's output. What each
kind of score reads is written in ``mpnn.native.forward``, which is imported where it is first needed.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mpnn.functions import fold, twinned, unfold
from mpnn.memo import lasting
from mpnn.native.calls import Call, at, called
from mpnn.native.jobs import KINKED, PRODUCT, SUM
from mpnn.segments import segment_softmax, segment_sum
from mpnn.sparse.csr import Csr


def _inner(x: Tensor) -> Tensor:
    """A tensor out of its functional transforms."""
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """The attention of one list of edges: its kind, and its two numbers.

    Inputs: a (B, N, heads, D), b (B, M, heads, D), for SUM (B, ·, heads) · vector (B, heads, D) for KINKED · u (B, N,
    heads, F) and feature (B, E, F), or None · bias (B, E, heads) in the rows' order, or None; -inf removes an edge ·
    value (B, M, heads, W). Outputs: out (B, N, heads, W) · Σ_j w_ij f_ij (B, N, heads, F) · lse (B, N, heads).
    """

    csr: Csr
    kind: int = PRODUCT
    scale: float = 1.0
    slope: float = 0.0

    def __post_init__(self) -> None:
        if not lasting(self.csr.row):  # edges made inside a functional transform: addresses are those of what is inside
            object.__setattr__(self, "csr", self.csr.through(_inner))

    def _call(self, inputs: tuple, turned: bool = False) -> Call:
        return called(self.csr, turned, self.kind, self.scale, self.slope, inputs)

    def forward(self, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        """(out, sums of features, lse)."""
        from mpnn.native import forward

        call = self._call(inputs)
        a, value, slots = call.held[0], call.held[6], call.jobs.slots
        (batch, n, heads), wide = a.shape[:3], value.shape[3]
        features = 0 if call.held[3] is None else call.held[3].shape[3]
        made = [a.new_empty(batch, n, heads, *size) for size in ((wide,), (features,), ())]
        parts = [a.new_empty(batch, slots, heads, *size) for size in ((wide,), (features,), ())] if slots else []
        call.run(forward.forward, 1, *at(*made, *parts))
        if slots:
            sizes, long = (n, heads, wide, features, slots, batch), call.jobs.long
            forward.join(sizes, call.fixed[1](0), *at(long), len(long), at(*parts), at(*made))
        return made[0], made[1], made[2]

    def backward(
        self, inputs: tuple, outputs: tuple[Tensor, ...], grads: tuple[Tensor, Tensor], needed: tuple[bool, ...]
    ) -> list[Tensor | None]:
        """The gradients of the inputs that need one."""
        from mpnn.native import by_source, by_target

        call = self._call(inputs)
        a, b, _, u, feature, _, value = call.held
        jobs, slots, (batch, n, heads) = call.jobs, call.jobs.slots, a.shape[:3]
        grad, grad_z = (g.contiguous() for g in grads)
        out, z, lse = (t.contiguous() for t in outputs)
        share, d_a = lse.new_empty(lse.shape), a.new_empty(a.shape)
        d_u = a.new_empty(batch, n, heads, 0) if u is None else u.new_empty(u.shape)
        parts = [a.new_empty(batch, slots, *t.shape[2:]) for t in (d_a, d_u)] if slots else [None, None]
        d_vector = a.new_zeros(batch, jobs.items.shape[0], heads, a.shape[3]) if self.kind == KINKED else None
        d_feature = a.new_zeros(batch, *feature.shape[1:]) if needed[4] else None
        d_bias = a.new_empty(batch, self.csr.row.shape[0], heads) if needed[5] else None
        made = at(d_a, d_u, *parts, share, d_vector, d_feature, d_bias)
        call.run(by_target.by_target, 2, *at(grad, grad_z, out, z, lse), *made)
        self._add_up(call, (d_a, d_u), parts)
        d_b, d_value = b.new_empty(b.shape), value.new_empty(value.shape)
        if needed[1] or needed[6]:
            call = self._call(inputs, turned=True)
            slots = call.jobs.slots
            parts = [a.new_empty(batch, slots, *t.shape[2:]) for t in (d_b, d_value)] if slots else [None, None]
            made = (*at(grad, grad_z, share, lse), 0, *at(d_b, d_value, *parts))
            call.run(by_source.by_source, 2, *made)
            self._add_up(call, (d_b, d_value), parts)
        summed = None if d_vector is None else d_vector.sum(1)
        found = (d_a, d_b, summed, d_u, d_feature, d_bias, d_value)
        return [g if wanted else None for g, wanted in zip(found, needed, strict=True)]

    @staticmethod
    def _add_up(call: Call, made: tuple[Tensor, ...], parts: list) -> None:
        from mpnn.native import by_source

        jobs = call.jobs
        if jobs.slots:
            for y, x in zip(made, parts, strict=True):
                where = at(jobs.long)[0], len(jobs.long), jobs.slots, y.shape[0], math.prod(y.shape[2:])
                by_source.add_up(call.fixed[1](0), y.shape[1], *where, *at(x, y))

    def explicit(self, *inputs: Any) -> tuple[Tensor, Tensor]:
        """The same as plain torch operations, for derivatives of any order: it holds the edges' channels."""
        a, b, vector, u, feature, bias, value = inputs
        row, col, n = self.csr.row, self.csr.col.long(), self.csr.shape[0]
        at_row, at_col = a.index_select(1, row), b.index_select(1, col)
        if self.kind == PRODUCT:
            score = (at_row * at_col).sum(-1)
            if u is not None:
                score = score + (u.index_select(1, row) * feature[:, :, None]).sum(-1)
            score = score * self.scale
        else:
            score = at_row + at_col
        leaky = torch.nn.functional.leaky_relu
        if self.kind == KINKED:
            score = (leaky(score, self.slope) * vector[:, None]).sum(-1)
        score = score if bias is None else score + bias
        if self.kind == SUM:
            removed = score == -torch.inf
            score = leaky(score.masked_fill(removed, 0), self.slope).masked_fill(removed, -torch.inf)
        weight = segment_softmax(score, None, row, n)
        out = segment_sum((weight[..., None] * value.index_select(1, col)).flatten(-2), row, n)
        z = value.new_zeros(*out.shape[:2], value.shape[2], 0)
        if feature is not None:
            z = segment_sum((weight[..., None] * feature[:, :, None]).flatten(-2), row, n).unflatten(
                -1, (-1, feature.shape[-1])
            )
        return out.unflatten(-1, value.shape[2:]), z


@twinned
class RowAttention(Function):
    """``Rows.forward`` with its backward; differentiated once more it goes through ``Rows.explicit``."""

    @staticmethod
    def forward(rows: Rows, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        return rows.forward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.rows = inputs[0]
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(*inputs[1:], *output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_z: Tensor, _: Any) -> tuple:
        saved = ctx.saved_tensors  # once: torch.utils.checkpoint makes them again at the first look only
        inputs, outputs = saved[:7], saved[7:]
        needed = ctx.needs_input_grad[1:]
        if not torch.is_grad_enabled():
            return None, *ctx.rows.backward(inputs, outputs, (grad, grad_z), needed)
        places = [i for i, n in enumerate(needed) if n]

        def run(*given: Tensor) -> tuple[Tensor, Tensor]:
            new = dict(zip(places, given, strict=True))
            return ctx.rows.explicit(*(new.get(i, t) for i, t in enumerate(inputs)))

        found = torch.func.vjp(run, *(inputs[i] for i in places))[1]((grad, grad_z))
        back = dict(zip(places, found, strict=True))
        return None, *(back.get(i) for i in range(7))

    @staticmethod
    def vmap(info: Any, in_dims: tuple, rows: Rows, *inputs: Any) -> tuple:
        """The vmapped axis as the outer part of the batch."""
        size = info.batch_size
        folded = [None if t is None else fold(t, d, size) for t, d in zip(inputs, in_dims[1:], strict=True)]
        made = [unfold(y, size) for y in RowAttention.apply(rows, *folded)]
        return tuple(y for y, _ in made), tuple(at for _, at in made)
