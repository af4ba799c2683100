"""W6 and W9: self-attention over all tokens, plain and causal. ``AllTokens`` × ``QKSoftmax`` beside
``nn.MultiheadAttention`` and the same layer written with torch's fused attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.case import FORWARD, TRAIN, Case, Entry, Side, Work
from benchmarks.cases.bare import heads, join
from benchmarks.tensors import normal, seeded, share
from mpnn import MessagePassing
from mpnn.neighbours import AllTokens
from mpnn.weights import QKSoftmax

HEADS, CHANNELS = 4, 64  # channels of a head
LENGTHS = (1024, 2048, 4096, 8192)
SERIES = (128, 256, 512, 1024, 2048)


def packed(name: str) -> dict[str, object]:
    """The gradient of nn.MultiheadAttention's packed projection as those of its three parts."""
    return {name: lambda g: dict(zip((f"query.{name}", f"key.{name}", f"value.{name}"), g.chunk(3), strict=True))}


def make(length: int, causal: bool) -> Case:
    """One sample, four heads of 64 channels."""
    seeded()
    width = HEADS * CHANNELS
    layer = MessagePassing(AllTokens(causal=causal), QKSoftmax(width, HEADS))
    w, x = layer.weight, normal(1, length, width)
    parts = (w.query, w.key, w.value)
    weight, bias = torch.cat([p.weight for p in parts]), torch.cat([p.bias for p in parts])
    attention = nn.MultiheadAttention(width, HEADS, batch_first=True).eval()  # no dropout; eval is its fast path
    share(
        attention,
        in_proj_weight=weight,
        in_proj_bias=bias,
        out_proj__weight=w.output.weight,
        out_proj__bias=w.output.bias,
    )
    mask = torch.ones(length, length, dtype=torch.bool).triu(1) if causal else None

    def customary() -> Tensor:
        return attention(x, x, x, need_weights=False, attn_mask=mask, is_causal=causal)[0]

    def fused() -> Tensor:
        q, k, v = (heads(t, HEADS) for t in F.linear(x, attention.in_proj_weight, attention.in_proj_bias).chunk(3, -1))
        y = join(F.scaled_dot_product_attention(q, k, v, is_causal=causal))
        return F.linear(y, attention.out_proj.weight, attention.out_proj.bias)

    theirs = {
        "x": x, "weight": attention.in_proj_weight, "bias": attention.in_proj_bias,
        "output.weight": attention.out_proj.weight, "output.bias": attention.out_proj.bias,
    }  # fmt: skip
    views = packed("weight") | packed("bias")
    given = [] if mask is None else [mask]
    sides = [
        Side("nn.MultiheadAttention", customary, theirs, views=views, given=given),
        Side("Linear and SDPA", fused, theirs, views=views),
    ]
    ours = Side("mpnn", lambda: layer(x), {"x": x, **dict(w.named_parameters())})
    dense = Work(8.0 * length * width**2, 8.0 * length * width)
    pairs = Work(4.0 * length**2 * width * (0.5 if causal else 1.0))
    return Case(ours, sides, dense + pairs, dense.times(3) + pairs.times(3.5), layer.plan(x).kernel)


def entries() -> list[Entry]:
    made = []
    for workload, causal in (("W6", False), ("W9", True)):
        for length in LENGTHS:
            floors = {
                (FORWARD, "customary"): 0.95, (TRAIN, "customary"): 1.0, (FORWARD, "best"): 0.95, (TRAIN, "best"): 0.95,
            }  # fmt: skip
            title = f"{'causal ' * causal}self-attention, {length:,} tokens, {HEADS} heads of {CHANNELS}"
            size = {"N": length, "H": HEADS, "D": CHANNELS}
            scope = "smoke" if length == 1024 and not causal else "bench"
            made.append(
                Entry(f"{workload}/{length}", title, lambda n=length, c=causal: make(n, c), size, floors, scope)
            )
    return made


def series() -> list[Entry]:
    """Time and memory against N."""
    return [
        Entry(f"series/W6-N/{n}", f"self-attention, {n:,} tokens", lambda n=n: make(n, False),
              {"N": n, "H": HEADS, "D": CHANNELS}, series=("W6-N", "N"))
        for n in SERIES
    ]  # fmt: skip
