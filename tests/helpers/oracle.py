"""The dense oracle: the one equation as a Python loop over pairs in float64, written from the contract alone."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import torch
from torch import Tensor

from helpers.calls import Trial, seen
from helpers.oracle_pairs import Pair, centre, pairs_of
from helpers.oracle_weights import raw_weights
from mpnn.neighbours import Grid
from mpnn.weights import QKSoftmax


def oracle(call: Trial) -> tuple[Tensor, list[Pair], Tensor]:
    """(y, the pairs used, their weights (..., E, heads) or (..., E, groups, out/groups, in/groups)) of a call."""
    given, layer = call.tensors, call.layer
    rule, x = layer.neighbours, given["source"]
    lead, m = x.shape[:-2], x.shape[-2]
    own = rule.target_count(m, SimpleNamespace(x=x, grid=call.grid))
    one_set = "target" not in given and own is None
    end = "source" if one_set else "target"
    n = given[end].shape[-2] if end in given else own
    batch = (given["source batch"], given[f"{end} batch"]) if "source batch" in given else None
    listed = {k: given.get(k) for k in ("edge_index", "edge_type")}
    pairs = pairs_of(rule, n, m, batch=batch, grid=call.grid, **listed, **seen(given))
    outs = []
    for entry in itertools.product(*map(range, lead)):

        def one(name: str, axes: int, entry: tuple[int, ...] = entry) -> Tensor | None:
            t = given.get(name)
            return None if t is None else t.expand(*lead, *t.shape[-axes:])[entry]

        c = SimpleNamespace(layer=layer, pairs=pairs, n=n, m=m, batch=batch, grid=call.grid, one_set=one_set)
        c.own = end not in given
        c.mask, c.target_mask = one("source mask", 1), one(f"{end} mask", 1)
        c.x, c.target = clean(one("source", 2), c.mask), clean(one(end, 2), c.target_mask)
        if c.own and isinstance(rule, Grid):
            c.target = torch.stack([c.x[centre(rule, call.grid, i)] for i in range(n)])
        c.pair_mask = given.get("pair_mask")
        if c.pair_mask is not None:
            c.pair_mask = c.pair_mask.expand(*lead, layer.weight.heads or 1, n, m)[entry]
        c.attr, c.edge_weight, c.positions = one("edge_attr", 2), one("edge_weight", 1), one("positions", 1)
        c.given_positions = one("source positions", 2), one(f"{end} positions", 2)
        c.coordinates = one("source coordinates", 2), one(f"{end} coordinates", 2)
        outs.append(entry_of(c))
    y, weights = (torch.stack(t).unflatten(0, lead) if lead else t[0] for t in zip(*outs, strict=True))
    return y, pairs, weights


def clean(x: Tensor | None, mask: Tensor | None) -> Tensor | None:
    return x if mask is None or x is None else torch.where(mask[:, None], x, torch.zeros_like(x))


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


def normalised(c: SimpleNamespace, keep: list[list[bool]], weights: list[Tensor]) -> list[Tensor]:
    """The weights as used: edge weights, degrees, softmax; 0 where a mask removes the pair."""
    rule, heads = c.layer.weight, len(keep[0]) if keep else 1
    one = torch.ones((), dtype=c.x.dtype)
    loop = getattr(c.layer.neighbours, "loop_weight", 1.0)
    scale = [one * loop if p.row < 0 else one if c.edge_weight is None else c.edge_weight[p.row] for p in c.pairs]
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
