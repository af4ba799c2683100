"""The atlas's row of `Grid`: each cell sees the window around it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpnn import MessagePassing
from mpnn.experiments.atlas_case import Case, copied, linears, shared
from mpnn.experiments.atlas_full import sdpa
from mpnn.neighbours import Grid
from mpnn.weights import EdgeLearned, OffsetMLP, QKSoftmax, SharedKernel, Static


def locally_connected() -> Case:
    """`Grid` × `Static`: a kernel for each cell, on the windows that `F.unfold` cuts out."""
    layer = MessagePassing(Grid((5, 4), 3), Static(2, 3))
    rule: Any = layer.weight
    kernels, bias = rule.weight, rule.bias

    def reference(x: Tensor) -> Tensor:
        windows = F.unfold(as_image(x, (5, 4)), 3, padding=1)  # (B, in · 9, cells)
        return torch.einsum("nok,bkn->bno", kernels.flatten(2), windows) + bias

    return Case(layer, layer, reference, (torch.randn(2, 20, 2),), shared(layer))


def convolution(axes: int) -> Callable[[], Case]:
    """`Grid` × `SharedKernel` in 1-D, 2-D, 3-D."""
    size, kernel, stride = (7, 6, 5)[:axes], (3, 5, 3)[:axes], (2, 1, 2)[:axes]

    def make() -> Case:
        layer = MessagePassing(Grid(size, kernel, stride=stride, padding=1), SharedKernel(4, 6, groups=2))
        kind: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
        conv = kind(4, 6, kernel, stride, padding=1, groups=2)
        ties = copied(layer, conv, {"weight.weight": "weight", "weight.bias": "bias"})
        x = torch.randn(2, *size, 4).flatten(1, -2)
        return Case(layer, layer, lambda x: as_tokens(conv(as_image(x, size))), (x,), ties)

    return make


def continuous_kernel() -> Case:
    """`Grid` × `EdgeLearned`: NNConv on the grid's edges, whose features are the offsets."""
    from torch_geometric.nn import NNConv

    size = (4, 3)
    layer = MessagePassing(
        Grid(size, 3), EdgeLearned(2, 3, OffsetMLP(2, 2 * 3, hidden=(8,), activation=nn.Tanh), root=True)
    )
    conv = NNConv(2, 3, nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2 * 3)))
    names = linears({"weight.network.layers.0": "nn.0", "weight.network.layers.2": "nn.2"})
    ties = copied(layer, conv, names | {"weight.root.weight": "lin.weight", "weight.bias": "bias"})
    edge_index, offset = grid_edges(size, 1)
    return Case(layer, layer, lambda x: conv(x, edge_index, offset), (torch.randn(12, 2),), ties)


def neighbourhood_attention() -> Case:
    """`Grid` × `QKSoftmax`: torch's attention under a mask of the window."""
    size = (4, 5)
    layer = MessagePassing(Grid(size, 3), QKSoftmax(8, heads=2))
    mask = torch.zeros(20, 20, dtype=torch.bool)
    source, target = grid_edges(size, 1)[0]
    mask[target, source] = True
    return Case(layer, layer, lambda x: sdpa(layer.weight, x, mask), (torch.randn(2, 20, 8),), shared(layer))


def as_image(x: Tensor, size: tuple[int, ...]) -> Tensor:
    """Row-major tokens as torch's convolutions take them: (B, cells, C) → (B, C, *size)."""
    return x.movedim(-1, 1).unflatten(-1, size)


def as_tokens(y: Tensor) -> Tensor:
    """(B, C, *size) → (B, cells, C)."""
    return y.flatten(2).movedim(1, -1)


def grid_edges(size: tuple[int, ...], reach: int) -> tuple[Tensor, Tensor]:
    """Edges between the cells that differ by at most ``reach`` on every axis, and source - target of each."""
    cells = list(itertools.product(*map(range, size)))
    ends = [
        (s, t, [a - b for a, b in zip(source, target, strict=True)])
        for t, target in enumerate(cells)
        for s, source in enumerate(cells)
        if all(abs(a - b) <= reach for a, b in zip(source, target, strict=True))
    ]
    offsets = torch.tensor([offset for *_, offset in ends], dtype=torch.get_default_dtype())
    return torch.tensor([(s, t) for s, t, _ in ends]).t(), offsets
