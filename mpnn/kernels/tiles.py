"""tiles: windows, blocks, grids and other local rules as fused dense attention over tiles of targets with their halo.

A tile of neighbouring targets sees little more than any one of them, so dense attention over (targets of a tile) ×
(all their sources), masked, wastes little and runs at the speed of the fused kernel. Its backward runs the fused
backward tile by tile and adds up what tiles share. With dropout or a learned bias, which the fused kernel does not
know, attention is written out for some tiles at a time and recomputed in the backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from mpnn.checks import wide
from mpnn.kernels.base import Call
from mpnn.partial import attention, four
from mpnn.reasons import TRACED, no_fused_products
from mpnn.recompute import Unwritten, drop, fresh_seed, recomputed
from mpnn.scores import all_heads
from mpnn.spec import Spec, learned_bias
from mpnn.tiles import Group, tiles_of
from mpnn.tiles.added import added, call_masks, score_bias

name = "tiles"
LONG = 1 << 15  # numbers of a batch entry's queries from which its masks are made alone
_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def unsupported(spec: Spec) -> list[str]:
    """Why this call is no attention over tiles."""
    why = []
    if not spec.tiled:
        why.append("needs neighbours in tiles: Window, Blocks, Global, Grid, AllTokens, & and - of them, or contains()")
    why += no_fused_products(spec)
    if spec.device != "cpu":
        why.append("runs through the fused kernel of the CPU")
    if spec.compiling:
        why.append(TRACED)
    return why


def run(call: Call, reference: Callable[[Call], Tensor]) -> Tensor:
    """The aggregate: (..., N, C)."""
    if call.dropout or learned_bias(call, call.weight):
        return _written_out(call)
    return attention(call, [partial(call)], reference)


def partial(call: Call) -> FusedTiles:
    """The part of an attention that this call is."""
    return FusedTiles(call)


class FusedTiles:
    """Attention over the tiles of a rule by the CPU's fused kernel, forward and backward.

    Tokens stand first, (N, G, D) with the heads of all batch entries as G, so that a mask of a tile serves them all and
    even tiles are views. Masks and biases that differ between entries are made for one long entry at a time.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        self.tiles = tiles_of(call.neighbours, call.targets, call.sources, call.target_tokens, call.value.device)
        own = call.pair_mask is not None or "score_bias" in call.nodes or call.weight.score_bias is not None
        self.masked, self.dense = own or call.source_mask is not None, own
        groups = self.tiles.groups
        self.gathered = any(g.targets.first is None for g in groups), any(g.sources.first is None for g in groups)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        targets, sources = self.gathered
        q, k, v = _tokens_first(query, targets), _tokens_first(key, sources), _tokens_first(value, sources)
        n, count = query.shape[2], q.shape[1]  # and a row for what is no token
        out, lse = q.new_zeros(n + 1, count, v.shape[-1]), q.new_full((n + 1, count), -torch.inf, dtype=wide(q.dtype))
        for entry, own in self._entries(query):
            for group, tiles, mask, some in self._chunks(query, entry):
                at, seen = group.targets, group.sources
                slabs = at.take(q[:, own], tiles), seen.take(k[:, own], tiles), seen.take(v[:, own], tiles)
                y, sums = _forward(*slabs, 0.0, False, attn_mask=mask, scale=self.call.weight.scale)
                at.put(out[:, own], y, tiles)
                at.put(lse[:, own], sums if some is None else sums.masked_fill(~some, -torch.inf), tiles)
        shape = query.shape[:2]
        return out[:n].unflatten(1, shape).movedim(0, 2), lse[:n].unflatten(1, shape).movedim(0, 2)

    def backward(
        self, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        targets, sources = self.gathered
        q, g, o = (_tokens_first(x, targets) for x in (query, grad, out))
        k, v = _tokens_first(key, sources), _tokens_first(value, sources)
        # where no part has a source the weights are 0 by the mask, and a lse of -inf would make them no number
        finite = _tokens_first(lse.masked_fill(lse == -torch.inf, 0)[..., None], targets)
        d_q = q.new_zeros(len(q) + 1, *q.shape[1:])
        d_k, d_v = (x.new_zeros(x.shape, dtype=wide(x.dtype)) for x in (k, v))
        for entry, own in self._entries(query):
            for group, tiles, mask, _ in self._chunks(query, entry, backward=True):
                at, seen = group.targets, group.sources
                sides = at.take(g[:, own], tiles), at.take(q[:, own], tiles), seen.take(k[:, own], tiles)
                outs = (
                    seen.take(v[:, own], tiles),
                    at.take(o[:, own], tiles),
                    at.take(finite[:, own], tiles).squeeze(-1),
                )
                found = _backward(*sides, *outs, 0.0, False, attn_mask=mask, scale=self.call.weight.scale)
                at.put(d_q[:, own], found[0], tiles)
                seen.add(d_k[:, own], found[1], tiles)
                seen.add(d_v[:, own], found[2], tiles)
        shape = query.shape[:2]
        grads = (d_q[:-1], d_k.to(k.dtype), d_v.to(v.dtype))
        return tuple(x.unflatten(1, shape).movedim(0, 2) for x in grads)

    def _entries(self, query: Tensor) -> Iterator[tuple[int | None, slice]]:
        """Batch entries, all at once or one by one, and where their heads stand."""
        entries, heads = query.shape[:2]
        if query.numel() == 0:
            return
        if self.masked and entries > 1 and query[0].numel() > LONG:
            yield from ((b, slice(b * heads, (b + 1) * heads)) for b in range(entries))
        else:
            yield None, slice(0, entries * heads)

    def _chunks(
        self, query: Tensor, entry: int | None, backward: bool = False
    ) -> Iterator[tuple[Group, slice, Tensor | None, Tensor | None]]:
        """Some tiles at a time, with what is added to their scores and which of their targets have a source."""
        entries, heads, _, width = query.shape
        count = entries if entry is None else 1
        for group in self.tiles.groups:
            _, targets, sources = group.shape
            several = group.masks is not None and len(group.masks) > 1
            masks = targets * sources * (count * heads if self.dense or (self.masked and count > 1) else 1)
            # keys and values that are copied, and what the backward makes of them, count eightfold and fourfold: small
            # ones stay in the cache, and in memory that the allocator uses again
            times = 16 if group.sources.first is None else 8 if backward else 0
            copied = times * sources * count * heads * width
            for tiles in group.chunks((masks if self.masked or several else 0) + copied):
                yield group, tiles, *added(self.call, group, tiles, entries, entry, heads, query.dtype)


def _tokens_first(x: Tensor, gathered: bool) -> Tensor:
    """(B, heads, N, D) as (N, B·heads, D), the last axis contiguous: a view where B is 1, unless rows are gathered,
    which takes ten times as long where the heads of a token do not lie side by side."""
    x = x.movedim(2, 0).flatten(1, 2)
    return x if not gathered and (x.stride(-1) == 1 or x.shape[-1] == 1) else x.contiguous()


def _written_out(call: Call) -> Tensor:
    """Attention in torch's own operations, some tiles at a time, each made again in the backward."""
    module: nn.Module | None = call.weight.score_bias
    tiles_ = tiles_of(call.neighbours, call.targets, call.sources, call.target_tokens, call.value.device)
    tensors = {n: four(call.nodes[n], call.lead) for n in ("query", "key", "value")}
    heads = tensors["query"].shape[1]
    tensors |= {n: all_heads(tensors[n], heads) for n in ("key", "value")}
    if "score_bias" in call.nodes:
        tensors["score_bias"] = call.nodes["score_bias"]
    q, width = tensors["query"], tensors["value"].shape[-1]
    modules = [] if module is None else [module]
    outs, unwritten = [], Unwritten(call)
    for group in tiles_.groups if q.numel() else ():
        _, targets, sources = group.shape
        for tiles in group.chunks(q.shape[0] * heads * (3 * targets * sources + 2 * sources * width)):
            seed = fresh_seed() if call.dropout else None
            outs.append(recomputed(_block(call, group, tiles, seed), modules, tensors, unwritten))
    if outs:
        y = tiles_.back(torch.cat(outs, 1).transpose(0, 1)).transpose(0, 1)
    else:  # no pair: zeros that still have a gradient, of zeros, to all that is read
        read = [*tensors.values(), *(p for m in modules for p in m.parameters())]
        y = q.new_zeros(q.shape[0], call.targets, heads * width) + sum(t.flatten()[:0].sum() for t in read)
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
        bias, kept = (f(fresh, group, tiles, q.shape[0], None) for f in (score_bias, call_masks))
        scores = scores if bias is None else scores + bias
        if group.masks is not None:
            own = group.masks.index_select(0, group.which[tiles])[None, :, None]
            kept = own if kept is None else kept & own
        scores = scores if kept is None else scores.masked_fill(~kept, -torch.inf)
        none = scores.detach().amax(-1, keepdim=True) == -torch.inf  # by the masks, or by a bias of -inf
        weight = scores.masked_fill(none, 0).softmax(-1).masked_fill(none, 0)
        y = (drop(weight, call.dropout, seed) if seed is not None else weight) @ v
        return y.transpose(2, 3).flatten(-2).flatten(1, 2).to(call.value.dtype)

    return block
