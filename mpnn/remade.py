"""Remade: rows of an output made some at a time, and made again in the backward, so that memory is that of a few rows.

One Function holds all of it, adds up the gradients in place, and knows what a person's network reads besides the
tokens (:mod:`mpnn.reads`). Random numbers and autocast are in the backward what they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from mpnn.checks import transforms, wide
from mpnn.reads import Reading, leaves_of, read_besides
from mpnn.recompute import Holder, Unwritten

Work = Callable[[list[Tensor], slice], Tensor]  # (tensors, rows) → (..., rows, C)


def aggregate_by_rows(
    call: Any,
    rows: Sequence[slice],
    first: slice,
    aggregate: Callable[[Any, slice], Tensor],
    by_axis: Sequence[str] = (),
) -> Tensor:
    """The aggregate of a call from aggregate(call, rows) of some targets each: (..., N, C).

    ``first``: a few targets, whose aggregate tells what is read. ``by_axis``: names of tensors over tokens that are to
    lie channel by channel.
    """
    rule = call.weight
    read = Unwritten(call)
    modules = Holder(m for m in (rule, getattr(rule, "score_bias", None)) if isinstance(m, nn.Module))
    parameters = dict(modules.named_parameters())
    # each tensor once: one set of tokens stays one tensor, so that a rule sees that both ends are the same
    data = {"attr": call.attr, "edge_weight": call.edge_weight}
    named = call.nodes | {k: t for k, t in data.items() if t is not None}
    tensors = list({id(t): t for t in named.values()}.values())
    places = {k: next(i for i, other in enumerate(tensors) if other is t) for k, t in named.items()}
    turned = {places[k] for k in by_axis if k in places}

    def work(given: list[Tensor], rows: slice) -> Tensor:
        own, nodes = call.again(), {k: given[i] for k, i in places.items()}
        own.attr, own.edge_weight, own.bias = nodes.pop("attr", None), nodes.pop("edge_weight", None), None
        own.nodes = nodes
        read.check()
        # those that are the modules' own stay in place: lending others would be seen by threads that call the modules
        pairs = zip(parameters.items(), given[len(tensors) :], strict=True)
        swapped = {name: lent for (name, kept), lent in pairs if lent is not kept}
        if not swapped:
            return aggregate(own, rows)
        return torch.func.functional_call(modules, swapped, (lambda _: aggregate(own, rows), {}))

    laid = [t.mT.contiguous().mT if i in turned else t for i, t in enumerate(tensors)]
    return by_rows(work, rows, first, [*laid, *parameters.values()])


def by_rows(work: Work, rows: Sequence[slice], first: slice, tensors: list[Tensor]) -> Tensor:
    """The outputs work(tensors, rows) of all rows, joined: (..., N, C).

    Under functional transforms, and where a network reads what cannot be known, every part keeps what its backward
    needs.
    """
    if torch.is_grad_enabled() and not transforms():
        besides = read_besides(lambda given: work(given, first), tensors)
        every = [*tensors, *(besides or ())]
        if besides is not None and any(t.requires_grad for t in every):
            return _Remade.apply(work, rows, len(tensors), besides, *every)
    return _joined(work, tensors, rows)


def _joined(work: Work, tensors: list[Tensor], rows: Sequence[slice]) -> Tensor:
    """All rows of the output. Without a graph they are written into one tensor: small ones that stay would cut up the
    memory that each part frees, and the next part could not use it."""
    if torch.is_grad_enabled() or transforms():
        return torch.cat([work(tensors, r) for r in rows], -2)
    y = work(tensors, rows[0])
    out = y.new_empty(*y.shape[:-2], rows[-1].stop, y.shape[-1])
    for r in rows:
        out[..., r, :] = y if r is rows[0] else work(tensors, r)
    return out


class _Remade(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, work: Work, rows: Sequence[slice], given: int, besides: list[Tensor], *tensors: Tensor
    ) -> Tensor:
        ctx.work, ctx.rows, ctx.given, ctx.besides = work, rows, given, besides
        ctx.save_for_backward(*tensors)
        ctx.setting = _Setting(tensors[0].device)
        y = _joined(work, list(tensors[:given]), rows)
        ctx.setting.forget_unused()
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        needed, twice = ctx.needs_input_grad[4:], torch.is_grad_enabled()
        with torch.enable_grad(), ctx.setting.again():
            ends = [_end(t, n, twice) for t, n in zip(ctx.saved_tensors, needed, strict=True)]
            wanted = [t for t, n in zip(ends, needed, strict=True) if n]
            found: Any = _twice(ctx, ends, wanted, grad) if twice else _once(ctx, ends, wanted, grad)
        grads = iter(found)
        return (None, None, None, None, *[next(grads) if n else None for n in needed])


def _end(tensor: Tensor, needed: bool, twice: bool) -> Tensor:
    """An end of the graph in a tensor's place, whatever it comes from; a parameter without hooks stays itself."""
    if not twice and isinstance(tensor, nn.Parameter) and not tensor._backward_hooks:
        return tensor
    end = tensor if twice else tensor.detach().requires_grad_(needed)
    return end.view_as(end)


def _once(ctx: Any, ends: list[Tensor], wanted: list[Tensor], grad: Tensor) -> list[Tensor | None]:
    """Gradients of all rows, some rows at a time."""
    totals: list[Tensor | None] = [None] * len(wanted)
    mapped = bool(transforms())  # over upstream gradients, whose sums may be written to by no one else
    for rows in ctx.rows:
        y = _again(ctx, ends, rows)
        if not y.requires_grad:
            continue
        own = grad.narrow(-2, rows.start, rows.stop - rows.start)
        found = torch.autograd.grad(y, wanted, own, allow_unused=True)
        with torch.no_grad():
            for i, g in enumerate(found):
                total = totals[i]
                if g is not None and total is None:
                    totals[i] = g.to(wide(g.dtype), copy=True)
                elif g is not None and total is not None:
                    totals[i] = total + g if mapped else total.add_(g)
    return [None if total is None else total.to(t.dtype) for total, t in zip(totals, wanted, strict=True)]


def _twice(ctx: Any, ends: list[Tensor], wanted: list[Tensor], grad: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients that can be differentiated themselves."""
    y = torch.cat([_again(ctx, ends, rows) for rows in ctx.rows], -2)
    if not y.requires_grad:
        return (None,) * len(wanted)
    return torch.autograd.grad(y, wanted, grad, create_graph=True, allow_unused=True)


def _again(ctx: Any, ends: list[Tensor], rows: slice) -> Tensor:
    given, besides = ends[: ctx.given], ends[ctx.given :]
    if besides:
        with Reading({id(t): (t, end) for t, end in zip(ctx.besides, besides, strict=True)}) as reading:
            y = ctx.work(given, rows)
        if rows is ctx.rows[0] and len(reading.met) < len(besides):
            raise RuntimeError(
                "expected a network that reads in the backward what it has read in the forward, got one that reads "
                f"{len(reading.met)} of {len(besides)} tensors that want a gradient; what a function reads must not be "
                "replaced before the backward"
            )
    else:
        y = ctx.work(given, rows)
    if leaves_of(y, ends):
        raise RuntimeError(
            "expected a network that reads the same tensors for all targets, got one that reads a tensor that wants a "
            f"gradient at targets {rows.start} to {rows.stop - 1}, and not at target {ctx.rows[0].start}; let it read "
            "that at every call"
        )
    return y


class _Setting:
    """The random numbers and the autocast of a forward, for its backward."""

    def __init__(self, device: torch.device) -> None:
        self.device, kind = device, device.type
        self.autocast = None if kind == "meta" else (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        self.states: list[Tensor] | None = self._states()

    def _states(self) -> list[Tensor]:
        states = [torch.get_rng_state()]
        return [*states, torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else states

    def forget_unused(self) -> None:
        """Nothing was drawn: the backward needs no state."""
        assert self.states is not None
        if all(torch.equal(a, b) for a, b in zip(self.states, self._states(), strict=True)):
            self.states = None

    @contextmanager
    def again(self) -> Iterator[None]:
        kind = self.device.type
        with nullcontext() if self.autocast is None else torch.autocast(kind, self.autocast[1], self.autocast[0]):
            if self.states is None:
                yield
                return
            with torch.random.fork_rng([self.device] if kind == "cuda" else []):
                torch.set_rng_state(self.states[0])
                for state in self.states[1:]:
                    torch.cuda.set_rng_state(state, self.device)
                yield
