"""pairwise: every target meets every source, some rows of targets at a time, in dense tensors without a list of pairs.

A rule reads its pairs as planes of targets × sources, repeated and not gathered; a softmax is one over rows, and the
aggregate one product of weights and values for each head. A block is small enough for its planes to stay in the cache;
the backward makes each again, so that memory grows with the tokens and not with their pairs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mpnn import limits
from mpnn.checks import exactly, wide
from mpnn.dense_pairs import DensePairs
from mpnn.edges import Edges
from mpnn.kernels.base import Call
from mpnn.normalise import inverse_root, messages_of, per_edge
from mpnn.reasons import FORWARD_MODE, TRACED
from mpnn.remade import aggregate_by_rows
from mpnn.scores import all_heads
from mpnn.segments import row_softmax
from mpnn.spec import Spec
from mpnn.weights import EdgeNetwork

name = "pairwise"
CACHED = 1 << 20  # numbers that a rule reads of a block and makes of it: a CPU keeps them in its cache
LEAST = 8  # rows of a block, where memory allows: the gradients of all sources are added up once a block
BY_AXIS = ("x_source", "x_target", "value", "coordinates_source", "coordinates_target", "term_source", "term_target")


def unsupported(spec: Spec) -> list[str]:
    """Why this call is no sum over all pairs."""
    why = []
    if not spec.complete:
        why.append("needs Full or AllTokens, not causal: every target meets every source")
    if spec.ragged:
        why.append("the graphs of a batch are blocks of their own, which are no whole rows")
    if spec.score_bias == "edges":
        why.append("a bias per edge is not dense")
    if spec.reduce == "max":
        why.append("a maximum is no product of weights and values")
    if spec.normalise == "relation":
        why.append("the relations of pairs are counted in a list of them")
    if "jvp" in spec.transforms:
        why.append(FORWARD_MODE)
    if spec.dropout and spec.transforms:
        why.append("dropout under a functional transform")
    if spec.compiling:
        why.append(TRACED)
    return why


def run(call: Call, reference: Callable[[Call], Tensor]) -> Tensor:
    """The aggregate: (..., N, C)."""
    if call.weight.normalise == "symmetric":
        inverse_root(call)
    call = _with_terms(call)
    rows = _blocks(call)
    if len(rows) == 1:
        return _aggregate(call, rows[0])
    return aggregate_by_rows(call, rows, slice(0, 1), _aggregate, BY_AXIS)


def _blocks(call: Call) -> list[slice]:
    """Slices of targets, of as many rows as the cache holds what a rule reads of them."""
    n, m = call.targets, call.sources
    rule = call.weight
    each = call.width + rule.heads if rule.heads is not None else rule.before * rule.after // rule.groups
    if n * m * call.entries * each <= CACHED:
        return [slice(0, n)]
    limits.keep_freed_memory(call.value.device.type)
    pairs = _pairs(call, slice(0, 1))
    devices = [call.value.device] if call.value.device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices):
        held = _weights(call, pairs, None).numel() + pairs.held
    step = max(1, limits.block // max(1, held))
    if call.value.device.type == "cpu":
        step = min(step, max(LEAST, CACHED // max(1, held)))
    return [slice(a, min(a + step, n)) for a in range(0, n, step)]


def _with_terms(call: Call) -> Call:
    """The call with the terms of an additive score at its tokens, once a token and not once a pair."""
    network, nodes = getattr(call.weight, "network", None), call.nodes
    if isinstance(network, EdgeNetwork) and "x_target" in nodes and network.factors():
        terms = network.factor(nodes["value"], nodes["x_source"], nodes["x_target"])
        if terms is not None:
            call = call.again()
            dtype = wide(call.value.dtype)
            call.nodes = nodes | {
                f"term_{end}": t.to(dtype) for end, t in zip(("source", "target"), terms, strict=True)
            }
    return call


def _pairs(call: Call, rows: slice) -> DensePairs:
    rule, targets, sources = call.neighbours, call.targets, call.sources

    def listed() -> Edges:
        return rule.edges(targets, sources, rows=rows, tokens=call.target_tokens)

    ids = lambda edges: rule.pair_ids(edges, targets, sources)  # noqa: E731
    return DensePairs(rows, sources, listed, call.nodes, call.weight.heads, call.weight.project, call.attr, ids)


def _aggregate(call: Call, rows: slice) -> Tensor:
    """The aggregate of some targets: (..., rows, C)."""
    rule, pairs = call.weight, _pairs(call, rows)
    keep = _keep(call, rows)
    weight = _weights(call, pairs, keep)
    if call.dropout:
        weight = torch.nn.functional.dropout(weight, call.dropout)
    with exactly(call.value.device.type):
        y = _sum(call, pairs, weight)
        if rule.reduce == "mean":
            y = y / (max(1, call.sources) if keep is None else keep.sum(-1, keepdim=True).clamp(min=1))
    return y.transpose(-3, -2).flatten(-2).to(call.value.dtype)


def _keep(call: Call, rows: slice) -> Tensor | None:
    """Which pairs no mask removes: bool (..., 1 or heads, rows or 1, M)."""
    own = slice(rows.start, rows.stop)
    kept = None if call.source_mask is None else call.source_mask[..., None, None, :]
    if call.target_mask is not None:
        at = call.target_mask[..., None, own, None]
        kept = at if kept is None else kept & at
    if call.pair_mask is not None:
        given = call.pair_mask if call.pair_mask.ndim > 2 else call.pair_mask.expand(1, *call.pair_mask.shape[-2:])
        given = given if given.shape[-2] == 1 else given[..., own, :]
        kept = given if kept is None else kept & given
    return None if kept is None else kept.expand(*kept.shape[:-1], call.sources)


def _weights(call: Call, pairs: DensePairs, keep: Tensor | None) -> Tensor:
    """The weights as they are used, before dropout: (..., heads or in·out/groups, rows, M)."""
    rule = call.weight
    if "term_source" in call.nodes:
        scores = pairs.summed(call.nodes["term_source"], call.nodes["term_target"])
        scores = scores if rule.network.edge is None else scores + rule.network.edge_term(pairs.attr).to(scores.dtype)
        weight = pairs.planes(rule.network.activation(scores))
    else:
        weight = pairs.planes(per_edge(call, pairs))
    if rule.normalise == "softmax":
        return row_softmax(weight, keep)
    for scale in _scales(call, pairs):
        weight = weight.to(wide(weight.dtype)) * scale.to(wide(weight.dtype))
    return weight if keep is None else weight.masked_fill(~keep, 0)


def _scales(call: Call, pairs: DensePairs) -> list[Tensor]:
    """What multiplies the weights besides the rule: edge weights and degrees, (..., 1 or heads, rows, M)."""
    found = []
    if call.edge_weight is not None:
        found.append(pairs.planes(pairs.per_edge_row(call.edge_weight[..., None])))
    if call.weight.normalise == "symmetric":
        root = inverse_root(call)
        found.append(pairs.of_rows(root).mT[..., None] * root.mT[..., None, :])
    return found


def _sum(call: Call, pairs: DensePairs, weight: Tensor) -> Tensor:
    """Σ_j w_ij · (value_j + added_ij) in the accumulation's dtype: (..., heads or groups, rows, D)."""
    rule, value = call.weight, call.value.to(wide(call.value.dtype))
    weight, added = weight.to(value.dtype), rule.edge_value(pairs)
    if rule.heads is not None:
        y = weight @ all_heads(value, rule.heads)
        if added is None:
            return y
        added = added.transpose(-3, -2).unflatten(-2, pairs.shape).to(value.dtype)  # (..., heads, rows, M, D)
        return y + (weight.unsqueeze(-2) @ added).squeeze(-2)
    if added is not None:
        messages = messages_of(call, pairs, pairs.listing(weight))
        return messages.unflatten(-2, pairs.shape).sum(-2).unsqueeze(-3)
    value = value.unflatten(-1, (rule.groups, -1)).transpose(-3, -2)  # (..., groups, M, in)
    before, after = rule.before // rule.groups, rule.after // rule.groups
    if before == after == 1:
        return weight @ value
    matrices = weight.movedim(-3, -1).unflatten(-1, (rule.groups, before, after)).transpose(-4, -3)
    matrices = matrices.flatten(-3, -2)  # (..., rows, groups, M · in, out): a row is one product with all values
    y = value.flatten(-2)[..., None, :, None, :] @ matrices
    return y.squeeze(-2).transpose(-3, -2)
