"""Scores of attention: scale · q_i·k_j plus a bias, per edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mpnn.checks import wide
from mpnn.edges import Edges
from mpnn.pairs import Pairs


def edge_scores(
    pairs: Pairs,
    scale: float,
    score_bias: nn.Module | None = None,
    score: Callable[[Tensor, Pairs], Tensor] | None = None,
    edge_key: Tensor | None = None,
) -> Tensor:
    """scale · q_i·(k_j + e_ij) + bias, then ``score``: (..., E, heads), float32 for half-precision inputs."""
    query, key = pairs.node("query"), pairs.node("key")
    dtype = wide(query.dtype)
    groups = query.shape[-3] // key.shape[-3]
    if groups > 1:
        key = key.repeat_interleave(groups, -3)
    scores = pairs.products(query.to(dtype), key.to(dtype), edge_key) * scale
    if score_bias is not None:
        scores = scores + module_bias(pairs, score_bias).to(dtype)
    given = given_bias(pairs)
    if given is not None:
        scores = scores + given
    return scores if score is None else score(scores, pairs)


def module_bias(pairs: Pairs, bias: nn.Module) -> Tensor:
    """A position module's bias at the pairs: (..., E, heads)."""
    at = [pairs.node(f"positions_{end}") for end in ("target", "source")]
    dim = -2 if getattr(bias, "axes", 0) else -1
    return bias(pairs.at_target(at[0], dim), pairs.at_source(at[1], dim))


def given_bias(pairs: Pairs) -> Tensor | None:
    """The caller's bias at the pairs, from (..., heads, N, M) or per edge (E, heads)."""
    if "edge_bias" in pairs.nodes:
        return pairs.per_edge_row(pairs.nodes["edge_bias"])
    if "score_bias" not in pairs.nodes:
        return None
    return at_pairs(pairs.nodes["score_bias"], pairs.target, pairs.source)


def edge_bias(call: Any, edges: Edges, slot: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What is added to the scores at these edges, -inf where a mask removes one: (B or 1, heads or 1, E); None for
    nothing. ``slot``: the rows of the edges in the call's edge data, None for all in order."""
    pairs, module = call.pairs(edges, slot), call.weight.score_bias
    bias = None if module is None else module_bias(pairs, module)
    given = given_bias(pairs)
    if given is not None:
        bias = given if bias is None else bias + given
    keep = call.keep(edges)
    if keep is not None:
        zero = torch.zeros((), device=keep.device) if bias is None else bias
        bias = torch.where(keep, zero, -torch.inf)
    if bias is None:
        return None
    bias = bias.to(dtype).transpose(-2, -1)
    if bias.ndim > 2:
        bias = bias.expand(*call.lead, *bias.shape[-2:])
    return bias.reshape(-1, *bias.shape[-2:]).contiguous()


def at_pairs(dense: Tensor, target: Tensor, source: Tensor) -> Tensor:
    """Entries of (..., heads, N, M) at the pairs: (..., E, heads); axes of length 1 broadcast."""
    dense = (
        dense
        if dense.ndim >= 3
        else dense.expand(1, *dense.shape)
        if dense.ndim == 2
        else dense.expand(1, 1, *dense.shape)
    )
    n, m = dense.shape[-2:]
    row = target if n != 1 else torch.zeros_like(target)
    column = source if m != 1 else torch.zeros_like(source)
    return dense.flatten(-2).index_select(-1, row * m + column).transpose(-2, -1)
