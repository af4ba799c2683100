"""Additive scores: the networks of GAT, GATv2 and Bahdanau's attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mpnn.checks import autocasting, divides, instance, positive, wide
from mpnn.pairs import Pairs
from mpnn.weights.base import EdgeNetwork, glorot_


class AdditiveScore(EdgeNetwork):
    """GAT's score: LeakyReLU(a_source · v_j + a_target · v_i + a_edge · W_e e_ij), one per head, v = value(x).

    Args:
        channels: of v, all heads together. heads: how many. edge_channels: width of the edge attributes, 0 for none.
        target_channels: width of x_i where v_i is a projection of its own, and not value(x_i) (two node sets).
        negative_slope: of the LeakyReLU.

    Shapes: ``source``, ``target``, ``edge_vector`` (heads, channels/heads) · ``edge`` Linear(edge_channels, channels) ·
    ``projection`` Linear(target_channels, channels), without bias.

    Source: Veličković et al. (2018), `arXiv:1710.10903 <https://arxiv.org/abs/1710.10903>`_;
    ``torch_geometric.nn.GATConv``.

    Example: see :class:`~mpnn.weights.EdgeLearned`.
    """

    reads_target = True
    reads_offset = False

    def __init__(  # type: ignore[no-untyped-def]
        self, channels, heads=1, *, target_channels=None, edge_channels=0, negative_slope=0.2
    ) -> None:
        super().__init__()
        self.heads, self.edge_channels = positive("heads", heads), positive("edge_channels", edge_channels, 0)
        divides("heads", heads, "channels", positive("channels", channels))
        self.features, self.value_channels, self.negative_slope = heads, channels, negative_slope
        self.source = nn.Parameter(torch.empty(heads, channels // heads))
        self.target = nn.Parameter(torch.empty(heads, channels // heads))
        self.edge = nn.Linear(edge_channels, channels, bias=False) if edge_channels else None
        self.edge_vector = nn.Parameter(torch.empty(heads, channels // heads)) if edge_channels else None
        self.target_channels = None if target_channels is None else positive("target_channels", target_channels)
        self.projection = None if target_channels is None else nn.Linear(target_channels, channels, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot, as GATConv."""
        for vector in (self.source, self.target, self.edge_vector):
            if vector is not None:
                glorot_(vector)
        for layer in (self.edge, self.projection):
            if layer is not None:
                glorot_(layer.weight)

    def edge_term(self, attr: Tensor) -> Tensor:
        """a_edge · W_e e: (..., E, heads)."""
        assert self.edge is not None and self.edge_vector is not None
        return (self.edge(attr).unflatten(-1, (self.heads, -1)) * self.edge_vector).sum(-1)

    def activation(self, score: Tensor) -> Tensor:
        """What follows the sum of the terms."""
        return nn.functional.leaky_relu(score, self.negative_slope)

    def factor(self, value: Tensor, x_source: Tensor, x_target: Tensor) -> tuple[Tensor, Tensor] | None:
        if x_source is not x_target and self.projection is None:
            return None  # the target's value is not at hand
        plain = value.dtype == self.source.dtype == wide(value.dtype)  # in half such products would add up in half
        plain = plain and not autocasting(value.device.type)
        if self.projection is None and plain:  # both terms in one product per head: no tensor of products, none to add
            both = (value @ torch.stack([self.source, self.target], -1)).transpose(-3, -2)
            source, target = both.unbind(-1)
            return source, target
        per_token = value.transpose(-3, -2)
        at_target = per_token if self.projection is None else self._project(x_target)
        return (per_token * self.source).sum(-1), (at_target * self.target).sum(-1)

    def _project(self, x: Tensor) -> Tensor:
        assert self.projection is not None
        return self.projection(x).unflatten(-1, (self.heads, -1))

    def forward(self, pairs: Pairs) -> Tensor:
        if self.projection is None:
            at_target = (pairs.value_target * self.target).sum(-1)
        else:  # once a token, not once an edge
            at_target = pairs.at_target((self._project(pairs.node("x_target")) * self.target).sum(-1))
        score = (pairs.value_source * self.source).sum(-1) + at_target
        return self.activation(score if self.edge is None else score + self.edge_term(pairs.attr))


class AdditiveScoreV2(EdgeNetwork):
    """GATv2's and Bahdanau's score: a · activation(s_j + t_i + W_e e_ij), one per head.

    s_j is value(x_j), or a projection of x_j of its own with ``source_channels``; t_i is value(x_i) (GATv2 with shared
    weights), or a projection of x_i of its own with ``target_channels`` (GATv2's default).

    Args:
        channels: of the sum, all heads together. heads: how many. activation: a module; by default LeakyReLU(0.2);
            ``nn.Tanh()`` is Bahdanau's.

    Shapes: ``vector`` (heads, channels/heads) · ``edge``, ``source``, ``target``: Linear to ``channels``.

    Source: Brody et al. (2022), `arXiv:2105.14491 <https://arxiv.org/abs/2105.14491>`_; Bahdanau et al. (2015),
    `arXiv:1409.0473 <https://arxiv.org/abs/1409.0473>`_; ``torch_geometric.nn.GATv2Conv``.

    Example::

        >>> from mpnn.weights import AdditiveScoreV2, EdgeLearned
        >>> EdgeLearned(4, 8, AdditiveScoreV2(8, heads=2, target_channels=4), heads=2, normalise="softmax")
        EdgeLearned(
          4, 8, heads=2, normalise='softmax'
          (value): Linear(in_features=4, out_features=8, bias=False)
          (network): AdditiveScoreV2(
            (activation): LeakyReLU(negative_slope=0.2)
            (target): Linear(in_features=4, out_features=8, bias=True)
          )
        )
    """

    reads_target = True
    reads_offset = False

    def __init__(  # type: ignore[no-untyped-def]
        self, channels, heads=1, *, source_channels=None, target_channels=None, edge_channels=0, activation=None,
        bias=True
    ) -> None:  # fmt: skip
        super().__init__()
        self.heads, self.edge_channels = positive("heads", heads), positive("edge_channels", edge_channels, 0)
        divides("heads", heads, "channels", positive("channels", channels))
        for name, width in (("source_channels", source_channels), ("target_channels", target_channels)):
            if width is not None:
                positive(name, width)
        if activation is not None:
            instance("activation", activation, nn.Module, "a module, as nn.Tanh()")
        self.features = heads
        self.value_channels = channels if source_channels is None or target_channels is None else None
        self.vector = nn.Parameter(torch.empty(heads, channels // heads))
        self.activation = nn.LeakyReLU(0.2) if activation is None else activation
        self.edge = nn.Linear(edge_channels, channels, bias=False) if edge_channels else None
        self.source = nn.Linear(source_channels, channels, bias=bias) if source_channels else None
        self.target = nn.Linear(target_channels, channels, bias=bias) if target_channels else None
        self.target_channels = target_channels
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot, biases as nn.Linear's, as GATv2Conv."""
        glorot_(self.vector)
        for layer in (self.edge, self.source, self.target):
            if layer is not None:
                layer.reset_parameters()
                glorot_(layer.weight)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1))

    def forward(self, pairs: Pairs) -> Tensor:
        s = (
            pairs.value_source
            if self.source is None
            else self._heads(pairs.at_source(self.source(pairs.node("x_source"))))
        )
        t = (
            pairs.value_target
            if self.target is None
            else self._heads(pairs.at_target(self.target(pairs.node("x_target"))))
        )
        s, t = (v if v.ndim >= 3 and v.shape[-2:] == self.vector.shape else self._heads(v) for v in (s, t))
        total = s + t if self.edge is None else s + t + self._heads(self.edge(pairs.attr))
        return (self.activation(total) * self.vector).sum(-1)
