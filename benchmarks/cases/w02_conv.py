"""W2: a convolution. ``Grid`` × ``SharedKernel`` beside ``nn.Conv2d``, as people write it and all in channels-last."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.case import FORWARD, TRAIN, Case, Entry, Side, Work
from benchmarks.tensors import leaf, normal, seeded, share
from mpnn import MessagePassing
from mpnn.neighbours import Grid
from mpnn.weights import SharedKernel

# batch, channels in and out, side of the square, kernel, groups
SIZES = {
    "first": (128, 1, 32, 28, 3, 1),
    "second": (128, 32, 64, 28, 3, 1),
    "wide": (32, 64, 64, 56, 3, 1),
    "depthwise": (32, 96, 96, 56, 7, 96),
}


def tokens(y: Tensor) -> Tensor:
    """(B, C, H, W) as row-major tokens (B, H·W, C)."""
    return y.movedim(1, -1).flatten(1, 2)


def make(batch: int, channels: int, out: int, side: int, kernel: int, groups: int) -> Case:
    """One layer that keeps the size of the image."""
    seeded()
    layer = MessagePassing(Grid((side, side), kernel), SharedKernel(channels, out, groups=groups))
    x = normal(batch, side * side, channels)
    weight, bias = layer.weight.weight, layer.weight.bias
    image = x.detach().view(batch, side, side, channels).movedim(-1, 1)  # channels-last, on the same memory
    ours = Side("mpnn", lambda: layer(x), {"x": x, "weight": weight, "bias": bias})
    # nn.Conv2d's own layouts hold copies: that is what it is given by the people who use it
    plain_weight, plain_x = weight.detach().clone(memory_format=torch.contiguous_format), leaf(image.contiguous())
    last_weight, last_x = weight.detach().to(memory_format=torch.channels_last), leaf(image)
    peers = []
    for name, shared, given in (
        ("nn.Conv2d", plain_weight, plain_x),
        ("nn.Conv2d, channels-last", last_weight, last_x),
    ):
        conv = share(nn.Conv2d(channels, out, kernel, padding=kernel // 2, groups=groups), weight=shared, bias=bias)
        leaves = {"x": given, "weight": conv.weight, "bias": conv.bias}
        peers.append(Side(name, lambda c=conv, g=given: c(g), leaves, tokens, {"x": tokens}))
    cells = batch * side * side
    moved = 4.0 * (cells * (channels + out) + weight.numel())
    work = Work(2.0 * cells * kernel**2 * channels * out / groups, moved)
    return Case(ours, peers, work, work.times(3), layer.plan(x).kernel)


def entries() -> list[Entry]:
    floors = {(mode, "best"): 0.95 for mode in (FORWARD, TRAIN)}
    made = []
    for name, (batch, channels, out, side, kernel, groups) in SIZES.items():
        size = {"N": batch * side * side, "in": channels, "out": out, "kernel": kernel}
        title = f"convolution {kernel}×{kernel}, ({batch}, {channels}, {side}, {side}) → {out}" + ", depthwise" * (
            groups > 1
        )
        shape = SIZES[name]
        made.append(
            Entry(
                f"W2/{name}",
                title,
                lambda s=shape: make(*s),
                size,
                floors,
                "smoke" if name in ("first", "second") else "bench",
            )
        )
    return made
