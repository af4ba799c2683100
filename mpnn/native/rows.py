"""Attention over compressed rows in one step, by compiled functions, with a backward of its own.

Tensors hold the heads of a token side by side: (B, N, heads, D), the memory order of a linear layer's output. What each
kind of score reads is written in ``mpnn.native.forward``, which is imported where it is first needed.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from mpnn.functions import fold, twinned, unfold
from mpnn.memo import lasting
from mpnn.native.jobs import BLOCK, KINKED, PRODUCT, SUM, Jobs, jobs_of, run
from mpnn.segments import segment_softmax, segment_sum
from mpnn.sparse.csr import Csr

_WIDTHS = {n: (0,) * n for n in (32, 16, 8, 4, 1)}
NEAR = 1 << 21  # bytes of rows that are read from all over which need no asking in advance
_TYPES: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}


def lanes(width: int, most: int = 32) -> tuple[int, ...]:
    """As many zeros as numbers are taken at a time: compiled code knows a tuple's length."""
    return next(t for n, t in _WIDTHS.items() if width % n == 0 and n <= most)


def _shared(x: Tensor | None) -> tuple[Tensor | None, int]:
    """A tensor in one piece and the step from one batch entry to the next: 0 where all share it."""
    if x is None:
        return None, 0
    if x.shape[0] == 1 or x.stride(0) == 0:
        return x[:1].contiguous(), 0
    return x.contiguous(), math.prod(x.shape[1:])


def _inner(x: Tensor) -> Tensor:
    """A tensor out of its functional transforms."""
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x


def _at(*tensors: Tensor | None) -> tuple[int, ...]:
    return tuple(0 if t is None else t.data_ptr() for t in tensors)


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

    def _common(self, csr: Csr, jobs: Jobs, inputs: tuple) -> tuple:
        """What every pass gets: sizes, steps, numbers, rows, inputs; and the tensors whose addresses these are."""
        a, b, vector, u, feature, bias, value = inputs
        batch, n, heads = a.shape[:3]
        (vector, own), (feature, more), (bias, less) = _shared(vector), _shared(feature), _shared(bias)
        u = u if u is None else u.contiguous()
        held = (a.contiguous(), b.contiguous(), vector, u, feature, bias, value.contiguous())
        width, features = 1 if self.kind == SUM else a.shape[3], 0 if u is None else u.shape[3]
        edges = csr.row.shape[0]
        near = (b.numel() + value.numel()) * a.element_size() <= NEAR
        sizes = (n, b.shape[1], edges, heads, width, value.shape[3], features, jobs.slots, batch, near)
        number = _TYPES[a.dtype]
        narrow = np.int32(0) if csr.col.dtype == torch.int32 else np.int64(0)
        numbers = (number(self.scale), number(self.slope), np.int64(0), narrow)
        places = csr.order if csr is not self.csr and (features or bias is not None) else None
        rows = (*_at(jobs.items, csr.offsets, csr.col, places), jobs.items.shape[0])
        cost = batch * edges * heads * (width + value.shape[3])
        return (self.kind, sizes, (own, more, less), numbers, rows, _at(*held)), held, cost

    def _run(self, function: Any, common: tuple, cost: int, *given: tuple) -> None:
        _, sizes, _, _, rows, _ = common
        wide = (lanes(sizes[4]), lanes(sizes[5]), lanes(sizes[3], 8))

        def work(first: int, end: int) -> None:
            space = torch.empty(3 * (BLOCK * sizes[3] + 16), dtype=torch.float64)
            function(first, end, *common, *given, space.data_ptr(), *wide)

        run(work, rows[4] * sizes[8], cost)

    def forward(self, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        """(out, sums of features, lse)."""
        from mpnn.native import forward

        jobs = jobs_of(self.csr)
        common, held, cost = self._common(self.csr, jobs, inputs)
        n, _, _, heads, _, wide, features, slots, batch, _ = common[1]
        made = [held[0].new_empty(batch, n, heads, *size) for size in ((wide,), (features,), ())]
        parts = [held[0].new_empty(batch, slots, heads, *size) for size in ((wide,), (features,), ())] if slots else []
        self._run(forward.forward, common, cost, (*_at(*made), *(_at(*parts) if slots else (0, 0, 0))))
        if slots:
            forward.join(common[1], common[3][0], *_at(jobs.long), len(jobs.long), _at(*parts), _at(*made))
        return made[0], made[1], made[2]

    def backward(
        self, inputs: tuple, outputs: tuple[Tensor, ...], grads: tuple[Tensor, Tensor], needed: tuple[bool, ...]
    ) -> list[Tensor | None]:
        """The gradients of the inputs that need one."""
        from mpnn.native import backward

        jobs = jobs_of(self.csr)
        common, held, cost = self._common(self.csr, jobs, inputs)
        n, _m, edges, heads, width, _wide, features, slots, batch, _near = common[1]
        a, b, _, _, _, _, value = held
        grad, grad_z = (g.contiguous() for g in grads)
        out, z, lse = (t.contiguous() for t in outputs)
        share = lse.new_empty(lse.shape)
        d_a, d_u = a.new_empty(a.shape), a.new_empty(batch, n, heads, features)
        parts = [a.new_empty(batch, slots, *t.shape[2:]) for t in (d_a, d_u)] if slots else [None, None]
        d_vector = a.new_zeros(batch, jobs.items.shape[0], heads, width) if self.kind == KINKED else None
        d_feature = a.new_zeros(batch, edges, features) if needed[4] else None
        d_bias = a.new_empty(batch, edges, heads) if needed[5] else None
        made = _at(d_a, d_u, *parts, share, d_vector, d_feature, d_bias)
        self._run(backward.by_target, common, 2 * cost, _at(grad, grad_z, out, z, lse), made)
        self._add_up(jobs, common, (d_a, d_u), parts)
        d_b, d_value = b.new_empty(b.shape), value.new_empty(value.shape)
        if needed[1] or needed[6]:
            turned = self.csr.transpose
            jobs = jobs_of(turned)
            common, held, _ = self._common(turned, jobs, inputs)
            parts = [a.new_empty(batch, jobs.slots, *t.shape[2:]) for t in (d_b, d_value)] if jobs.slots else parts
            made = (*_at(d_b, d_value), *(_at(*parts) if jobs.slots else (0, 0)))
            self._run(backward.by_source, common, 2 * cost, _at(grad, grad_z, share, lse), made)
            self._add_up(jobs, common, (d_b, d_value), parts)
        summed = None if d_vector is None else d_vector.sum(1)
        found = (d_a, d_b, summed, d_u, d_feature, d_bias, d_value)
        return [g if wanted else None for g, wanted in zip(found, needed, strict=True)]

    @staticmethod
    def _add_up(jobs: Jobs, common: tuple, made: tuple[Tensor, ...], parts: list) -> None:
        from mpnn.native import backward

        if jobs.slots:
            for y, x in zip(made, parts, strict=True):
                where = _at(jobs.long)[0], len(jobs.long), jobs.slots, y.shape[0], math.prod(y.shape[2:])
                backward.add_up(common[3][0], y.shape[1], *where, *_at(x, y))

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
        inputs, outputs = ctx.saved_tensors[:7], ctx.saved_tensors[7:]
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
