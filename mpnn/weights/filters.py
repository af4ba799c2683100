"""Filters: networks of an edge's attributes, length and offset (NNConv, CFConv, continuous kernels)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from mpnn.checks import positive
from mpnn.pairs import Pairs
from mpnn.weights.base import EdgeNetwork


def mlp(sizes: Sequence[int], activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between them."""
    for width in sizes:
        positive("hidden", width)
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), activation()]
    return nn.Sequential(*layers[:-1])


def widths(hidden: Sequence[int]) -> Sequence[int]:
    """Refuse a single number where a tuple of widths is meant."""
    if isinstance(hidden, int):
        raise TypeError(f"expected hidden to be a tuple of widths, got {hidden}; write ({hidden},)")
    return hidden


class EdgeMLP(EdgeNetwork):
    """NNConv's network: an MLP of the edge attributes, edge_channels → hidden … → features.

    Args:
        features: what the weight wants, heads or in·out/groups. hidden: widths between.

    Source: Gilmer et al. (2017), `arXiv:1704.01212 <https://arxiv.org/abs/1704.01212>`_; ``torch_geometric.nn.NNConv``.

    Example::

        >>> from mpnn.weights import EdgeLearned, EdgeMLP
        >>> EdgeLearned(4, 8, EdgeMLP(3, 4 * 8, hidden=(16,))).edge_channels
        3
    """

    reads_offset = False

    def __init__(
        self, edge_channels: int, features: int, *, hidden: Sequence[int] = (32,), activation: type[nn.Module] = nn.ReLU
    ) -> None:
        super().__init__()
        self.edge_channels, self.features = positive("edge_channels", edge_channels), positive("features", features)
        self.layers = mlp((edge_channels, *widths(hidden), features), activation)

    def forward(self, pairs: Pairs) -> Tensor:
        return self.layers(pairs.attr)


class RadialFilter(EdgeNetwork):
    """CFConv's filter of the distance: f = MLP(exp(-γ (d - μ_k)²)) · ½ (cos(π d / cutoff) + 1), 0 beyond the cutoff.

    The distance d is the length of ``pairs.offset``: pass ``coordinates=`` at the call.

    Args:
        features: what the weight wants; with ``groups=channels`` one per channel. cutoff: in the coordinates' unit.
        gaussians: how many centres μ_k, evenly from 0 to the cutoff. hidden: widths between.

    Source: Schütt et al. (2017), `arXiv:1706.08566 <https://arxiv.org/abs/1706.08566>`_;
    ``torch_geometric.nn.models.schnet.CFConv``.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing
        >>> from mpnn.neighbours import Graph
        >>> from mpnn.weights import EdgeLearned, RadialFilter
        >>> weight = EdgeLearned(8, 8, RadialFilter(8, cutoff=5.0), groups=8, value=True, output=True)
        >>> cf = MessagePassing(Graph(), weight)
        >>> cf(torch.ones(2, 8), torch.tensor([[0, 1], [1, 0]]), coordinates=torch.eye(3)[:2]).shape
        torch.Size([2, 8])
    """

    reads_offset = True

    def __init__(
        self, features: int, *, cutoff: float, gaussians: int = 50, hidden: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        if not cutoff > 0:
            raise ValueError(f"expected cutoff > 0, got {cutoff}")
        self.cutoff, self.gaussians = float(cutoff), positive("gaussians", gaussians, 2)
        self.features = positive("features", features)
        self.layers = mlp((gaussians, *((features,) if hidden is None else widths(hidden)), features), ShiftedSoftplus)

    def forward(self, pairs: Pairs) -> Tensor:
        offset = pairs.offset
        squared = offset.square().sum(-1, keepdim=True)
        d = torch.where(squared > 0, squared, 1).sqrt() * (squared > 0)  # the gradient of √ at 0 is no number
        step = self.cutoff / (self.gaussians - 1)
        centre = torch.arange(self.gaussians, device=d.device, dtype=d.dtype) * step
        smeared = torch.exp(-0.5 / step**2 * (d - centre).square())
        inside = 0.5 * (torch.cos(d * (math.pi / self.cutoff)) + 1) * (d <= self.cutoff)
        return self.layers(smeared) * inside


class ShiftedSoftplus(nn.Module):
    """softplus(x) - log 2, SchNet's activation."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.softplus(x) - math.log(2.0)


class OffsetMLP(EdgeNetwork):
    """A continuous kernel: an MLP of the offset from target to source, axes → hidden … → features.

    Args:
        axes: width of the offset: the grid's axes, 1 for sequences, the width of ``coordinates``.
        features: what the weight wants, heads or in·out/groups. hidden: widths between.

    Source: Schütt et al. (2017), `arXiv:1706.08566 <https://arxiv.org/abs/1706.08566>`_; Romero et al. (2022),
    `arXiv:2102.02611 <https://arxiv.org/abs/2102.02611>`_.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing
        >>> from mpnn.neighbours import Grid
        >>> from mpnn.weights import EdgeLearned, OffsetMLP
        >>> MessagePassing(Grid((4, 4), 3), EdgeLearned(2, 5, OffsetMLP(2, 2 * 5)))(torch.ones(16, 2)).shape
        torch.Size([16, 5])
    """

    reads_offset = True

    def __init__(
        self, axes: int, features: int, *, hidden: Sequence[int] = (32,), activation: type[nn.Module] = nn.ReLU
    ) -> None:
        super().__init__()
        self.axes, self.features = positive("axes", axes), positive("features", features)
        self.layers = mlp((axes, *widths(hidden), features), activation)

    def forward(self, pairs: Pairs) -> Tensor:
        return self.layers(pairs.offset)
