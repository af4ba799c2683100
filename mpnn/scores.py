"""Scores of attention: scale · q_i·k_j plus a bias, per edge."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mpnn.checks import wide
from mpnn.pairs import Pairs


def edge_scores(
    pairs: Pairs,
    scale: float,
    score_bias: nn.Module | None = None,
    score: Callable[[Tensor, Pairs], Tensor] | None = None,
    edge_key: Tensor | None = None,
) -> Tensor:
    """scale · q_i·(k_j + e_ij) + bias, then ``score``: (..., E, heads), float32 for half-precision inputs."""
    query, key = pairs.at_target(pairs.node("query")), pairs.at_source(pairs.node("key"))
    dtype = wide(query.dtype)
    groups = query.shape[-3] // key.shape[-3]
    if groups > 1:
        key = key.repeat_interleave(groups, -3)
    if edge_key is not None:
        key = key + edge_key.transpose(-3, -2)
    scores = ((query.to(dtype) * key.to(dtype)).sum(-1) * scale).transpose(-2, -1)
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
