"""The reference kernel: gather, weigh, reduce, straight from ``edges()`` and ``per_edge()``. It is the definition.

It runs every pair of rules in blocks of targets. One block is plain torch operations, so that every transform applies.
Of
several blocks each is recomputed in the backward, so that memory stays that of one block.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from mpnn.checks import compiling, transforms
from mpnn.edges import Edges
from mpnn.kernels.base import Call
from mpnn.pairs import Pairs
from mpnn.segments import segment_maximum, segment_sum
from mpnn.spec import Spec

name = "reference"

BLOCK = 1 << 24  # numbers held at once by a block: 64 MiB of float32


def unsupported(spec: Spec) -> list[str]:
    """Nothing: the reference runs every call."""
    return []


def run(call: Call, reference: Any = None) -> Tensor:
    """The aggregate: (..., N, C)."""
    if call.weight.normalise == "symmetric":
        call.inverse_root()  # over all edges, before any block
    if compiling():
        return _block(call, None, *next(iter(call.blocks(None)))[1:])
    blocks = call.blocks(edges_each(call))
    first = next(blocks)
    if first[0] is None:
        return _block(call, *first)
    recompute = _recompute_in_backward(call)
    parts = [recompute(rows, edges, slot) for rows, edges, slot in _chain(first, blocks)]
    return torch.cat(parts, -2)


def edges_each(call: Call) -> int:
    """How many edges a block may have."""
    weight = call.weight
    if weight.heads is not None:
        per_edge = call.entries * weight.heads * (3 * call.value.shape[-1] + 4)
    else:
        per_edge = weight.before * weight.after // weight.groups + call.entries * (weight.before + weight.after)
    return max(1, BLOCK // max(1, per_edge))


def _chain(first: Any, rest: Any) -> Any:
    yield first
    yield from rest


def _block(call: Call, rows: slice | None, edges: Edges, slot: Tensor | None) -> Tensor:
    pairs = call.pairs(edges, slot)
    first, count = (0, call.targets) if rows is None else (rows.start, rows.stop - rows.start)
    weight, keep = call.normalised(pairs, slot, first, count)
    if call.dropout:
        weight = nn.functional.dropout(weight, call.dropout)
    return _reduce(call, pairs, weight, keep, first, count)


def _reduce(call: Call, pairs: Pairs, weight: Tensor, keep: Tensor | None, first: int, count: int) -> Tensor:
    messages = call.messages(pairs, weight)
    target, heads = pairs.target - first, call.weight.groups is None
    if keep is not None:  # as the messages: (..., heads, E, 1) or (..., E, 1)
        keep = keep.transpose(-2, -1)[..., None] if heads else keep
    if call.weight.reduce == "max":
        total = segment_maximum(messages, keep, target, count)
    else:
        total = segment_sum(messages, target, count)
    if call.weight.reduce == "mean":
        one = messages.new_ones(len(pairs), 1) if keep is None else keep.to(messages.dtype)
        total = total / segment_sum(one, target, count).clamp(min=1)
    total = total.transpose(-3, -2).flatten(-2) if heads else total
    return total.to(call.value.dtype)


def edge_weights(call: Call) -> tuple[Edges, Tensor]:
    """Every edge and its weight as used, before dropout: (..., E, heads) or (..., E, in·out/groups)."""
    if call.weight.normalise == "symmetric":
        call.inverse_root()
    parts = []
    for rows, edges, slot in call.blocks(None if compiling() else edges_each(call)):
        first, count = (0, call.targets) if rows is None else (rows.start, rows.stop - rows.start)
        parts.append((edges, call.normalised(call.pairs(edges, slot), slot, first, count)[0], slot))
    if len(parts) == 1 and parts[0][2] is None:
        return parts[0][0], parts[0][1]
    weight = torch.cat([w for _, w, _ in parts], -2)
    if parts[0][2] is not None:
        order = torch.argsort(torch.cat([s for _, _, s in parts]))
        return call.all_edges(), weight.index_select(-2, order)
    names = ("source", "target", "relation", "offset", "index")
    joined = [
        None if getattr(parts[0][0], n) is None else torch.cat([getattr(e, n) for e, _, _ in parts]) for n in names
    ]
    return Edges(*joined), weight  # type: ignore[arg-type]


class _Holder(nn.Module):
    """Lets a functional call replace the parameters that a block reads."""

    def __init__(self, rule: Any) -> None:
        super().__init__()
        self.modules_read = nn.ModuleList(
            m for m in (rule if isinstance(rule, nn.Module) else rule.score_bias,) if isinstance(m, nn.Module)
        )

    def forward(self, block: Any) -> Tensor:
        return block()


class _Recompute(torch.autograd.Function):
    """A block whose intermediate tensors are made again in the backward, by ``torch.func.vjp``."""

    @staticmethod
    def forward(block: Any, *tensors: Tensor) -> Tensor:
        return block(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.block = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        tensors, needed = ctx.saved_tensors, ctx.needs_input_grad[1:]
        chosen = [t for t, n in zip(tensors, needed, strict=True) if n]

        def block(*given: Tensor) -> Tensor:
            rest = iter(given)
            return ctx.block(*(next(rest) if n else t for t, n in zip(tensors, needed, strict=True)))

        _, pullback = torch.func.vjp(block, *chosen)
        grads = iter(pullback(grad))
        return (None, *(next(grads) if n else None for n in needed))


def _recompute_in_backward(call: Call) -> Any:
    """How a block among several runs: recomputed in its backward, unless a transform or a plain function forbids."""
    rule = call.weight
    holder = _Holder(rule)
    parameters = dict(holder.named_parameters())
    extra = {k: t for k, t in (("attr", call.attr), ("edge_weight", call.edge_weight)) if t is not None}
    inputs = [*call.nodes.values(), *extra.values(), *parameters.values()]
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in inputs)
    # a plain function may read tensors that only the autograd of this very forward sees
    unseen = getattr(rule, "score", None) is not None or not isinstance(getattr(rule, "network", holder), nn.Module)
    if not wanted or unseen or transforms():
        return lambda rows, edges, slot: _block(call, rows, edges, slot)
    names = [("node", k) for k in call.nodes] + [("call", k) for k in extra] + [("parameter", k) for k in parameters]
    same = {k: next(j for j in call.nodes if call.nodes[j] is t) for k, t in call.nodes.items()}

    def recomputed(rows: slice, edges: Edges, slot: Tensor | None) -> Tensor:
        seed = int(torch.randint(1 << 62, ())) if call.dropout else 0

        def block(*tensors: Tensor) -> Tensor:
            given = {
                kind: {k: t for (n, k), t in zip(names, tensors, strict=True) if n == kind}
                for kind in ("node", "call", "parameter")
            }
            nodes = {k: given["node"][same[k]] for k in given["node"]}  # one set of tokens stays one tensor
            fresh = dataclasses.replace(call, nodes=nodes, dropout=0.0, **given["call"])
            return torch.func.functional_call(
                holder, given["parameter"], (lambda: _seeded(fresh, rows, edges, slot, call.dropout, seed),)
            )

        return _Recompute.apply(block, *inputs)

    return recomputed


def _seeded(call: Call, rows: slice, edges: Edges, slot: Tensor | None, dropout: float, seed: int) -> Tensor:
    """A block with dropout from a seed, the same when it is made again."""
    if not dropout:
        return _block(call, rows, edges, slot)
    pairs = call.pairs(edges, slot)
    first, count = rows.start, rows.stop - rows.start
    weight, keep = call.normalised(pairs, slot, first, count)
    generator = torch.Generator(weight.device).manual_seed(seed)
    kept = torch.rand(weight.shape, generator=generator, device=weight.device) >= dropout
    weight = weight * kept / (1 - dropout) if dropout < 1 else weight * 0
    return _reduce(call, pairs, weight, keep, first, count)
