"""The dense oracle: the one equation as a Python loop over pairs in float64, written from the contract alone."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from helpers.oracle_pairs import Pair, centre, pairs_of, positions_of
from mpnn import MessagePassing, Tokens
from mpnn.neighbours import AllTokens, Full, Grid
from mpnn.weights import (
    AdditiveScore,
    AdditiveScoreV2,
    EdgeLearned,
    OffsetMLP,
    QKSoftmax,
    RadialFilter,
    SharedKernel,
    Static,
)


def oracle(layer: MessagePassing, x: Any, **given: Any) -> tuple[Tensor, list[Pair], Tensor]:
    """(y, the pairs used, their weights (..., E, heads) or (..., E, groups, out/groups, in/groups)) of a call."""
    source, target, masks = two_sets(x, given.pop("source", None), given)
    rule, m = layer.neighbours, source.x.shape[-2]
    if target is source and rule.target_count(m, source) is not None:  # the layer has targets of its own
        target, masks = None, (masks[0], None)
    n = target.x.shape[-2] if target is not None else rule.target_count(m, source)
    batch = None if source.batch is None else (source.batch, target.batch)
    listed = {k: given.pop(k, None) for k in ("edge_index", "edge_type")}
    pairs = pairs_of(rule, n, m, batch=batch, grid=source.grid, **listed)
    lead = source.x.shape[:-2]
    outs = []
    for entry in itertools.product(*map(range, lead)):
        one = lambda t, axes, entry=entry: None if t is None else t.expand(*lead, *t.shape[-axes:])[entry]  # noqa: E731
        here = SimpleNamespace(
            layer=layer, pairs=pairs, n=n, m=m, batch=batch, grid=source.grid, one_set=target is source
        )
        here.own = target is None
        here.mask, here.target_mask = (one(t, 1) for t in masks)
        here.x, here.target = clean(one(source.x, 2), here.mask), None
        if target is not None:
            here.target = clean(one(target.x, 2), here.target_mask)
        elif isinstance(rule, Grid):
            here.target = torch.stack([here.x[centre(rule, source.grid, i)] for i in range(n)])
        pair_mask = given.get("pair_mask")
        if pair_mask is not None:
            pair_mask = pair_mask.expand(*lead, layer.weight.heads or 1, n, m)[entry]
        here.pair_mask, here.attr = pair_mask, one(given.get("edge_attr"), 2)
        here.edge_weight, here.positions = one(given.get("edge_weight"), 1), one(given.get("positions"), 1)
        ends = (source, target) if source.coordinates is not None else (None, None)
        here.coordinates = [None if t is None else one(t.coordinates, 2) for t in ends]
        outs.append(entry_of(here))
    y, weights = (torch.stack(t).unflatten(0, lead) if lead else t[0] for t in zip(*outs, strict=True))
    return y, pairs, weights


def two_sets(
    x: Any, source: Any, given: dict[str, Any]
) -> tuple[Tokens, Tokens | None, tuple[Tensor | None, Tensor | None]]:
    """(sources, targets or None, their masks)."""
    fields = {k: given.pop(k) for k in ("mask", "coordinates", "batch", "grid") if given.get(k) is not None}
    as_tokens = lambda t, **kw: t.replace(**kw) if isinstance(t, Tokens) else Tokens(t, **kw)  # noqa: E731
    x, source = (x[1], x[0]) if isinstance(x, tuple) else (x, source)
    if source is not None:
        own = {"mask": fields.pop("mask")} if "mask" in fields else {}
        source, target = as_tokens(source, **own), as_tokens(x, **fields)
        return source, target, (source.mask, target.mask)
    return (tokens := as_tokens(x, **fields)), tokens, (tokens.mask, tokens.mask)


def clean(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else torch.where(mask[:, None], x, torch.zeros_like(x))


def entry_of(c: SimpleNamespace) -> tuple[Tensor, Tensor]:
    """One batch entry: (y (N, C), weights)."""
    rule = c.layer.weight
    heads = rule.heads or 1
    keep = [[kept(c, p, h) for h in range(heads)] for p in c.pairs]
    c.attr = filled_attr(c, keep)
    c.value = c.x if rule.value is None or isinstance(rule, QKSoftmax) else rule.value(c.x)
    weights = [w.reshape(-1) for w in raw_weights(c)]
    weights = normalised(c, keep, weights)
    if rule.groups is None:
        aggregate = [torch.cat([reduced(c, keep, weights, i, h) for h in range(heads)]) for i in range(c.n)]
    else:
        shaped = [w.reshape(rule.groups, rule.before // rule.groups, rule.after // rule.groups) for w in weights]
        aggregate = [reduced(c, keep, shaped, i, None) for i in range(c.n)]
        weights = [w.transpose(-2, -1) for w in shaped]
    y = torch.stack(aggregate)
    y = y if rule.output is None else rule.output(y)
    y = y if rule.root is None else y + rule.root(c.target)
    none = (heads,) if rule.groups is None else (rule.groups, rule.after // rule.groups, rule.before // rule.groups)
    used = torch.stack(weights) if weights else y.new_zeros(0, *none)
    return (y if rule.bias is None else y + rule.bias), used


def kept(c: SimpleNamespace, p: Pair, head: int) -> bool:
    """Whether no mask removes a pair for a head."""
    alive = (c.mask is None or bool(c.mask[p.source])) and (c.target_mask is None or bool(c.target_mask[p.target]))
    return alive and (c.pair_mask is None or bool(c.pair_mask[head, p.target, p.source]))


def filled_attr(c: SimpleNamespace, keep: list[list[bool]]) -> list[Tensor] | None:
    """The attributes of each pair; an added loop has the mean of the others into its node, or a number."""
    if c.attr is None:
        return None
    fill, made = getattr(c.layer.neighbours, "loop_fill", None), []
    for p in c.pairs:
        others = [
            c.attr[q.row] for q, k in zip(c.pairs, keep, strict=True) if q.target == p.target and q.row >= 0 and any(k)
        ]
        if p.row >= 0:
            made.append(c.attr[p.row])
        elif fill == "mean":
            made.append(torch.stack(others).mean(0) if others else torch.zeros(c.attr.shape[-1], dtype=c.x.dtype))
        else:
            made.append(torch.full((c.attr.shape[-1],), fill, dtype=c.x.dtype))
    return made


def raw_weights(c: SimpleNamespace) -> list[Tensor]:
    """What the rule says of each pair: (heads,) or (groups · in/groups · out/groups,)."""
    rule = c.layer.weight
    if isinstance(rule, Static):
        return [static(c, rule, p.place) for p in c.pairs]
    if isinstance(rule, SharedKernel):
        return [torch.ones(1, dtype=c.x.dtype) if rule.fixed else shared(rule, p.relation) for p in c.pairs]
    if isinstance(rule, QKSoftmax):
        return attention(c, rule)
    if isinstance(rule, EdgeLearned) and type(rule.network) in NETWORKS:
        return [NETWORKS[type(rule.network)](c, rule, e, p) for e, p in enumerate(c.pairs)]
    if isinstance(rule, EdgeLearned) and isinstance(rule.network, nn.Module):
        layers = getattr(rule.network, "layers", rule.network)
        return [layers(c.attr[e]) for e in range(len(c.pairs))]
    return list(rule.per_edge(namespace(c))) if c.pairs else []


def static(c: SimpleNamespace, rule: Static, place: tuple[int, ...]) -> Tensor:
    w = rule.weight
    if rule.heads is not None:
        return w[(slice(None), *place)]
    if isinstance(c.layer.neighbours, Full | AllTokens):  # (targets, out, sources, in/groups)
        return by_group(w[place[0], :, place[1]], rule.groups)
    return by_group(w[(place[0], slice(None), slice(None), *place[1:])], rule.groups)


def by_group(matrix: Tensor, groups: int) -> Tensor:
    """(out, in/groups) → (groups, in/groups, out/groups): block g of the outputs reads block g of the inputs."""
    return torch.stack([m.t() for m in matrix.chunk(groups)])


def shared(rule: SharedKernel, relation: int) -> Tensor:
    w = rule.weight
    if rule.bases is not None:
        matrix = sum(rule.coefficients[relation, b] * w[b] for b in range(rule.bases))
    elif rule.heads is None and w.ndim > 2 and rule.kernel_shape is not None:
        matrix = w.reshape(*w.shape[:2], -1)[:, :, relation]
    else:
        matrix = w[relation]
    return matrix if rule.heads is not None else by_group(matrix, rule.groups)


def attention(c: SimpleNamespace, rule: QKSoftmax) -> list[Tensor]:
    """scale · q_i·(k_j + e_ij) + bias; the values stay in ``c`` with what an edge adds to them."""
    d, share = rule.head_channels, rule.heads // rule.kv_heads
    split = c.x.split(rule.split, -1) if rule.split else (c.x, c.x)
    q, k, v = rule.query(c.target), rule.key(split[0]), rule.value(split[1])
    at_source, at_target = places(c)
    by_head = lambda t: t.unflatten(-1, (-1, d)).transpose(0, 1)  # noqa: E731
    q, k, c.by_head = by_head(q), by_head(k), by_head(v)
    if rule.position is not None:
        q, k = rule.position(q, at_target), rule.position(k, at_source)
    added = None if c.attr is None else [rule.edge(a).reshape(rule.heads, d) for a in c.attr]
    c.added, scores = added, []
    for e, p in enumerate(c.pairs):
        keys = [k[h // share, p.source] + (0 if added is None else added[e][h]) for h in range(rule.heads)]
        score = torch.stack([rule.scale * q[h, p.target] @ keys[h] for h in range(rule.heads)])
        if rule.score_bias is not None:
            score = score + rule.score_bias(at_target[p.target], at_source[p.source]).to(score.dtype)
        scores.append(score)
    return scores


def places(c: SimpleNamespace) -> tuple[Tensor, Tensor]:
    """(source, target) positions; those given are x's; a grid's own target stands at its window's centre."""
    mask = [True] * c.m if c.mask is None else c.mask.tolist()
    at_source, at_target = positions_of(c.layer.neighbours, mask, c.n, c.one_set, c.batch)
    if c.positions is not None and (c.one_set or c.own):
        at_source = at_target = c.positions.tolist()
    elif c.positions is not None:
        at_target = c.positions.tolist()
    if c.own and isinstance(c.layer.neighbours, Grid):
        at_target = [at_source[centre(c.layer.neighbours, c.grid, i)] for i in range(c.n)]
    return torch.tensor(at_source), torch.tensor(at_target)


def heads_of(c: SimpleNamespace, x: Tensor, heads: int) -> Tensor:
    """value(x) of one token, by head; x itself where there is no value."""
    value = c.layer.weight.value
    return (x if value is None else value(x)).reshape(heads, -1)


def gat(c: SimpleNamespace, rule: EdgeLearned, e: int, p: Pair) -> Tensor:
    net = rule.network
    score = (net.source * heads_of(c, c.x[p.source], net.heads)).sum(-1)
    score = score + (net.target * heads_of(c, c.target[p.target], net.heads)).sum(-1)
    if net.edge is not None:
        score = score + (net.edge_vector * net.edge(c.attr[e]).reshape(net.heads, -1)).sum(-1)
    return torch.where(score > 0, score, 0.2 * score)


def gatv2(c: SimpleNamespace, rule: EdgeLearned, e: int, p: Pair) -> Tensor:
    net = rule.network
    ends = ((net.source, c.x[p.source]), (net.target, c.target[p.target]))
    parts = [heads_of(c, x, net.heads) if own is None else own(x).reshape(net.heads, -1) for own, x in ends]
    if net.edge is not None:
        parts.append(net.edge(c.attr[e]).reshape(net.heads, -1))
    return (net.vector * net.activation(sum(parts))).sum(-1)


def offset_of(c: SimpleNamespace, p: Pair) -> Tensor:
    at_source, at_target = c.coordinates
    if at_source is not None:
        return at_source[p.source] - at_target[p.target]
    return torch.tensor(p.offset, dtype=c.x.dtype)


def cfconv(c: SimpleNamespace, rule: EdgeLearned, e: int, p: Pair) -> Tensor:
    net, offset = rule.network, offset_of(c, p)
    far = float((offset.detach() ** 2).sum())
    d = (offset**2).sum().sqrt() if far > 0 else torch.zeros((), dtype=c.x.dtype)
    centres = torch.linspace(0, net.cutoff, net.gaussians, dtype=c.x.dtype)
    smeared = torch.exp(-0.5 / float(centres[1] - centres[0]) ** 2 * (d - centres) ** 2)
    return net.layers(smeared) * 0.5 * (torch.cos(math.pi * d / net.cutoff) + 1) * float(far <= net.cutoff**2)


NETWORKS = {
    AdditiveScore: gat,
    AdditiveScoreV2: gatv2,
    RadialFilter: cfconv,
    OffsetMLP: lambda c, rule, e, p: rule.network.layers(offset_of(c, p)),
}


def namespace(c: SimpleNamespace) -> Any:
    """What a person's own rule reads of the pairs, stacked."""
    rule = c.layer.weight
    ends = {"source": [c.x[p.source] for p in c.pairs]}
    if c.target is not None:
        ends["target"] = [c.target[p.target] for p in c.pairs]
    seen = {f"x_{end}": torch.stack(x) for end, x in ends.items()}
    if rule.heads is not None:
        seen |= {f"value_{end}": torch.stack([heads_of(c, t, rule.heads) for t in x]) for end, x in ends.items()}
    return SimpleNamespace(**seen)


def normalised(c: SimpleNamespace, keep: list[list[bool]], weights: list[Tensor]) -> list[Tensor]:
    """The weights as used: edge weights, degrees, softmax; 0 where a mask removes the pair."""
    rule, heads = c.layer.weight, len(keep[0]) if keep else 1
    one = torch.ones((), dtype=c.x.dtype)
    loop = getattr(c.layer.neighbours, "loop_weight", 1.0)
    scale = [one if c.edge_weight is None else c.edge_weight[p.row] if p.row >= 0 else one * loop for p in c.pairs]
    made = []
    for e, p in enumerate(c.pairs):
        columns = []
        for h in range(heads):
            w = weights[e] if rule.groups is not None else weights[e][h : h + 1]
            rivals = [f for f, q in enumerate(c.pairs) if q.target == p.target and keep[f][h]]
            if not keep[e][h]:
                w = w * 0
            elif rule.normalise == "softmax":
                scores = torch.stack([weights[f][h] for f in rivals])
                w = torch.softmax(scores, 0)[rivals.index(e)][None]
            else:
                w = w * scale[e]
            if keep[e][h] and rule.normalise == "relation":
                w = w / sum(c.pairs[f].relation == p.relation for f in rivals)
            if keep[e][h] and rule.normalise == "symmetric":
                product = one
                for i in (p.source, p.target):
                    product = product * sum(scale[f] for f, q in enumerate(c.pairs) if q.target == i and keep[f][h])
                w = w * (product**-0.5 if float(product.detach()) > 0 else 0.0)
            columns.append(w)
        made.append(torch.cat(columns))
    return made


def reduced(c: SimpleNamespace, keep: list[list[bool]], weights: list[Tensor], i: int, head: int | None) -> Tensor:
    """The aggregate of target i, of one head or of all groups."""
    rule, messages = c.layer.weight, []
    for e, p in enumerate(c.pairs):
        if p.target != i or not keep[e][head or 0]:
            continue
        if head is None:
            x = c.value[p.source].reshape(rule.groups, -1)
            messages.append(torch.cat([x[g] @ weights[e][g] for g in range(rule.groups)]))
        elif isinstance(rule, QKSoftmax):
            v = c.by_head[head // (rule.heads // rule.kv_heads), p.source]
            messages.append(weights[e][head] * (v if c.added is None else v + c.added[e][head]))
        else:
            messages.append(weights[e][head] * c.value[p.source].reshape(rule.heads, -1)[head])
    if not messages:
        width = (
            rule.after
            if head is None
            else c.by_head.shape[-1]
            if isinstance(rule, QKSoftmax)
            else c.value.shape[-1] // rule.heads
        )
        return torch.zeros(width, dtype=c.x.dtype)
    stacked = torch.stack(messages)
    return stacked.amax(0) if rule.reduce == "max" else stacked.sum(0) if rule.reduce == "sum" else stacked.mean(0)
