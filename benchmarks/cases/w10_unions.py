"""W10: unions of neighbourhoods. ``attend`` on ``a | b`` beside masked SDPA and beside its parts one by one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from benchmarks.case import FORWARD, TRAIN, Case, Entry, Side, Work
from benchmarks.cases.w05a_attend import chosen
from benchmarks.tensors import normal, seeded
from mpnn import attend
from mpnn.neighbours import AllTokens, Global, Graph, Neighbours, Window

HEADS, CHANNELS = 4, 64


def random_graph(nodes: int, degree: int) -> Graph:
    """Each node with edges from ``degree`` others drawn at random."""
    generator = torch.Generator().manual_seed(3)
    source = torch.randint(nodes, (nodes * degree,), generator=generator)
    target = torch.arange(nodes).repeat_interleave(degree)
    return Graph(torch.unique(torch.stack([source, target]), dim=1), nodes)


KINDS: dict[str, tuple[Callable[[int], tuple[Neighbours, Neighbours]], int, str]] = {
    "window-global": (lambda n: (Window(128, 127), Global(16)), 4096, "a window of 256 with 16 global tokens"),
    "window-graph": (
        lambda n: (Window(128, 127), random_graph(n, 8)),
        4096,
        "a window of 256 with a graph of degree 8",
    ),
    "graph-all": (lambda n: (random_graph(n, 8), AllTokens()), 2048, "a graph of degree 8 with all tokens"),
}


def make(kind: str) -> Case:
    """One sample, four heads of 64 channels."""
    seeded()
    both, length, _ = KINDS[kind]
    a, b = both(length)
    rule = a | b
    q, k, v = (normal(1, HEADS, length, CHANNELS, seed=s) for s in (1, 2, 3))
    leaves = {"q": q, "k": k, "v": v}
    if isinstance(b, AllTokens):
        mask = torch.ones(length, length, dtype=torch.bool)
    else:
        edges = rule.edges(length, length)
        mask = torch.zeros(length, length, dtype=torch.bool)
        mask[edges.target, edges.source] = True
    sides = [
        Side("SDPA with a mask", lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), leaves, given=[mask]),
        Side("its parts, not joined", lambda: attend(q, k, v, a) + attend(q, k, v, b), leaves, same=False),
    ]
    work = Work(4.0 * float(mask.sum()) * HEADS * CHANNELS, 16.0 * length * HEADS * CHANNELS)
    ours = Side("mpnn", lambda: attend(q, k, v, rule), leaves)
    return Case(ours, sides, work, work.times(3.5), chosen(q.detach(), k.detach(), v.detach(), rule))


def entries() -> list[Entry]:
    floors = {(FORWARD, "best"): 0.8, (TRAIN, "best"): 0.8}  # 1.25 times the parts
    return [
        Entry(f"W10/{kind}", f"{title}, {length:,} tokens", lambda k=kind: make(k), {"N": length, "H": HEADS}, floors)
        for kind, (_, length, title) in KINDS.items()
    ]
