"""GATConv, GATv2Conv: a graph with additive scores and a softmax over each node's edges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mpnn.interop.bridge import Refused
from mpnn.interop.pyg_base import Core, Pyg, biases, column, node_sets, parts, structure, widths
from mpnn.message_passing import MessagePassing
from mpnn.neighbours import Graph
from mpnn.weights import AdditiveScore, AdditiveScoreV2, EdgeLearned, HeadMean


def loops(layer: Any) -> Graph:
    """The rule of a layer that replaces loops: (target, target) edges."""
    fill = getattr(layer, "fill_value", "mean")
    return Graph(self_loops="replace", loop_fill=fill) if layer.add_self_loops else Graph()


def refused_loops(layer: Any, two_sets: bool = False) -> list[str]:
    """Fills of added loops that Graph has not; loops between two node sets."""
    why, fill = [], getattr(layer, "fill_value", "mean")
    if layer.add_self_loops and fill != "mean" and (not isinstance(fill, int | float) or isinstance(fill, bool)):
        why.append(f"fill_value={fill!r}): an added loop has the mean of its node's attributes, or a number")
    if layer.add_self_loops and two_sets:
        why.append("add_self_loops=True, in_channels=(source, target)): a loop has no meaning between two node sets")
    return why


def attended(found: Any, edge_index: Any, wanted: bool) -> Any:
    """(output, (edge_index with loops, weights)) where they are wanted, as PyG returns them; weights before dropout."""
    if not wanted:
        return found
    y, edges = found
    return y, (torch.stack([edges.source, edges.target]).to(edge_index.dtype), edges.weight)


def check_returnable(edge_index: Any, wanted: bool) -> None:
    """Weights go with an edge_index: a sparse matrix has another order of edges."""
    if wanted and isinstance(edge_index, Tensor) and edge_index.layout != torch.strided:
        raise ValueError(
            "expected edge_index (2, E) with return_attention_weights, got a sparse matrix; pass its edges"
        )


class GAT(Pyg):
    """``GATConv``: LeakyReLU of one term per end. Returned weights are before dropout."""

    name = "GATConv"

    def refuse_more(self, layer: Any) -> list[str]:
        return refused_loops(layer, layer.lin is None)

    def configure(self, layer: Any) -> MessagePassing:
        heads, each = layer.heads, layer.out_channels
        source = layer.lin if layer.lin is not None else layer.lin_src
        target = None if layer.lin is not None else layer.lin_dst.weight.shape[1]
        network = AdditiveScore(
            heads * each, heads, target_channels=target, negative_slope=layer.negative_slope,
            edge_channels=0 if layer.lin_edge is None else layer.lin_edge.weight.shape[1],
        )  # fmt: skip
        return MessagePassing(loops(layer), attention(layer, network, source.weight.shape[1], bias=False))

    def tensors(self, layer: Any, core: nn.Module) -> dict[str, Tensor]:
        source = layer.lin if layer.lin is not None else layer.lin_src
        found = {
            "weight.value.weight": source.weight,
            "weight.network.source": layer.att_src[0],
            "weight.network.target": layer.att_dst[0],
        }
        if layer.lin is None:
            found["weight.network.projection.weight"] = layer.lin_dst.weight
        if layer.lin_edge is not None:
            found |= {"weight.network.edge.weight": layer.lin_edge.weight}
            found |= {"weight.network.edge_vector": layer.att_edge[0]}
        return found | ends(layer)

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        rule, weight = parts(self.name, core, EdgeLearned)
        network = weight.network
        if not isinstance(network, AdditiveScore):
            raise Refused("GATConv's score is AdditiveScore")
        layer = self.original(
            _sides(weight, network.projection), negative_slope=network.negative_slope,
            edge_dim=network.edge_channels or None, **common(rule, weight),
        )  # fmt: skip
        return layer, {}

    def run(  # type: ignore[no-untyped-def]
        self, layer: Any, core: Core, x, edge_index, edge_attr=None, size=None, return_attention_weights=None
    ) -> Any:
        wanted = bool(return_attention_weights)
        check_returnable(edge_index, wanted)
        target = layer.lin if layer.lin is not None else layer.lin_dst
        attr = None if layer.lin_edge is None else column(edge_attr)  # without edge_dim, PyG reads none
        tokens = node_sets(x, size, target.weight.shape[1])
        found = core(tokens, structure(edge_index), attr, return_weights=wanted)
        return attended(found, edge_index, wanted)


def attention(layer: Any, network: nn.Module, width: int, bias: bool) -> EdgeLearned:
    """Heads of their own width, concatenated or averaged; ``bias``: of the value."""
    heads, each = layer.heads, layer.out_channels
    res = getattr(layer, "res", None)
    out = heads * each if layer.concat else each
    root = False if res is None else nn.Linear(res.weight.shape[1], out, bias=False)
    return EdgeLearned(
        width, out, network, heads=heads, normalise="softmax", value=nn.Linear(width, heads * each, bias=bias),
        output=False if layer.concat else HeadMean(heads, each), root=root, bias=layer.bias is not None,
        dropout=layer.dropout,
    )  # fmt: skip


def ends(layer: Any) -> dict[str, Tensor]:
    """A residual and a bias, where there are any."""
    res = getattr(layer, "res", None)
    return ({} if res is None else {"weight.root.weight": res.weight}) | biases("weight.bias", layer.bias)


def common(rule: Any, weight: Any) -> dict[str, Any]:
    """What the attentions of EdgeLearned have in common."""
    return {
        "out_channels": weight.before // weight.heads, "heads": weight.heads, "concat": weight.output is None,
        "dropout": weight.dropout, "add_self_loops": rule.self_loops == "replace", "bias": weight.bias is not None,
        "fill_value": rule.loop_fill, "residual": weight.root is not None,
    }  # fmt: skip


def _sides(weight: Any, projection: Any) -> Any:
    return weight.in_channels if projection is None else (weight.in_channels, projection.in_features)


class GATv2(Pyg):
    """``GATv2Conv``: the LeakyReLU before the vector. Returned weights are before dropout."""

    name = "GATv2Conv"

    def refuse_more(self, layer: Any) -> list[str]:
        return refused_loops(layer, isinstance(layer.in_channels, tuple | list))

    def configure(self, layer: Any) -> MessagePassing:
        heads, each = layer.heads, layer.out_channels
        bias = layer.lin_l.bias is not None
        network = AdditiveScoreV2(
            heads * each, heads, activation=nn.LeakyReLU(layer.negative_slope), bias=bias,
            target_channels=None if layer.share_weights else layer.lin_r.weight.shape[1],
            edge_channels=0 if layer.lin_edge is None else layer.lin_edge.weight.shape[1],
        )  # fmt: skip
        return MessagePassing(loops(layer), attention(layer, network, layer.lin_l.weight.shape[1], bias=bias))

    def tensors(self, layer: Any, core: nn.Module) -> dict[str, Tensor]:
        found = {"weight.value.weight": layer.lin_l.weight} | biases("weight.value.bias", layer.lin_l.bias)
        if not layer.share_weights:
            found |= {"weight.network.target.weight": layer.lin_r.weight}
            found |= biases("weight.network.target.bias", layer.lin_r.bias)
        if layer.lin_edge is not None:
            found["weight.network.edge.weight"] = layer.lin_edge.weight
        return found | {"weight.network.vector": layer.att[0]} | ends(layer)

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        rule, weight = parts(self.name, core, EdgeLearned)
        network = weight.network
        if not isinstance(network, AdditiveScoreV2) or not isinstance(network.activation, nn.LeakyReLU):
            raise Refused("GATv2Conv's score is AdditiveScoreV2 with LeakyReLU")
        target = None if network.target is None else network.target.in_features
        layer = self.original(
            widths(options, weight.in_channels, target), negative_slope=network.activation.negative_slope,
            edge_dim=network.edge_channels or None,
            share_weights=network.target is None, **common(rule, weight),
        )  # fmt: skip
        return layer, {}

    def run(  # type: ignore[no-untyped-def]
        self, layer: Any, core: Core, x, edge_index, edge_attr=None, return_attention_weights=None
    ) -> Any:
        wanted = bool(return_attention_weights)
        check_returnable(edge_index, wanted)
        found = core(node_sets(x), structure(edge_index), column(edge_attr), return_weights=wanted)
        return attended(found, edge_index, wanted)
