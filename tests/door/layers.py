"""The layers that the wrong calls are made to, each with a right call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mpnn import MessagePassing
from mpnn.models import CNN, GNN, MLP, Transformer
from mpnn.neighbours import KNN, AllTokens, Full, Graph, Grid, Radius, Random, Window
from mpnn.positions import Rotary
from mpnn.weights import AdditiveScore, EdgeLearned, EdgeMLP, QKSoftmax, RadialFilter, SharedKernel, Static

E = torch.tensor([[0, 1], [1, 2]])
KINDS = torch.tensor([0, 1])


def x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def gat() -> EdgeLearned:
    return EdgeLearned(2, 4, AdditiveScore(4, 2), heads=2, normalise="softmax")


# name: (what makes it, arguments, keywords)
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple, dict[str, Any]]] = {
    "full": (lambda: MessagePassing(Full(4), Static(2, 3)), (x(4, 2),), {}),
    "units": (lambda: MessagePassing(Full(4, 3), Static()), (x(4, 1),), {}),
    "toeplitz": (lambda: MessagePassing(Full(4), SharedKernel(2, 3)), (x(4, 2),), {}),
    "fixed attention": (lambda: MessagePassing(Full(4, 3), QKSoftmax(2, 1)), ((x(4, 2), x(3, 2)),), {}),
    "fixed root": (lambda: MessagePassing(Full(4, 3), Static(2, 2, root=True)), ((x(4, 2), x(3, 2)),), {}),
    "grid": (lambda: MessagePassing(Grid((3, 4), 3), SharedKernel(2, 3)), (x(12, 2),), {}),
    "open grid": (lambda: MessagePassing(Grid(axes=2), SharedKernel(2, 3)), (x(12, 2),), {"grid": (3, 4)}),
    "strided": (lambda: MessagePassing(Grid(5, 3, stride=2, padding=1), QKSoftmax(2, 1)), (x(5, 2),), {}),
    "local": (lambda: MessagePassing(Grid((3, 4), 3), Static(2, 3)), (x(12, 2),), {}),
    "graph": (lambda: MessagePassing(Graph(), SharedKernel(2, 3)), (x(3, 2), E), {}),
    "loops": (
        lambda: MessagePassing(Graph(self_loops="add"), SharedKernel(2, 3, normalise="symmetric")),
        (x(3, 2), E),
        {},
    ),
    "relations": (lambda: MessagePassing(Graph(relations=2), SharedKernel(2, 3)), (x(3, 2), E), {"edge_type": KINDS}),
    "built": (lambda: MessagePassing(Graph(E, 3), Static(2, 3)), (x(3, 2),), {}),
    "additive": (lambda: MessagePassing(Graph(), gat()), (x(3, 2), E), {}),
    "network": (lambda: MessagePassing(Graph(), EdgeLearned(2, 3, EdgeMLP(5, 6))), (x(3, 2), E, x(2, 5)), {}),
    "module": (
        lambda: MessagePassing(Graph(), EdgeLearned(2, 3, nn.Linear(5, 6), edge_channels=5)),
        (x(3, 2), E, x(2, 5)),
        {},
    ),
    "transformer conv": (lambda: MessagePassing(Graph(), QKSoftmax(4, 2, edge_channels=3)), (x(3, 4), E, x(2, 3)), {}),
    "distances": (
        lambda: MessagePassing(Graph(), EdgeLearned(4, 4, RadialFilter(4, cutoff=2.0), groups=4, value=True)),
        (x(3, 4), E),
        {"coordinates": x(3, 2)},
    ),
    "attention": (lambda: MessagePassing(AllTokens(), QKSoftmax(4, 2)), (x(3, 4),), {}),
    "cross": (
        lambda: MessagePassing(AllTokens(), QKSoftmax(4, 2, source_channels=(3, 5))),
        (x(3, 4),),
        {"source": x(2, 8)},
    ),
    "rotary": (lambda: MessagePassing(AllTokens(), QKSoftmax(4, 2, position=Rotary(2))), (x(3, 4),), {}),
    "mixing": (lambda: MessagePassing(AllTokens(max_tokens=4), Static(2, 2, heads=2, value=False)), (x(3, 2),), {}),
    "long": (lambda: MessagePassing(AllTokens(causal=True, max_tokens=4), SharedKernel(2, 3)), (x(3, 2),), {}),
    "window": (lambda: MessagePassing(Window(1), SharedKernel(2, 3)), (x(3, 2),), {}),
    "nearest": (lambda: MessagePassing(KNN(1), SharedKernel(2, 3)), (x(3, 2),), {}),
    "near": (lambda: MessagePassing(Radius(1.0), QKSoftmax(4, 2)), (x(3, 4),), {"coordinates": x(3, 2)}),
    "drawn": (lambda: MessagePassing(Random(2, seed=0), SharedKernel(2, 3)), (x(3, 2),), {}),
    "MLP": (lambda: MLP((4, 5, 3)), (x(2, 4),), {}),
    "CNN": (lambda: CNN(1, (4, 4), 3, size=(8, 8)), (x(2, 64, 1),), {}),
    "GNN": (lambda: GNN(2, (4,), 3), (x(3, 2), E), {}),
    "Transformer": (lambda: Transformer(2, 8, 1, 3), (x(2, 5, 2),), {}),
    "embedded": (lambda: Transformer(None, 8, 1, 3), (x(2, 5, 8),), {}),
    "grid model": (lambda: Transformer(2, 8, 1, 3, neighbours=Grid((2, 3), 3)), (x(2, 6, 2),), {}),
}
