"""The atlas's row of `Full`: a fixed number of units, each sees every other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpnn import MessagePassing
from mpnn.experiments.atlas_case import Case, Names, copied, linears, shared
from mpnn.neighbours import Full
from mpnn.weights import EdgeLearned, EdgeNetwork, Pairs, QKSoftmax, SharedKernel, Static


def dense() -> Case:
    """`Full` × `Static` on units of one channel is `nn.Linear`."""
    layer = MessagePassing(Full(7, 5), Static())
    linear = nn.Linear(7, 5)
    names: Names = {
        "weight.weight": ("weight", lambda w: w[:, None, :, None]),
        "weight.bias": ("bias", lambda b: b[:, None]),
    }
    ties = copied(layer, linear, names)
    return Case(layer, lambda x: layer(x[..., None]).squeeze(-1), linear, (torch.randn(4, 7),), ties)


def toeplitz() -> Case:
    """`Full` × `SharedKernel`: row i of the matrix is the weights by offset, from the i-th on counted backwards."""
    sources, targets = 6, 4
    layer = MessagePassing(Full(sources, targets), SharedKernel(3, 2))
    rule: Any = layer.weight
    kernel, bias = rule.weight, rule.bias

    def reference(x: Tensor) -> Tensor:
        rows = [kernel[targets - 1 - i : targets - 1 - i + sources] for i in range(targets)]  # (sources, out, in) each
        matrix = torch.stack(rows).permute(0, 2, 1, 3).reshape(targets * 2, sources * 3)
        return F.linear(x.flatten(-2), matrix).view(-1, targets, 2) + bias

    return Case(layer, layer, reference, (torch.randn(2, sources, 3),), shared(layer))


class BothEnds(EdgeNetwork):
    """A network of the tokens at both ends of an edge."""

    reads_target = True

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, pairs: Pairs) -> Tensor:
        return self.layers(torch.cat([pairs.x_target, pairs.x_source], -1))


def relation_network() -> Case:
    """`Full` × `EdgeLearned`: NNConv on the complete graph, whose edge features are the two ends."""
    from torch_geometric.nn import NNConv

    def network() -> nn.Sequential:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3 * 4))

    layer = MessagePassing(Full(5), EdgeLearned(3, 4, BothEnds(network()), root=True))
    conv = NNConv(3, 4, network())
    names = linears({"weight.network.layers.0": "nn.0", "weight.network.layers.2": "nn.2"})
    ties = copied(layer, conv, names | {"weight.root.weight": "lin.weight", "weight.bias": "bias"})
    source, target = torch.arange(5).repeat(5), torch.arange(5).repeat_interleave(5)

    def reference(x: Tensor) -> Tensor:
        return conv(x, torch.stack([source, target]), torch.cat([x[target], x[source]], -1))

    return Case(layer, layer, reference, (torch.randn(5, 3),), ties)


def self_attention() -> Case:
    """`Full` × `QKSoftmax`: projections around torch's attention."""
    layer = MessagePassing(Full(6), QKSoftmax(8, heads=2))
    return Case(layer, layer, lambda x: sdpa(layer.weight, x), (torch.randn(3, 6, 8),), shared(layer))


def sdpa(rule: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention with a rule's projections through `F.scaled_dot_product_attention`."""
    q, k, v = (
        F.linear(x, p.weight, p.bias).unflatten(-1, (rule.heads, -1)).transpose(-3, -2)
        for p in (rule.query, rule.key, rule.value)
    )
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return F.linear(y.transpose(-3, -2).flatten(-2), rule.output.weight, rule.output.bias)
