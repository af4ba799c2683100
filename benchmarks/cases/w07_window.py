"""W7: sliding-window attention. ``attend`` on a ``Window`` beside masked SDPA and compiled FlexAttention."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.case import FORWARD, TRAIN, Case, Entry, LeftOut, Side, Work
from benchmarks.cases.w05a_attend import chosen
from benchmarks.tensors import normal, seeded
from mpnn import attend
from mpnn.neighbours import Window

HEADS, CHANNELS = 4, 64
BENCH = ((256, 1024, True), (256, 4096, True), (256, 4096, False), (1024, 4096, True))
SCALE = (
    (1024, 4096, False),
    (256, 16384, True),
    (256, 16384, False),
    (1024, 16384, True),
    (256, 32768, True),
    (1024, 32768, True),
    (1024, 32768, False),
)
SERIES = (64, (256, 512, 1024, 2048, 4096))
LISTED = 1 << 21  # window entries that a kernel of listed edges is asked for: beyond it takes seconds and gigabytes


@lru_cache(maxsize=1)
def flex() -> Any:
    """FlexAttention through torch.compile: on a CPU it has no backward."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def make(width: int, length: int, causal: bool, *, flexible: bool = False) -> Case:
    """One sample, four heads of 64 channels; each target sees ``width`` sources, itself included."""
    seeded()
    left = width - 1 if causal else width // 2
    right = width - 1 - left
    rule = Window(left, right)
    q, k, v = (normal(1, HEADS, length, CHANNELS, seed=s) for s in (1, 2, 3))
    leaves = {"q": q, "k": k, "v": v}
    kernel = chosen(*(t[..., : 2 * width, :].detach() for t in (q, k, v)), rule)
    if kernel in ("native", "edge_softmax", "segment", "reference") and length * width > LISTED:
        raise LeftOut(f"{length * width:,} pairs through the kernel {kernel}, which lists them: seconds a call")
    i = torch.arange(length)
    step = i[None, :] - i[:, None]
    mask = (step >= -left) & (step <= right)
    sides = [
        Side("SDPA with a mask", lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), leaves, given=[mask])
    ]
    if flexible:
        from torch.nn.attention.flex_attention import create_block_mask

        def sees(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return (j - i >= -left) & (j - i <= right)

        blocks = create_block_mask(sees, None, None, length, length, device="cpu")
        call = flex()
        sides.append(
            Side(
                "FlexAttention",
                lambda: call(*(t.detach() for t in (q, k, v)), block_mask=blocks),
                leaves,
                compiled=True,
                trains=False,
            )
        )
    pairs = float(mask.sum())
    work = Work(4.0 * pairs * HEADS * CHANNELS, 16.0 * length * HEADS * CHANNELS)
    ours = Side("mpnn", lambda: attend(q, k, v, rule), leaves)
    return Case(ours, sides, work, work.times(3.5), kernel)


def entries() -> list[Entry]:
    made = []
    for scope, shapes in (("bench", BENCH), ("scale", SCALE)):
        for width, length, causal in shapes:
            kind = "causal" if causal else "both"
            floors = {(mode, "customary"): 0.4 * length / width for mode in (FORWARD, TRAIN)}
            title = f"window of {width} sources, {length:,} tokens, {kind}, {HEADS} heads of {CHANNELS}"
            size = {"N": length, "w": width, "H": HEADS, "D": CHANNELS}
            shape = (width, length, causal)
            # compiled for each length anew, so only for one here
            with_flex = scope == "scale" or shape == (256, 4096, True)
            made.append(
                Entry(
                    f"W7/{kind}-{width}-{length}",
                    title,
                    lambda s=shape, f=with_flex: make(*s, flexible=f),
                    size,
                    floors,
                    scope,
                )
            )
    return made


def series() -> list[Entry]:
    """Time and memory against N: a window's are linear."""
    width, lengths = SERIES
    return [
        Entry(f"series/W7-N/{n}", f"window of {width} sources, {n:,} tokens", lambda n=n: make(width, n, True),
              {"N": n, "w": width, "H": HEADS, "D": CHANNELS}, series=("W7-N", "N"))
        for n in lengths
    ]  # fmt: skip
