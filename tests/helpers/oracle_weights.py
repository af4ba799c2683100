"""The oracle's weights: what each rule says of a pair, by the formula of its docstring and of the paper."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from helpers.oracle_pairs import Pair, centre, positions_of
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
    if c.given_positions[0] is not None:
        at_source, at_target = (None if t is None else t.tolist() for t in c.given_positions)
    elif c.positions is not None and (c.one_set or c.own):
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
