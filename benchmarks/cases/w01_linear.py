"""W1: a dense layer. ``Full`` × ``Static`` beside ``nn.Linear``; nothing but the dispatch differs."""

from __future__ import annotations

from functools import partial

from torch import nn

from benchmarks.case import FORWARD, TRAIN, Case, Entry, Side, Work
from benchmarks.tensors import leaf, normal, seeded, share
from mpnn import MessagePassing
from mpnn.neighbours import Full
from mpnn.weights import Static

SIZES = ((128, 784, 256), (4096, 512, 512), (8192, 1024, 1024))
SERIES = (512, 1024, 2048, 4096, 8192)


def make(batch: int, sources: int, targets: int) -> Case:
    """The layer on ``batch`` samples of ``sources`` units."""
    seeded()
    layer = MessagePassing(Full(sources, targets), Static())
    x = normal(batch, sources, 1)
    weight, bias = layer.weight.weight, layer.weight.bias
    peer = share(nn.Linear(sources, targets), weight=weight.view(targets, sources), bias=bias.view(targets))
    flat = leaf(x.view(batch, sources))
    ours = Side(
        "mpnn", lambda: layer(x), {"x": x, "weight": weight, "bias": bias}, lambda y: y.squeeze(-1),
        {"x": lambda g: g.squeeze(-1), "weight": lambda g: g.view(targets, sources), "bias": lambda g: g.view(targets)},
    )  # fmt: skip
    theirs = Side("nn.Linear", lambda: peer(flat), {"x": flat, "weight": peer.weight, "bias": peer.bias})
    moved = 4.0 * (batch * sources + sources * targets + batch * targets)
    work = Work(2.0 * batch * sources * targets, moved)
    return Case(ours, [theirs], work, work.times(3), layer.plan(x).kernel)


def series() -> list[Entry]:
    """Time and memory against the number of rows."""
    return [
        Entry(f"series/W1-N/{n}", f"dense layer, {n} × 512 → 512", partial(make, n, 512, 512),
              {"N": n, "in": 512, "out": 512}, series=("W1-N", "N"))
        for n in SERIES
    ]  # fmt: skip


def entries() -> list[Entry]:
    floors = {(mode, "best"): 0.95 for mode in (FORWARD, TRAIN)}
    made = []
    for i, (batch, sources, targets) in enumerate(SIZES):
        name = f"{batch}x{sources}x{targets}"
        size = {"N": batch, "in": sources, "out": targets}
        title = f"dense layer, {batch} × {sources} → {targets}"
        made.append(
            Entry(
                f"W1/{name}",
                title,
                lambda s=(batch, sources, targets): make(*s),
                size,
                floors,
                "bench" if i else "smoke",
            )
        )
    return made
