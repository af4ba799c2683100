"""Windows and grids: W7 and W8, where each target sees a box of sources."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch.nn import functional as F

from benchmarks.case import FORWARD, TRAIN, Case, Entry, LeftOut, Side, Work
from benchmarks.cases.w05a_attend import chosen
from benchmarks.gpu_cases.leaves import SQUARE, TOLERANCE, bytes_of, given
from mpnn import attend
from mpnn.neighbours import Grid, Neighbours, Window

WINDOWS = ((256, 4096, True), (256, 16384, True), (1024, 16384, True), (256, 16384, False), (256, 65536, True))


def boxes(device: str, dtype: torch.dtype, rule: Neighbours, heads: int, n: int, width: int, pairs: float) -> Case:
    """W7, W8: windows and grids beside SDPA with a mask, where that may be made, and beside our listed edges."""
    leaves = given(device, dtype, 1, heads, n, width)
    q, k, v = leaves.values()
    sides = []
    if n * n <= SQUARE:
        edges, mask = rule.edges(n, n), torch.zeros(n, n, dtype=torch.bool, device=device)
        mask[edges.target, edges.source] = True
        masked = lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # noqa: E731
        sides.append(Side("SDPA with a mask", masked, leaves, given=[mask]))
    if device == "cuda":
        sides.append(Side("mpnn by triton", lambda: attend(q, k, v, rule, kernel="triton"), leaves))
    if not sides:
        raise LeftOut(f"a mask of {n:,} × {n:,} pairs, and no other peer here")
    ours = Side("mpnn", lambda: attend(q, k, v, rule), leaves)
    work = bytes_of(Work(4.0 * pairs * heads * width, 16.0 * heads * n * width), dtype)
    kernel = chosen(q.detach(), k.detach(), v.detach(), rule)
    return Case(ours, sides, work, work.times(3.5), kernel, TOLERANCE[dtype])


def window(device: str, dtype: torch.dtype, width: int, n: int, causal: bool) -> Case:
    """Each target sees ``width`` sources, itself included."""
    left = width - 1 if causal else width // 2
    return boxes(device, dtype, Window(left, width - 1 - left), 4, n, 64, float(n * width))


def grid(device: str, dtype: torch.dtype, side: int) -> Case:
    """Neighbourhood attention, windows of 7×7."""
    return boxes(device, dtype, Grid((side, side), 7, border="clamp"), 4, side * side, 32, 49.0 * side * side)


def entries(device: str, small: bool) -> Iterator[Entry]:
    for w, n, causal in ((16, 200, True),) if small else WINDOWS:
        for dtype in (torch.bfloat16, torch.float32):
            kind = str(dtype).removeprefix("torch.")
            key = f"W7/{'causal' if causal else 'both'}-{w}-{n}-{kind}"
            make = partial(window, device, dtype, w, n, causal)
            aim = {(m, "customary"): 0.4 * n / w for m in (FORWARD, TRAIN)} if n * n <= SQUARE and not small else {}
            yield Entry(key, f"window of {w} sources, {n:,} tokens, {kind}", make, {"N": n, "w": w}, aim)
    for side in (9,) if small else (56, 128):
        make = partial(grid, device, torch.bfloat16, side)
        words = f"attention in 7×7 windows of {side}×{side} cells, bfloat16"
        yield Entry(f"W8/{side}", words, make, {"N": side * side})
