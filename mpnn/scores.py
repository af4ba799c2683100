"""Scores of attention: scale · q_i·k_j per edge, and what is added to them, whichever kernel makes them."""

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
    key = all_heads(key, query.shape[-3])
    scores = pairs.products(query.to(dtype), key.to(dtype), edge_key) * scale
    bias = bias_at(pairs, score_bias, dtype)
    scores = scores if bias is None else scores + bias
    return scores if score is None else score(scores, pairs)


def all_heads(x: Tensor, heads: int) -> Tensor:
    """Keys or values of grouped heads (..., kv_heads, M, D), once for each query head."""
    return x if x.shape[-3] == heads else x.repeat_interleave(heads // x.shape[-3], -3)


def biased(call: Any) -> bool:
    """Whether the scores of a call are more than products: masks or a bias, from whoever brings it."""
    given = "score_bias" in call.nodes or "edge_bias" in call.nodes
    return given or call.masked or getattr(call.weight, "score_bias", None) is not None


def bias_at(pairs: Pairs, module: nn.Module | None, dtype: torch.dtype) -> Tensor | None:
    """What is added to the scores at the pairs, (..., E, heads): a position module's bias and the caller's, which is
    (..., heads, N, M) or per edge, (E, heads); None for nothing."""
    bias = None
    if module is not None:
        target, source = pairs.node("positions_target"), pairs.node("positions_source")
        dim = -2 if getattr(module, "axes", 0) else -1
        bias = module(pairs.at_target(target, dim), pairs.at_source(source, dim)).to(dtype)
    if "edge_bias" in pairs.nodes:
        given = pairs.per_edge_row(pairs.nodes["edge_bias"]).to(dtype)
    elif "score_bias" in pairs.nodes:
        given = at_pairs(pairs.nodes["score_bias"], pairs.target, pairs.source).to(dtype)
    else:
        return bias
    return given if bias is None else bias + given


def masked_bias(call: Any, pairs: Pairs, dtype: torch.dtype, more: Tensor | None = None) -> Tensor | None:
    """The same and ``more``, -inf where a mask of the call removes the pair: (..., E, heads or 1); None for nothing."""
    bias = bias_at(pairs, getattr(call.weight, "score_bias", None), dtype)
    if more is not None:
        bias = more.to(dtype) if bias is None else bias + more.to(dtype)
    keep = call.keep(pairs.edges)
    if keep is None:
        return bias
    return torch.where(keep, torch.zeros((), dtype=dtype, device=keep.device) if bias is None else bias, -torch.inf)


def edge_bias(call: Any, edges: Edges, slot: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The same for each batch entry, heads first: (B or 1, heads or 1, E). ``slot``: the rows of the edges in the
    call's edge data, None for all in order."""
    bias = masked_bias(call, call.pairs(edges, slot), dtype)
    if bias is None:
        return None
    bias = bias.transpose(-2, -1)
    if bias.ndim > 2:
        bias = bias.expand(*call.lead, *bias.shape[-2:])
    return bias.reshape(-1, *bias.shape[-2:]).contiguous()


def at_pairs(dense: Tensor, target: Tensor, source: Tensor) -> Tensor:
    """Entries of (..., heads, N, M) at the pairs: (..., E, heads); axes of length 1 broadcast."""
    dense = dense[(None,) * (3 - dense.ndim)] if dense.ndim < 3 else dense
    n, m = dense.shape[-2:]
    row = target if n != 1 else torch.zeros_like(target)
    column = source if m != 1 else torch.zeros_like(source)
    return dense.flatten(-2).index_select(-1, row * m + column).transpose(-2, -1)
