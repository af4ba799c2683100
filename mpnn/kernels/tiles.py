"""tiles: windows, blocks, grids and other local rules as fused dense attention over tiles of targets with their halo.

A tile of neighbouring targets sees little more than any one of them, so dense attention over (targets of a tile) ×
(all their sources), masked, wastes little and runs at the speed of the fused kernel. Its backward runs the fused
backward tile by tile and adds up what tiles share. With dropout or a learned bias, which the fused kernel does not
know, attention is written out for some tiles at a time and recomputed in the backward.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mpnn.checks import wide
from mpnn.kernels.base import Call
from mpnn.partial import attention, four, per_entry
from mpnn.recompute import drop, fresh_seed, recomputed
from mpnn.spec import Spec, spec_of
from mpnn.tiles import Group, tiles_of

name = "tiles"
_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def unsupported(spec: Spec) -> list[str]:
    """Why this call is no attention over tiles."""
    why = []
    if not spec.tiled:
        why.append("needs neighbours in tiles: Window, Blocks, Global, Grid, AllTokens, & and - of them, or contains()")
    if spec.weight not in ("QKSoftmax", "attend"):
        why.append("needs QKSoftmax or attend: scaled products of queries and keys")
    if spec.edge_attr:
        why.append("edge features are added to keys and values pair by pair")
    if spec.score:
        why.append("a score function changes scores pair by pair")
    if spec.score_bias == "edges":
        why.append("a bias per edge is not dense")
    if spec.score_channels != spec.channels // max(1, spec.kv_heads):
        why.append("keys and values of different widths leave the fused path")
    if spec.device != "cpu":
        why.append("runs through the fused kernel of the CPU")
    if spec.compiling:
        why.append("torch.compile traces the reference as one block")
    if "jvp" in spec.transforms:
        why.append("forward-mode runs through the reference, as plain torch operations")
    if spec.wrapped:
        why.append("masks or a score bias that a functional transform maps over")
    if spec.transforms and spec.dropout:
        why.append("dropout under a functional transform")
    if spec.transforms and spec.score_bias == "module":
        why.append("a module's score bias under a functional transform")
    return why


def run(call: Call, reference: Callable[[Call], Tensor]) -> Tensor:
    """The aggregate: (..., N, C)."""
    if call.dropout or spec_of(call, call.weight).learned_bias:
        return _written_out(call)
    return attention(call, [partial(call)], reference)


def partial(call: Call) -> FusedTiles:
    """The part of an attention that this call is."""
    return FusedTiles(call)


class FusedTiles:
    """Attention over the tiles of a rule by the CPU's fused kernel, forward and backward."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.tiles = tiles_of(call.neighbours, call.targets, call.sources, call.target_tokens, call.value.device)
        self.scale = call.weight.scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (_rows(x) for x in (query, key, value))
        entries, heads, width = q.shape[0], q.shape[2], v.shape[-1]
        outs, lses = [q.new_zeros(entries, 0, heads, width)], [q.new_zeros(entries, 0, heads, dtype=wide(q.dtype))]
        if not (q.numel() and self.tiles.groups):
            return torch.zeros_like(query[..., :1]).expand(*query.shape[:-1], width).clone(), query.new_full(
                query.shape[:-1], -torch.inf, dtype=wide(q.dtype)
            )
        for group in self.tiles.groups:
            for tiles in group.chunks(self._numbers(group, q)):
                mask, some = _mask(self.call, group, tiles, q)
                sides = group.targets.take(q, tiles), group.sources.take(k, tiles), group.sources.take(v, tiles)
                out, lse = _forward(*sides, 0.0, False, attn_mask=mask, scale=self.scale)
                lse = lse if some is None else lse.masked_fill(~some, -torch.inf)
                outs.append(out.transpose(1, 2).reshape(entries, -1, heads, width))
                lses.append(lse.transpose(1, 2).reshape(entries, -1, heads))
        out = self.tiles.back(torch.cat(outs, 1) if len(outs) != 2 else outs[1])
        lse = self.tiles.back(torch.cat(lses, 1) if len(lses) != 2 else lses[1], -torch.inf)
        return out.transpose(1, 2), lse.transpose(1, 2)

    def backward(
        self, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, g, o = (_rows(x) for x in (query, key, value, grad, out))
        # where no part has a source the weights are 0 by the mask, and a lse of -inf would make them no number
        finite = lse.masked_fill(lse == -torch.inf, 0).transpose(1, 2).contiguous()
        parts = [q.new_zeros(q.shape[0], 0, *q.shape[2:])]
        total_k, total_v = (torch.zeros(x.shape, dtype=wide(x.dtype), device=x.device) for x in (k, v))
        if not (q.numel() and self.tiles.groups):
            return torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for group in self.tiles.groups:
            for tiles in group.chunks(self._numbers(group, q)):
                mask, _ = _mask(self.call, group, tiles, q)
                at, seen = group.targets, group.sources
                own, others = (at.take(g, tiles), at.take(q, tiles)), (seen.take(k, tiles), seen.take(v, tiles))
                sums = at.take(finite[..., None], tiles).squeeze(-1).transpose(1, 2).contiguous().transpose(1, 2)
                found = _backward(*own, *others, at.take(o, tiles), sums, 0.0, False, attn_mask=mask, scale=self.scale)
                parts.append(found[0].transpose(1, 2).reshape(q.shape[0], -1, *q.shape[2:]))
                seen.add(total_k, found[1], tiles)
                seen.add(total_v, found[2], tiles)
        grad_q = self.tiles.back(torch.cat(parts, 1) if len(parts) != 2 else parts[1])
        return grad_q.transpose(1, 2), total_k.to(k.dtype).transpose(1, 2), total_v.to(v.dtype).transpose(1, 2)

    def _numbers(self, group: Group, q: Tensor) -> int:
        """Numbers held for one tile: its mask, if it has one of its own, and its slab."""
        _, targets, sources = group.shape
        call, entries = self.call, q.shape[0]
        own = call.pair_mask is not None or "score_bias" in call.nodes or call.weight.score_bias is not None
        masks = entries * targets * sources * (q.shape[2] if own else 1)
        alone = group.masks is None or len(group.masks) == 1
        masks = 0 if alone and not own and call.source_mask is None else masks
        copied = entries > 1 or group.sources.first is None
        return masks + (2 * entries * sources * q.shape[2] * q.shape[3] if copied else 0)


def _rows(x: Tensor) -> Tensor:
    """(B, heads, N, D) as (B, N, heads, D), the last axis contiguous."""
    x = x.transpose(1, 2)
    return x if x.stride(-1) == 1 else x.contiguous()


def _mask(call: Call, group: Group, tiles: slice, q: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """What is added to the scores of some tiles, (B·tiles or 1, heads or 1, T, K), and which targets have a source,
    (B·tiles or 1, heads or 1, T); None where nothing is, and all do."""
    entries, heads = q.shape[:2][0], q.shape[2]
    bias, kept = _bias(call, group, tiles, q), _kept(call, group, tiles, entries)
    if bias is None and kept is None:
        if group.masks is None:
            return None, None
        if len(group.masks) == 1:
            some = None if group.some is None else group.some[:, None]
            return _float(group.masks[:, None], q.dtype), some
    if group.masks is not None:
        own = group.masks.index_select(0, group.which[tiles])[None, :, None]
        kept = own if kept is None else kept & own
    shape = (entries, tiles.stop - tiles.start, 1, *group.shape[1:])
    if bias is None:
        assert kept is not None
        mask = _float(kept, q.dtype).expand(torch.broadcast_shapes(kept.shape, shape))
    else:
        mask = bias.to(q.dtype)
        mask = mask if kept is None else mask.masked_fill(~kept, -torch.inf)
        mask = mask.expand(torch.broadcast_shapes(mask.shape, shape))
    some = None if kept is None else kept.any(-1).expand(*mask.shape[:2], -1, -1).flatten(0, 1)
    assert mask.shape[2] in (1, heads)
    return mask.flatten(0, 1), some


def _float(kept: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(kept.shape, dtype=dtype, device=kept.device).masked_fill_(~kept, -torch.inf)


def _kept(call: Call, group: Group, tiles: slice, entries: int) -> Tensor | None:
    """Which pairs the call's masks leave: (B or 1, tiles, heads or 1, T or 1, K); None for all."""
    kept = None
    if call.source_mask is not None:
        mask = call.source_mask
        mask = mask[None] if mask.ndim == 1 else mask.expand(*call.lead, call.sources).reshape(-1, call.sources)
        at = per_entry(mask, entries).index_select(1, group.sources.index[tiles].flatten())
        kept = at.view(at.shape[0], tiles.stop - tiles.start, 1, 1, -1)
    if call.pair_mask is not None:
        at = per_entry(_dense(call, call.pair_mask, group, tiles), entries)
        kept = at if kept is None else kept & at
    return kept


def _bias(call: Call, group: Group, tiles: slice, q: Tensor) -> Tensor | None:
    """The scores' bias: (B or 1, tiles, heads or 1, T, K); None for 0."""
    bias, module = None, call.weight.score_bias
    if module is not None:
        ends = []
        for end, slab, axis in (("target", group.targets, -2), ("source", group.sources, -3)):
            at = call.nodes[f"positions_{end}"]
            axes = getattr(module, "axes", 0)
            index = slab.index[tiles]
            at = at.index_select(-1 - bool(axes), index.flatten())
            at = at.unflatten(-1 - bool(axes), tuple(index.shape))
            ends.append(at.unsqueeze((-1 if axis == -2 else -2) - bool(axes)))
        dense = module(*ends).movedim(-1, -3)  # (..., tiles, heads, T, K)
        bias = dense[None] if dense.ndim == 4 else dense.reshape(-1, *dense.shape[-4:])
        bias = per_entry(bias, q.shape[0])
    if "score_bias" in call.nodes:
        given = per_entry(_dense(call, call.nodes["score_bias"], group, tiles), q.shape[0])
        bias = given if bias is None else bias + given
    return bias


def _dense(call: Call, dense: Tensor, group: Group, tiles: slice) -> Tensor:
    """What broadcasts to (..., heads, N, M) at the pairs of some tiles: (B or 1, tiles, heads or 1, T, K)."""
    dense = dense[(None,) * (4 - dense.ndim)] if dense.ndim < 4 else dense.expand(*call.lead, *dense.shape[-3:])
    dense = dense.reshape(-1, *dense.shape[-3:])
    at, seen = group.targets.index[tiles][:, :, None], group.sources.index[tiles][:, None, :]
    n, m = dense.shape[-2:]
    flat = (at if n != 1 else 0 * at) * m + (seen if m != 1 else 0 * seen)
    found = dense.flatten(-2).index_select(-1, flat.flatten()).unflatten(-1, tuple(flat.shape))
    return found.transpose(1, 2)


def _written_out(call: Call) -> Tensor:
    """Attention in torch's own operations, some tiles at a time, each made again in the backward."""
    module: nn.Module | None = call.weight.score_bias
    tiles_ = tiles_of(call.neighbours, call.targets, call.sources, call.target_tokens, call.value.device)
    tensors = {n: four(call.nodes[n], call.lead) for n in ("query", "key", "value")}
    heads = tensors["query"].shape[1]
    if tensors["key"].shape[1] != heads:
        for n in ("key", "value"):
            tensors[n] = tensors[n].repeat_interleave(heads // tensors[n].shape[1], 1)
    if "score_bias" in call.nodes:
        tensors["score_bias"] = call.nodes["score_bias"]
    q, width = tensors["query"], tensors["value"].shape[-1]
    outs = [q.new_zeros(q.shape[0], 0, heads * width)]
    for group in tiles_.groups if q.numel() else ():
        _, targets, sources = group.shape
        for tiles in group.chunks(q.shape[0] * heads * (3 * targets * sources + 2 * sources * width)):
            seed = fresh_seed() if call.dropout else None
            outs.append(recomputed(_block(call, group, tiles, seed), [] if module is None else [module], tensors))
    y = tiles_.back(torch.cat(outs, 1))
    return call.blank_targets(y.reshape(*call.lead, call.targets, heads * width))


def _block(call: Call, group: Group, tiles: slice, seed: int | None) -> Callable[[dict[str, Tensor]], Tensor]:
    def block(given: dict[str, Tensor]) -> Tensor:
        fresh = call.again()
        fresh.nodes = call.nodes | given
        q, k, v = (given[n].transpose(1, 2) for n in ("query", "key", "value"))
        dtype = wide(q.dtype)
        at, seen = group.targets.index[tiles], group.sources.index[tiles]
        q, k, v = (
            x.index_select(1, i.flatten()).unflatten(1, tuple(i.shape)).transpose(2, 3).to(dtype)
            for x, i in ((q, at), (k, seen), (v, seen))
        )  # (B, tiles, heads, T or K, D)
        scores = q @ k.transpose(-2, -1) * call.weight.scale
        bias, kept = _bias(fresh, group, tiles, given["query"].transpose(1, 2)), _kept(fresh, group, tiles, q.shape[0])
        scores = scores if bias is None else scores + bias
        if group.masks is not None:
            own = group.masks.index_select(0, group.which[tiles])[None, :, None]
            kept = own if kept is None else kept & own
        if kept is not None:
            none = ~kept.any(-1, keepdim=True)
            scores = scores.masked_fill(~(kept | none), -torch.inf)
        weight = scores.softmax(-1)
        weight = weight if kept is None else weight.masked_fill(none, 0)
        y = (drop(weight, call.dropout, seed) if seed is not None else weight) @ v
        return y.transpose(2, 3).flatten(-2).flatten(1, 2).to(call.value.dtype)

    return block
