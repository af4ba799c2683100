"""FeaStConv, LEConv, PointTransformerConv: a graph with what a node's neighbours differ by from it."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from mpnn.interop.bridge import Refused, lent
from mpnn.interop.pyg_base import Core, Pyg, biases, node_sets, parts, reduce_of, structure, widths
from mpnn.interop.pyg_filters import refused_network
from mpnn.interop.pyg_gat import loops
from mpnn.interop.pyg_networks import PointScore, ShiftSoftmax, TargetDifference
from mpnn.message_passing import MessagePassing
from mpnn.neighbours import Graph
from mpnn.tokens.base import Tokens
from mpnn.weights import EdgeLearned, HeadSum


class FeaSt(Pyg):
    """``FeaStConv``: a softmax over heads, their sum as output, a mean over neighbours and the node itself."""

    name = "FeaStConv"
    reduces = ("sum", "mean")

    def configure(self, layer: Any) -> MessagePassing:
        width, heads, out = layer.lin.weight.shape[1], layer.heads, layer.out_channels
        weight = EdgeLearned(
            width, out, ShiftSoftmax(width, heads), heads=heads, value=nn.Linear(width, heads * out, bias=False),
            output=HeadSum(heads, out), reduce=reduce_of(layer), bias=layer.bias is not None,
        )  # fmt: skip
        return MessagePassing(loops(layer), weight)

    def tensors(self, layer: Any, core: nn.Module) -> dict[str, Tensor]:
        found = {"weight.value.weight": layer.lin.weight, "weight.network.u.weight": layer.u.weight}
        return found | {"weight.network.c": layer.c} | biases("weight.bias", layer.bias)

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        rule, weight = parts(self.name, core, EdgeLearned)
        if not isinstance(weight.network, ShiftSoftmax):
            raise Refused("FeaStConv's network is ShiftSoftmax")
        layer = self.original(
            weight.in_channels, weight.out_channels, weight.heads, add_self_loops=rule.self_loops == "replace",
            bias=weight.bias is not None, aggr=options.get("aggr", weight.reduce),
        )  # fmt: skip
        return layer, {}

    def run(self, layer: Any, core: Core, x: Any, edge_index: Any) -> Tensor:
        return core(node_sets(x), structure(edge_index))


class LE(Pyg):
    """``LEConv``: local extrema, sums of the differences between a node and its neighbours."""

    name = "LEConv"
    reduces = ("sum", "mean", "max")

    def configure(self, layer: Any) -> MessagePassing:
        out, width = layer.lin1.weight.shape
        target, bias = layer.lin2.weight.shape[1], layer.lin1.bias is not None
        weight = EdgeLearned(
            width, out, TargetDifference(target, out), heads=1, value=nn.Linear(width, out, bias=bias),
            root=nn.Linear(target, out, bias=bias), bias=False, reduce=reduce_of(layer),
        )  # fmt: skip
        return MessagePassing(Graph(), weight)

    def tensors(self, layer: Any, core: nn.Module) -> dict[str, Tensor]:
        found = {"weight.value.weight": layer.lin1.weight, "weight.network.target.weight": layer.lin2.weight}
        found["weight.root.weight"] = layer.lin3.weight
        return found | biases("weight.value.bias", layer.lin1.bias) | biases("weight.root.bias", layer.lin3.bias)

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        _, weight = parts(self.name, core, EdgeLearned)
        if not isinstance(weight.network, TargetDifference) or not isinstance(weight.value, nn.Linear):
            raise Refused("LEConv's network is TargetDifference, with a value")
        layer = self.original(
            widths(options, weight.in_channels, weight.network.target_channels), weight.out_channels,
            bias=weight.value.bias is not None, aggr=options.get("aggr", weight.reduce),
        )  # fmt: skip
        return layer, {}

    def run(self, layer: Any, core: Core, x: Any, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        return core(node_sets(x), edge_index, edge_weight=edge_weight)


class PointTransformer(Pyg):
    """``PointTransformerConv``: a softmax per channel, places in score and value; ``coordinates`` are its ``pos``."""

    name = "PointTransformerConv"

    def refuse_more(self, layer: Any) -> list[str]:
        attend = [] if layer.attn_nn is None else refused_network("attn_nn", layer.attn_nn)
        return refused_network("pos_nn", layer.pos_nn) + attend

    def configure(self, layer: Any) -> MessagePassing:
        out, width = layer.lin.weight.shape
        source = nn.Linear(width, out, bias=False)
        target = nn.Linear(layer.lin_dst.weight.shape[1], out, bias=False)
        network = PointScore(source, target, copy.deepcopy(layer.pos_nn), copy.deepcopy(layer.attn_nn))
        weight = EdgeLearned(width, out, network, heads=out, normalise="softmax", bias=False)
        return MessagePassing(loops(layer), weight)

    def tensors(self, layer: Any, core: nn.Module) -> dict[str, Tensor]:
        found = {"weight.value.weight": layer.lin.weight, "weight.network.source.weight": layer.lin_src.weight}
        found["weight.network.target.weight"] = layer.lin_dst.weight
        found |= lent("weight.network.place", layer.pos_nn)
        return found | ({} if layer.attn_nn is None else lent("weight.network.attend", layer.attn_nn))

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        rule, weight = parts(self.name, core, EdgeLearned)
        network = weight.network
        if not isinstance(network, PointScore):
            raise Refused("PointTransformerConv's network is PointScore")
        layer = self.original(
            widths(options, weight.in_channels, network.target_channels), weight.out_channels,
            copy.deepcopy(network.place), copy.deepcopy(network.attend), rule.self_loops == "replace",
        )  # fmt: skip
        return layer, {}

    def run(self, layer: Any, core: Core, x: Any, pos: Any, edge_index: Any) -> Tensor:
        found = node_sets(x)
        places = pos if isinstance(pos, tuple | list) else (pos, pos)
        if isinstance(found, Tensor) and places[0] is places[1]:
            return core(found, structure(edge_index), coordinates=places[0])
        ends = (found, found) if isinstance(found, Tensor) else found
        tokens = tuple(Tokens(end, coordinates=place) for end, place in zip(ends, places, strict=True))
        return core(tokens, structure(edge_index))
