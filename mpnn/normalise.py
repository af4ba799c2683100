"""Weights as they are used: normalised, times what edges and degrees bring; and the messages that they make."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mpnn.call import Call
from mpnn.checks import values, wide
from mpnn.edges import Edges
from mpnn.pairs import Pairs
from mpnn.scores import all_heads
from mpnn.segments import segment_softmax, segment_sum


def inverse_root(call: Call) -> Tensor:
    """1/√degree of each token, 0 where the degree is 0: (..., N, 1 or heads), made once a call."""
    if "inverse_root" not in call.nodes:
        degree = None
        for rows in call.blocks(None if torch.compiler.is_compiling() else 1 << 22) or (None,):
            edges, slot = call.block(rows)
            part = _degree(call, edges, slot, call.keep(edges))
            degree = part if degree is None else degree + part
        assert degree is not None
        if call.edge_weight is not None:
            text = "expected degrees ≥ 0 for normalise='symmetric', which takes their square root; negative degree"
            values(degree >= 0, ValueError, text, degree)
        some = degree > 0
        call.nodes["inverse_root"] = torch.where(some, degree, 1).rsqrt() * some
    return call.nodes["inverse_root"]


def _degree(call: Call, edges: Edges, slot: Tensor | None, keep: Tensor | None) -> Tensor:
    """Summed weights of the edges into each token: (..., N, 1 or heads)."""
    dtype = wide(call.value.dtype)
    weight = torch.ones(edges.count, 1, dtype=dtype, device=edges.source.device)
    if call.edge_weight is not None:
        weight = _at(call.edge_weight, slot).to(dtype)
    if keep is not None:
        weight = torch.where(keep, weight, 0)
    return segment_sum(weight, edges.target, call.targets)


def _at(edge_weight: Tensor, slot: Tensor | None) -> Tensor:
    """The weights of a block's edges: (..., E, 1)."""
    return (edge_weight if slot is None else edge_weight.index_select(-1, slot))[..., None]


def factors(call: Call, edges: Edges, slot: Tensor | None, keep: Tensor | None, first: int, rows: int) -> Tensor | None:
    """What multiplies the weights besides the rule: edge weights and degrees, (..., E, 1 or heads); None for 1."""
    factor = None if call.edge_weight is None else _at(call.edge_weight, slot)
    if call.weight.normalise == "symmetric":
        root = inverse_root(call)
        norm = root.index_select(-2, edges.source) * root.index_select(-2, edges.target)
        factor = norm if factor is None else factor * norm
    if call.weight.normalise == "relation":
        norm = _per_relation(call, edges, keep, first, rows)
        factor = norm if factor is None else factor * norm
    return factor


def normalised(call: Call, pairs: Pairs, slot: Tensor | None, first: int, rows: int) -> tuple[Tensor, Tensor | None]:
    """The weights of a block as they are used, before dropout, and which edges no mask removes."""
    keep = call.keep(pairs.edges)
    weight = per_edge(call, pairs)
    if call.weight.normalise == "softmax":
        return segment_softmax(weight, keep, pairs.target - first, rows), keep
    scale = factors(call, pairs.edges, slot, keep, first, rows)
    if scale is not None:
        weight = weight * scale.to(wide(weight.dtype))
    return (weight if keep is None else weight.masked_fill(~keep, 0)), keep


def per_edge(call: Call, pairs: Pairs) -> Tensor:
    """What the rule says of a block, checked: (..., E, heads) or (..., E, in·out/groups)."""
    rule = call.weight
    weight = rule.per_edge(pairs)
    if rule.heads is None:
        wanted, legend = rule.before * rule.after // rule.groups, "in·out/groups"
    else:
        wanted, legend = rule.heads, "heads"
    rows = pairs.count
    if not isinstance(weight, Tensor) or weight.ndim < 2 or weight.shape[-1] != wanted or weight.shape[-2] != rows:
        got = tuple(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
        name = "the network" if hasattr(rule, "network") else f"{type(rule).__name__}.per_edge"
        raise ValueError(f"expected {name} to return (..., E, {legend}) = (..., {rows}, {wanted}), got {got}")
    return weight


def _per_relation(call: Call, edges: Edges, keep: Tensor | None, first: int, rows: int) -> Tensor:
    count = call.neighbours.relations
    kind = (edges.target - first) * count + (0 if edges.relation is None else edges.relation)
    ones = torch.ones((), dtype=wide(call.value.dtype), device=kind.device)
    ones = ones.expand(edges.count, 1) if keep is None else keep.to(ones.dtype)
    total = segment_sum(ones, kind, rows * count)
    return 1 / total.index_select(-2, kind).clamp(min=1)


def messages_of(call: Call, pairs: Pairs, weight: Tensor) -> Tensor:
    """w_ij · value_j: (..., heads, E, D), or (..., E, C) with groups, in the accumulation's dtype."""
    return weigh(call.weight, pairs.at_source(call.value), weight, call.weight.edge_value(pairs))


def weigh(rule: Any, value: Tensor, weight: Tensor, added: Tensor | None) -> Tensor:
    """w_ij · (value_j + added_ij) of values at the edges: (..., heads, E, D), or (..., E, C) with groups."""
    dtype = wide(value.dtype)
    if rule.groups is not None:
        value = value if added is None else value + added
        per_group = value.unflatten(-1, (rule.groups, -1))
        matrix = weight.unflatten(-1, (rule.groups, rule.before // rule.groups, rule.after // rule.groups))
        product = torch.einsum("...egi,...egio->...ego", per_group, matrix.to(value.dtype))
        return product.flatten(-2).to(dtype)
    value = all_heads(value, rule.heads)
    if added is not None:
        value = value + added.transpose(-3, -2)
    return weight.transpose(-2, -1)[..., None].to(dtype) * value.to(dtype)
