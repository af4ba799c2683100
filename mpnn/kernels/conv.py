"""conv: kernels shared over a grid through torch's convolutions.

Row-major tokens (…, cells, C) are a channels-last view of (B, C, *grid), so nothing is copied; the weight is stored
channels-last too. A 1-D grid runs as a 2-D one of height 1, since torch has a channels-last layout for 4-D tensors
only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mpnn.kernels.base import Call
from mpnn.spec import Spec

name = "conv"


def unsupported(spec: Spec) -> list[str]:
    """Why this call is no convolution of torch."""
    why = []
    if spec.weight != "SharedKernel" or spec.neighbours != "Grid":
        why.append("needs Grid with SharedKernel: one weight per offset of a regular grid")
    if spec.axes > 3:
        why.append(f"torch has no convolution of {spec.axes} axes")
    if spec.family != "groups":
        why.append("a number per head and offset is no convolution kernel")
    if spec.border == "clamp":
        why.append("border='clamp' shifts windows, a convolution does not")
    if spec.reduce != "sum" or spec.normalise is not None:
        why.append("sums without normalisation only")
    if spec.bases:
        why.append("bases: every kernel is a combination of others, made at each call")
    if spec.pair_mask or spec.edge_weight or spec.edge_attr:
        why.append("pair_mask and edge data make the kernel depend on the place")
    return why


def run(call: Call, reference: Any) -> Tensor:
    """The aggregate: (..., N, C)."""
    bias = call.take_bias()
    return call.blank_targets(_prepared(call)(call.value, bias))


def shortcut(call: Call, reference: Any) -> Callable[[Tensor], Tensor] | None:
    """The whole layer for tokens of this shape; None where more than a convolution belongs to it."""
    rule = call.weight
    if rule.root is not None or rule.output is not None or rule.value is not None:
        return None
    convolve, own, biased = _prepared(call), rule._parameters.get, rule.bias is not None

    def run(x: Tensor) -> Tensor:
        bias = own("bias") if biased else None  # a look-up costs less than an attribute
        return convolve(x, rule.bias if biased and bias is None else bias)

    return run


def _prepared(call: Call) -> Callable[[Tensor, Tensor | None], Tensor]:
    """The convolution of row-major tokens for one grid."""
    rule: Any = call.weight
    grid: Any = call.neighbours
    size, pads, stride, dilation = grid.size_of(call.target_tokens), grid.pads, grid.stride, grid.dilation
    flat = grid.axes == 1
    if flat:
        size, pads, stride, dilation = (1, *size), [(0, 0), *pads], (1, *stride), (1, *dilation)
    even = all(a == b for a, b in pads)
    plain = grid.border == "zeros" and even
    padding: Any = tuple(a for a, _ in pads) if plain else 0
    ahead = [n for pair in reversed(pads) for n in pair]
    convolution: Any = F.conv3d if len(size) == 3 else F.conv2d
    channels_first, channels_last = (0, len(size) + 1, *range(1, len(size) + 1)), (0, *range(2, len(size) + 2), 1)
    shape, out = (call.entries, *size, rule.before), (*call.lead, call.targets, rule.after)
    own, groups, border = rule._parameters.get, rule.groups, grid.border

    def convolve(tokens: Tensor, bias: Tensor | None) -> Tensor:
        x = tokens.reshape(shape).permute(channels_first)
        if not plain:
            x = F.pad(x, ahead) if border == "zeros" else _pad(x, pads, border)
        weight = own("weight")
        if weight is None:  # parametrised, no parameter of its own
            weight = rule.weight
        if flat:
            weight = weight.unsqueeze(2)
        return convolution(x, weight, bias, stride, padding, dilation, groups).permute(channels_last).reshape(out)

    return convolve


def _pad(x: Tensor, pads: list[tuple[int, int]], border: str) -> Tensor:
    """``F.pad`` axis by axis with the index of each padded cell: circular may wrap an axis of any length."""
    for axis, (before, after) in enumerate(pads):
        if before or after:
            n = x.shape[axis + 2]
            cell = torch.arange(-before, n + after, device=x.device)
            if border == "circular":
                cell = cell % n
            elif border == "reflect":
                cell = n - 1 - (n - 1 - cell.abs()).abs()
            else:
                cell = cell.clamp(0, n - 1)
            x = x.index_select(axis + 2, cell)
    return x
