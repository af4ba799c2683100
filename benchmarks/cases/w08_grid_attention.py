"""W8: neighbourhood attention on a grid. ``attend`` on a ``Grid`` beside masked SDPA and unfolded keys."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.case import FORWARD, TRAIN, Case, Entry, Side, Work
from benchmarks.cases.w05a_attend import chosen
from benchmarks.tensors import normal, seeded
from mpnn import attend
from mpnn.neighbours import Grid

SIDE, KERNEL, CHANNELS = 56, 7, 32
SHAPES = ((1, 2), (1, 4), (8, 2), (8, 4))  # batch, heads
SERIES = (14, 20, 28, 40, 56)


def unfolded(x: Tensor, side: int, kernel: int) -> Tensor:
    """The window of every cell: (B, H, N, D) → (B·H, N, k², D)."""
    batch, heads, cells, channels = x.shape
    image = x.reshape(batch * heads, side, side, channels).movedim(-1, 1)
    windows = F.unfold(image, kernel, padding=kernel // 2)
    return windows.view(batch * heads, channels, kernel**2, cells).permute(0, 3, 2, 1)


def make(batch: int, heads: int, side: int = SIDE, kernel: int = KERNEL) -> Case:
    """Heads of 32 channels; a cell at the border sees fewer."""
    seeded()
    cells = side * side
    rule = Grid((side, side), kernel)
    q, k, v = (normal(batch, heads, cells, CHANNELS, seed=s) for s in (1, 2, 3))
    leaves = {"q": q, "k": k, "v": v}
    place = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"), -1).view(cells, 2)
    mask = ((place[:, None] - place[None]).abs() <= kernel // 2).all(-1)
    inside = unfolded(torch.ones(1, 1, cells, 1), side, kernel).view(cells, 1, kernel**2) > 0

    def windows() -> Tensor:
        keys, values = unfolded(k, side, kernel), unfolded(v, side, kernel)
        query = q.reshape(batch * heads, cells, 1, CHANNELS)
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=inside).view(batch, heads, cells, CHANNELS)

    sides = [
        Side("SDPA with a mask", lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), leaves, given=[mask]),
        Side("unfold and SDPA", windows, leaves, given=[inside]),
    ]
    kernel_name = chosen(q.detach(), k.detach(), v.detach(), rule)
    work = Work(4.0 * float(mask.sum()) * batch * heads * CHANNELS, 16.0 * batch * heads * cells * CHANNELS)
    ours = Side("mpnn", lambda: attend(q, k, v, rule), leaves)
    return Case(ours, sides, work, work.times(3.5), kernel_name)


def entries() -> list[Entry]:
    made = []
    for batch, heads in SHAPES:
        floors = {(FORWARD, "customary"): 6.0, (TRAIN, "customary"): 5.0, (FORWARD, "best"): 6.0, (TRAIN, "best"): 6.0}
        title = (
            f"attention in {KERNEL}×{KERNEL} windows of {SIDE}×{SIDE} cells, batch {batch}, {heads} heads of {CHANNELS}"
        )
        size = {"N": SIDE * SIDE, "B": batch, "H": heads, "D": CHANNELS}
        made.append(Entry(f"W8/B{batch}-H{heads}", title, lambda b=batch, h=heads: make(b, h), size, floors))
    return made


def series() -> list[Entry]:
    """Time and memory against N."""
    return [
        Entry(f"series/W8-N/{s * s}", f"attention in 7×7 windows of {s}×{s} cells", lambda s=s: make(1, 2, s),
              {"N": s * s, "B": 1, "H": 2, "D": CHANNELS}, series=("W8-N", "N"))
        for s in SERIES
    ]  # fmt: skip
