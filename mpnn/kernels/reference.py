"""The reference kernel: gather, weigh, reduce, straight from ``edges()`` and ``per_edge()``. It is the definition.

It runs every pair of rules in blocks of targets. One block is plain torch operations, so that every transform applies.
Of several blocks each is recomputed in the backward, so that memory stays that of one block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mpnn import limits
from mpnn.checks import compiling
from mpnn.edges import Edges
from mpnn.kernels.base import Call
from mpnn.normalise import inverse_root, messages_of, normalised
from mpnn.pairs import Pairs
from mpnn.remade import aggregate_by_rows
from mpnn.segments import segment_max, segment_maximum, segment_sum
from mpnn.spec import Spec

name = "reference"


def unsupported(spec: Spec) -> list[str]:
    """Nothing: the reference runs every call."""
    return []


def run(call: Call, reference: Any = None) -> Tensor:
    """The aggregate: (..., N, C)."""
    if call.weight.normalise == "symmetric":
        inverse_root(call)  # over all edges, before any block
    blocks = call.blocks(None if compiling() else edges_each(call))
    if blocks is None:
        return _block(call, None)
    return aggregate_by_rows(call, blocks, _some(call, blocks), _block)


def _some(call: Call, blocks: list[slice]) -> slice:
    """A few targets that have a source."""
    for rows in blocks:
        for few in (slice(rows.start, rows.start + 1), rows):
            if call.block(few)[0].count:
                return few
    return blocks[0]


def edges_each(call: Call) -> int:
    """How many edges a block may have."""
    weight = call.weight
    if weight.heads is not None:
        per_edge = call.entries * weight.heads * (3 * call.value.shape[-1] + 4)
    else:
        per_edge = weight.before * weight.after // weight.groups + call.entries * (weight.before + weight.after)
    return max(1, limits.block // max(1, per_edge))


def _block(call: Call, rows: slice | None) -> Tensor:
    """The aggregate of some targets from all their edges."""
    edges, slot = call.block(rows)
    pairs = call.pairs(edges, slot)
    first, count = (0, call.targets) if rows is None else (rows.start, rows.stop - rows.start)
    weight, keep = normalised(call, pairs, slot, first, count)
    if call.dropout:
        weight = nn.functional.dropout(weight, call.dropout)
    return _reduce(call, pairs, weight, keep, first, count)


def _reduce(call: Call, pairs: Pairs, weight: Tensor, keep: Tensor | None, first: int, count: int) -> Tensor:
    messages = messages_of(call, pairs, weight)
    target, heads = pairs.target - first, call.weight.groups is None
    if keep is not None:  # as the messages: (..., heads, E, 1) or (..., E, 1)
        keep = keep.transpose(-2, -1)[..., None] if heads else keep
    if call.weight.reduce == "max":
        total = segment_maximum(
            messages, keep, target, lambda x: segment_sum(x, target, count), lambda x: segment_max(x, target, count)
        )
    else:
        total = segment_sum(messages, target, count)
    if call.weight.reduce == "mean":
        one = messages.new_ones(pairs.count, 1) if keep is None else keep.to(messages.dtype)
        total = total / segment_sum(one, target, count).clamp(min=1)
    total = total.transpose(-3, -2).flatten(-2) if heads else total
    return total.to(call.value.dtype)


def edge_weights(call: Call) -> tuple[Edges, Tensor]:
    """Every edge and its weight as used, before dropout: (..., E, heads) or (..., E, in·out/groups)."""
    if call.weight.normalise == "symmetric":
        inverse_root(call)
    blocks: list[Edges] = []
    weights, slots = [], []
    for rows in call.blocks(None if compiling() else edges_each(call)) or (None,):
        edges, slot = call.block(rows)
        first, count = (0, call.targets) if rows is None else (rows.start, rows.stop - rows.start)
        weights.append(normalised(call, call.pairs(edges, slot), slot, first, count)[0])
        blocks.append(edges)
        slots += [] if slot is None else [slot]
    if len(blocks) == 1 and not slots:
        return blocks[0], weights[0]
    weight = torch.cat(weights, -2)
    if slots:
        return call.all_edges(), weight.index_select(-2, torch.argsort(torch.cat(slots)))
    return Edges.joined(blocks), weight
