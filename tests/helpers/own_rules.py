"""Rules as a person writes them: a neighbourhood, two weights and two networks that are plain functions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mpnn.neighbours import Edges, Neighbours
from mpnn.weights import Weight


class Previous(Neighbours):
    """Each token sees the one before it and itself, by descending source, whatever rows are asked for."""

    def edges(self, targets, sources, *, rows=None, tokens=None):
        i = torch.arange(targets)
        return Edges(torch.cat([i, i[:-1]]), torch.cat([i, i[1:]]))


class Listed(Previous):
    """The same, whose edges are few enough for the sparse kernels."""

    listed = True


class OwnScore(Weight):
    """A softmax of -|Wx_i - Wx_j|², two heads."""

    heads = 2
    reads_target = True

    def __init__(self) -> None:
        super().__init__(4, 6, normalise="softmax")

    def build(self, neighbours: Neighbours) -> None:
        self.embed = nn.Linear(4, 2)

    def per_edge(self, pairs) -> Tensor:
        return -(self.embed(pairs.x_target) - self.embed(pairs.x_source)).square()


class OwnMatrix(Weight):
    """A matrix of the source's own token, in two blocks of 2 → 3."""

    groups = 2

    def __init__(self) -> None:
        super().__init__(4, 6, bias=False)

    def build(self, neighbours: Neighbours) -> None:
        self.weight = nn.Parameter(torch.randn(4, 12))

    def per_edge(self, pairs) -> Tensor:
        return torch.tanh(pairs.x_source @ self.weight)


def bilinear(pairs) -> Tensor:
    """A network that is a plain function: products of the two ends, per head."""
    return (pairs.value_target * pairs.value_source).sum(-1).tanh()


def distance(pairs) -> Tensor:
    """A plain function of one head."""
    return torch.exp(-(pairs.x_target - pairs.x_source).square().mean(-1, keepdim=True))
