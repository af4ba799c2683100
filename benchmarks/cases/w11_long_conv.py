"""W11: a long causal convolution, a kernel as long as the sequence. ``AllTokens`` × ``SharedKernel`` beside
``F.conv1d`` and the FFT."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.case import FORWARD, TRAIN, Case, Entry, LeftOut, Side, Work
from benchmarks.tensors import leaf, normal, seeded
from mpnn import MessagePassing
from mpnn.neighbours import AllTokens
from mpnn.weights import SharedKernel

CHANNELS = 64
LENGTHS = (1024, 4096, 16384, 65536)
PAIRS = 1 << 20  # pairs that the reference kernel is asked for: beyond it takes seconds
DIRECT = {"bench": 4096, "scale": 16384}  # the longest that F.conv1d is asked for: N² a channel


def make(length: int, direct: bool = True) -> Case:
    """One sample of 64 channels, each with its own kernel."""
    seeded()
    layer = MessagePassing(
        AllTokens(causal=True, max_tokens=length), SharedKernel(CHANNELS, CHANNELS, groups=CHANNELS, bias=False)
    )
    x, weight = normal(1, length, CHANNELS), layer.weight.weight
    kernel = layer.plan(x).kernel
    if kernel == "reference" and length**2 // 2 > PAIRS:
        raise LeftOut(f"{length**2 // 2:,} pairs through the kernel reference: seconds a call")
    line = leaf(x.transpose(1, 2).contiguous())  # (1, C, N), as conv1d wants it
    taps = leaf(weight.squeeze(-1).t().unsqueeze(1).contiguous())  # (C, 1, N): the last tap is the token itself
    leaves = {"x": line, "weight": taps}

    def by_fft() -> Tensor:
        n = 2 * length
        return torch.fft.irfft(torch.fft.rfft(line, n) * torch.fft.rfft(taps.squeeze(1).flip(-1), n), n)[..., :length]

    convolution = Side("F.conv1d", lambda: F.conv1d(F.pad(line, (length - 1, 0)), taps, groups=CHANNELS), leaves)
    ours = Side(
        "mpnn", lambda: layer(x), {"x": x, "weight": weight}, lambda y: y.transpose(1, 2),
        {"x": lambda g: g.transpose(1, 2), "weight": lambda g: g.squeeze(-1).t().unsqueeze(1)},
    )  # fmt: skip
    transform = 2.5 * 2 * length * math.log2(2 * length) * CHANNELS
    work = Work(3 * transform, 12.0 * length * CHANNELS)
    fft = Side("FFT", by_fft, leaves)
    peers = [convolution, fft] if direct else [fft]
    case = Case(ours, peers, work, work.times(2), kernel)
    case.note = "" if direct else "F.conv1d is left out: seconds to minutes a call"
    case.tolerance = 1e-4  # the FFT's rounding spreads over all outputs
    return case


def entries() -> list[Entry]:
    made = []
    for length in LENGTHS:
        floors = {(mode, "best"): 0.9 for mode in (FORWARD, TRAIN)}
        title = f"causal convolution as long as {length:,} tokens, {CHANNELS} channels"
        size = {"N": length, "C": CHANNELS}
        made.append(Entry(f"W11/{length}", title, partial(make, length, length <= DIRECT["bench"]), size, floors))
        if DIRECT["bench"] < length <= DIRECT["scale"]:
            made.append(Entry(f"W11/{length}-direct", title, partial(make, length), size, {}, "scale"))
    return made
