"""A rule over the real tokens of padded rows: a window counts tokens, whatever stands between them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mpnn.checks import compiling
from mpnn.interop.attention import dense, heard
from mpnn.interop.transformers.masks import Reading, numbers
from mpnn.memo import derived
from mpnn.neighbours import AllTokens, Blocks, Global, Graph, Neighbours, Random, Window
from mpnn.neighbours.base_expression import Expression
from mpnn.returned import EdgeWeights
from mpnn.tokens.base import Tokens

Result = tuple[Tensor, Tensor | None]  # (B, N, heads, E), weights (B, heads, N, M) where they are wanted


def by_tokens(
    layer: nn.Module, q: Tensor, k: Tensor, v: Tensor, rule: Neighbours, reading: Reading, weights: bool, **given: Any
) -> Result:
    """Attention over a rule that numbers the real tokens of each row; padding receives 0.

    Rows without padding run as they are. Padded rows are packed into one ragged set, so that numbers restart in each.
    Where targets go on from a cache, or a bias lies over all pairs, the pairs of the rule are a mask over these.
    """
    targets, sources = q.shape[-2], k.shape[-2]
    if targets != sources and any(isinstance(r, Random) for r in leaves(rule)):
        raise ValueError(
            f"{rule} draws anew for every number of tokens, so that a cache would hold tokens that were made with "
            f"other neighbours; pass use_cache=False"
        )
    if reading.real is None and (targets == sources or relative(rule)):
        return by_slots(layer, q, k, v, rule, weights, **given)
    if reading.real is not None and has_places(rule):
        return by_slots(layer, q, k, v, rule, weights, mask=reading.real, **given)
    if targets != sources or given.get("score_bias") is not None or compiling() or not all(map(ours, leaves(rule))):
        pairs = _pairs(rule, reading, targets, sources, k)
        return by_slots(layer, q, k, v, AllTokens(), weights, pair_mask=pairs[:, None], **given)
    assert reading.real is not None
    return _packed(layer, q, k, v, rule, reading.real, weights, **given)


def by_slots(
    layer: nn.Module, q: Tensor, k: Tensor, v: Tensor, rule: Neighbours, weights: bool, **given: Any
) -> Result:
    """Attention over a rule that numbers the tokens as they stand."""
    y, edges = heard(layer, q, k, v, rule, weights, **given)
    return y.transpose(1, 2), None if edges is None else dense(edges, q.shape[-2], k.shape[-2])


def leaves(rule: Neighbours) -> list[Neighbours]:
    """The rules that an expression is made of."""
    return [*leaves(rule.left), *leaves(rule.right)] if isinstance(rule, Expression) else [rule]


def relative(rule: Neighbours) -> bool:
    """Whether a rule knows distances only, so that the last targets of a sequence are told by where it ends."""
    return all(isinstance(r, Window | AllTokens) for r in leaves(rule))


def has_places(rule: Neighbours) -> bool:
    """Whether a rule names tokens by their place, as a graph and a grid do, padding or not."""
    return any(r.fixed_places or isinstance(r, Graph) for r in leaves(rule))


def ours(rule: Neighbours) -> bool:
    """Whether a rule is the package's, and so knows the sequences of a batch."""
    return type(rule).__module__.startswith("mpnn.")


class _Packing(NamedTuple):
    at: Tensor  # int64 (T,): where the real tokens stand in the flattened rows
    row: Tensor  # int64 (T,)


def _pack(real: Tensor) -> _Packing:
    index = real.flatten().nonzero().squeeze(-1)
    return _Packing(index, index.div(real.shape[-1], rounding_mode="floor"))


def _packed(
    layer: nn.Module, q: Tensor, k: Tensor, v: Tensor, rule: Neighbours, real: Tensor, weights: bool, **given: Any
) -> Result:
    """The real tokens of all rows as one ragged set."""
    (rows, heads, slots), width = q.shape[:3], v.shape[-1]
    real = real if len(real) == rows else real.expand(rows, -1)
    packing = derived(lambda: _pack(real), "packing", real)
    q, k, v = (t.transpose(1, 2).flatten(0, 1).index_select(0, packing.at).transpose(0, 1) for t in (q, k, v))
    y, edges = heard(layer, q, k, v, rule, weights, batch=packing.row, **given)
    out = y.new_zeros(rows * slots, heads, width).index_copy(0, packing.at, y.transpose(0, 1))
    found = None if edges is None else _unpacked(edges, packing, rows, slots)
    return out.unflatten(0, (rows, slots)), found


def _unpacked(edges: EdgeWeights, packing: _Packing, rows: int, slots: int) -> Tensor:
    """The weights of packed tokens at the slots of their rows: (B, heads, N, M)."""
    heads = edges.weight.shape[-1]
    target, source = packing.at[edges.target], packing.at[edges.source]
    at = target * slots + source % slots
    full = edges.weight.new_zeros(rows * slots * slots, heads).index_add(0, at, edges.weight)
    return full.unflatten(0, (rows, slots, slots)).movedim(-1, 1)


def _pairs(rule: Neighbours, reading: Reading, targets: int, sources: int, like: Tensor) -> Tensor:
    """The pairs of a rule over the real tokens, bool (B, N, M), or (1, N, M) without padding."""
    real, place = reading.real, reading.place
    if real is None or place is None:
        number = torch.arange(sources, device=like.device)
        tokens = Tokens(like.new_zeros(sources, 1))
        return rule.holds(number[sources - targets :, None], number, sources, sources, tokens)[None]
    # what is kept holds the rule, so that nothing else takes the identity that its stamp may have
    return derived(lambda: (rule, _held(rule, real, place, like)), ("pairs", rule.stamp()), real, place)[1]


def _held(rule: Neighbours, real: Tensor, place: Tensor, like: Tensor) -> Tensor:
    number, sources = numbers(real).clamp(min=0), real.shape[-1]
    at = place.clamp(min=0)
    if all(isinstance(r, Window | AllTokens | Blocks | Global) for r in leaves(rule)):
        tokens = Tokens(like.new_zeros(sources, 1))  # these rules number from the start, however many tokens follow
        pairs = rule.holds(at[:, :, None], number[:, None], sources, sources, tokens)
    elif compiling():
        raise ValueError(
            f"{rule} depends on the number of real tokens, which torch.compile cannot read; drop the padding"
        )
    else:
        each = zip(real.sum(-1).tolist(), at, number, strict=True)
        pairs = torch.stack([_row(rule, int(count), t, s, like) for count, t, s in each])
    return pairs & real[:, None] & (place >= 0)[:, :, None]


def _row(rule: Neighbours, count: int, target: Tensor, source: Tensor, like: Tensor) -> Tensor:
    if count == 0:
        return torch.zeros(len(target), len(source), dtype=torch.bool, device=like.device)
    return rule.holds(target[:, None], source, count, count, Tokens(like.new_zeros(count, 1)))
