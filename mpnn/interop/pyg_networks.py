"""What stands at an edge in PyG's filters and attentions: networks that configure the core, no layers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpnn.pairs import Pairs
from mpnn.weights import EdgeNetwork
from mpnn.weights.base import glorot_


class CosineScore(EdgeNetwork):
    """AGNNConv's score: β · cos(x_i, x_j). ``trained``: β is a parameter, else a constant of the state dict."""

    reads_target, reads_offset, features = True, False, 1

    def __init__(self, *, trained: bool = True) -> None:
        super().__init__()
        if trained:
            self.beta = nn.Parameter(torch.ones(1))
        else:
            self.register_buffer("beta", torch.ones(1))

    def reset_parameters(self) -> None:
        """β = 1."""
        with torch.no_grad():
            self.beta.fill_(1.0)

    def forward(self, pairs: Pairs) -> Tensor:
        source, target = pairs.node("x_source"), pairs.node("x_target")
        unit = F.normalize(source, p=2.0, dim=-1)
        other = unit if target is source else F.normalize(target, p=2.0, dim=-1)
        return self.beta * (pairs.at_target(other) * pairs.at_source(unit)).sum(-1, keepdim=True)


class SuperScore(EdgeNetwork):
    """SuperGATConv's score of v = value(x): LeakyReLU((a_l·v_j + a_r·v_i) · σ(v_i·v_j)), or LeakyReLU(v_i·v_j / √D).

    Args:
        channels: of v, all heads together. mixed: the first (MX), else the second (SD), which has no parameter.
    """

    reads_target, reads_offset = True, False

    def __init__(self, channels: int, heads: int, *, mixed: bool, negative_slope: float = 0.2) -> None:
        super().__init__()
        self.features, self.value_channels, self.negative_slope = heads, channels, negative_slope
        self.mixed = mixed
        if mixed:
            self.source = nn.Parameter(torch.empty(heads, channels // heads))
            self.target = nn.Parameter(torch.empty(heads, channels // heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot, as SuperGATConv."""
        for vector in self.parameters():
            glorot_(vector)

    def forward(self, pairs: Pairs) -> Tensor:
        source, target = pairs.value_source, pairs.value_target
        product = (target * source).sum(-1)
        if self.mixed:
            score = ((source * self.source).sum(-1) + (target * self.target).sum(-1)) * product.sigmoid()
        else:
            score = product / math.sqrt(source.shape[-1])
        return F.leaky_relu(score, self.negative_slope)


class TargetDifference(EdgeNetwork):
    """LEConv's edge: it weighs 1 and takes W x_i from its source's value: value_j - W x_i."""

    reads_target, reads_offset, features = True, False, 1

    def __init__(self, target_channels: int, channels: int) -> None:
        super().__init__()
        self.target = nn.Linear(target_channels, channels, bias=False)
        self.target_channels = target_channels

    def reset_parameters(self) -> None:
        """As nn.Linear."""
        self.target.reset_parameters()

    def forward(self, pairs: Pairs) -> Tensor:
        return pairs.node("x_source").new_ones(()).expand(len(pairs), 1)

    def edge_value(self, pairs: Pairs) -> Tensor:
        return -pairs.at_target(self.target(pairs.node("x_target"))).unsqueeze(-2)


class Gaussians(EdgeNetwork):
    """GMMConv's weights: exp(-½ Σ_d (e_d - μ_kd)² / (σ_kd² + 1e-15)), one per kernel k, as heads.

    With ``matrix=(in, out)`` a mixture for every pair of channels: w_fm = Σ_k g_fmk exp(…), a matrix per edge.

    Shapes: ``mu``, ``sigma`` (kernels, axes), or (in, out, kernels, axes) with ``g`` (in, out · kernels).
    """

    reads_offset = False

    def __init__(self, axes: int, kernels: int, *, matrix: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.edge_channels, self.matrix, self.kernels = axes, matrix, kernels
        self.features = kernels if matrix is None else matrix[0] * matrix[1]
        each = () if matrix is None else matrix
        self.mu = nn.Parameter(torch.empty(*each, kernels, axes))
        self.sigma = nn.Parameter(torch.empty(*each, kernels, axes))
        self.g = None if matrix is None else nn.Parameter(torch.empty(matrix[0], matrix[1] * kernels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot, as GMMConv."""
        for parameter in self.parameters():
            glorot_(parameter)

    def forward(self, pairs: Pairs) -> Tensor:
        attr = pairs.attr
        attr = attr.reshape(*attr.shape[:-1], *(1,) * (self.mu.ndim - 1), attr.shape[-1])
        bell = (-0.5 * (attr - self.mu).square() / (1e-15 + self.sigma.square())).sum(-1).exp()
        if self.g is None:
            return bell
        return (bell * self.g.view(self.mu.shape[:-1])).sum(-1).flatten(-2)


class ShiftSoftmax(EdgeNetwork):
    """FeaStConv's weights: softmax over heads of u · (x_j - x_i) + c, the same wherever both ends are moved to."""

    reads_target, reads_offset = True, False

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.features = heads
        self.u, self.c = nn.Linear(channels, heads, bias=False), nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """u as nn.Linear, c from N(0, 0.1), as FeaStConv."""
        self.u.reset_parameters()
        nn.init.normal_(self.c, 0.0, 0.1)

    def forward(self, pairs: Pairs) -> Tensor:
        return (self.u(pairs.x_source - pairs.x_target) + self.c).softmax(-1)


class PointScore(EdgeNetwork):
    """PointTransformerConv's score per channel: attend(W_t x_i - W_s x_j + δ); δ = place(p_i - p_j) is added to values.

    Args:
        source, target: W_s and W_t. place: a module of the offset of the target from the source, (..., axes) →
            (..., channels). attend: a module of the sum, or None.
    """

    reads_target, reads_offset = True, True

    def __init__(self, source: nn.Linear, target: nn.Linear, place: nn.Module, attend: nn.Module | None) -> None:
        super().__init__()
        self.source, self.target, self.place, self.attend = source, target, place, attend
        self.features, self.target_channels = source.out_features, target.in_features

    def _delta(self, pairs: Pairs) -> Tensor:
        if pairs.edge_projection is None:
            pairs.edge_projection = self.place(-pairs.offset)
        return pairs.edge_projection

    def forward(self, pairs: Pairs) -> Tensor:
        source, target = self.source(pairs.node("x_source")), self.target(pairs.node("x_target"))
        score = pairs.at_target(target) - pairs.at_source(source) + self._delta(pairs)
        return score if self.attend is None else self.attend(score)

    def edge_value(self, pairs: Pairs) -> Tensor:
        return self._delta(pairs).unsqueeze(-1)
