"""conv: kernels shared over a grid through torch's convolutions.

Row-major tokens (…, cells, C) are a channels-last view of (B, C, *grid), so nothing is copied; the weight is stored
channels-last too. A 1-D grid runs as a 2-D one of height 1, since torch has a channels-last layout for 4-D tensors
only.
"""

from __future__ import annotations

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
    if spec.pair_mask or spec.edge_weight or spec.edge_attr:
        why.append("pair_mask and edge data make the kernel depend on the place")
    return why


def run(call: Call, reference: Any) -> Tensor:
    """The aggregate: (..., N, C)."""
    rule, grid = call.weight, call.neighbours
    size = grid.size_of(call.target_tokens)
    x = call.value.reshape(-1, *size, rule.before).movedim(-1, 1)
    weight, pads = rule.weight, grid.pads
    stride, dilation = grid.stride, grid.dilation
    if grid.axes == 1:
        x, weight, pads = x.unsqueeze(2), weight.unsqueeze(2), [(0, 0), *pads]
        stride, dilation = (1, *stride), (1, *dilation)
    even = all(a == b for a, b in pads)
    padding: Any = tuple(a for a, _ in pads)
    if grid.border != "zeros" or not even:
        flat = [n for pair in reversed(pads) for n in pair]
        x = F.pad(x, flat) if grid.border == "zeros" else _pad(x, pads, grid.border)
        padding = 0
    convolution = F.conv3d if weight.ndim == 5 else F.conv2d
    y = convolution(x, weight, call.take_bias(), stride, padding, dilation, rule.groups)
    y = y.movedim(1, -1).reshape(*call.lead, call.targets, rule.after)
    return call.blank_targets(y)


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
