"""What is added to the scores of tiles: the rule's masks, the call's masks and its score bias."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mpnn.partial import per_entry
from mpnn.tiles.index import Group, minus_infinity


def added(
    call: Any, group: Group, tiles: slice, entries: int, entry: int | None, heads: int, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None]:
    """What is added to the scores of some tiles, (tiles or 1, G or 1, T, K), and which targets have a source, (tiles or
    1, G or 1, T); None where nothing is, and all do.

    G = entries · heads, the heads of all batch entries; or the heads of one entry.
    """
    bias, kept = score_bias(call, group, tiles, entries, entry), call_masks(call, group, tiles, entries, entry)
    if bias is None and kept is None:
        return group.pattern(tiles, dtype)
    if group.masks is not None:
        own = group.masks.index_select(0, group.which[tiles])[None, :, None]
        kept = own if kept is None else kept & own
    if bias is None:
        assert kept is not None
        mask = minus_infinity(kept, dtype)
    else:
        mask = bias.to(dtype) if kept is None else bias.to(dtype).masked_fill(~kept, -torch.inf)
    count = entries if entry is None else 1
    seen = kept if bias is None else mask > -torch.inf  # a bias may blank a row too
    assert seen is not None
    some = _by_tile(seen.any(-1, keepdim=True), count, heads).squeeze(-1)
    mask = _by_tile(mask, count, heads)
    return mask.expand(*mask.shape[:2], *group.shape[1:]), some


def _by_tile(x: Tensor, entries: int, heads: int) -> Tensor:
    """(B or 1, tiles, heads or 1, …) as (tiles, G or 1, …)."""
    if x.shape[0] == 1 and (x.shape[2] == 1 or entries == 1):
        return x[0]
    return x.transpose(0, 1).expand(-1, entries, heads, *x.shape[3:]).flatten(1, 2)


def _of(x: Tensor, entries: int, entry: int | None) -> Tensor:
    """What stands for all entries, (B or 1, …), or of it what stands for one."""
    if entry is None:
        return per_entry(x, entries)
    return x if x.shape[0] == 1 else x[entry % x.shape[0]][None]


def call_masks(call: Any, group: Group, tiles: slice, entries: int, entry: int | None) -> Tensor | None:
    """Which pairs the call's masks leave: (B or 1, tiles, heads or 1, T or 1, K); None for all."""
    kept = None
    if call.source_mask is not None:
        mask = call.source_mask
        mask = mask[None] if mask.ndim == 1 else mask.expand(*call.lead, call.sources).reshape(-1, call.sources)
        at = _of(mask, entries, entry).index_select(1, group.sources.index[tiles].flatten())
        kept = at.view(at.shape[0], tiles.stop - tiles.start, 1, 1, -1)
    if call.pair_mask is not None:
        at = _dense(call, call.pair_mask, group, tiles, entries, entry)
        kept = at if kept is None else kept & at
    return kept


def score_bias(call: Any, group: Group, tiles: slice, entries: int, entry: int | None) -> Tensor | None:
    """The scores' bias: (B or 1, tiles, heads or 1, T, K); None for 0."""
    bias, module = None, call.weight.score_bias
    if module is not None:
        axes = bool(getattr(module, "axes", 0))
        ends = []
        for end, slab, axis in (("target", group.targets, -1), ("source", group.sources, -2)):
            at, index = call.nodes[f"positions_{end}"], slab.index[tiles]
            at = at.reshape(-1, *at.shape[-1 - axes :])
            at = _of(at, entries, entry).index_select(1, index.flatten()).unflatten(1, tuple(index.shape))
            ends.append(at.unsqueeze(axis - axes))
        bias = module(*ends).movedim(-1, -3)  # (B or 1, tiles, heads, T, K)
    if "score_bias" in call.nodes:
        given = _dense(call, call.nodes["score_bias"], group, tiles, entries, entry)
        bias = given if bias is None else bias + given
    return bias


def _dense(call: Any, dense: Tensor, group: Group, tiles: slice, entries: int, entry: int | None) -> Tensor:
    """What broadcasts to (..., heads, N, M) at the pairs of some tiles: (B or 1, tiles, heads or 1, T, K)."""
    dense = dense[(None,) * (4 - dense.ndim)] if dense.ndim < 4 else dense.expand(*call.lead, *dense.shape[-3:])
    dense = _of(dense.reshape(-1, *dense.shape[-3:]), entries, entry)
    at, seen = group.targets.index[tiles][:, :, None], group.sources.index[tiles][:, None, :]
    n, m = dense.shape[-2:]
    flat = (at if n != 1 else 0 * at) * m + (seen if m != 1 else 0 * seen)
    found = dense.flatten(-2).index_select(-1, flat.flatten()).unflatten(-1, tuple(flat.shape))
    return found.transpose(1, 2)
