"""SuperGATConv, TransformerConv, AGNNConv: a graph with products of both ends and a softmax over each node's edges."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from mpnn.interop.bridge import Refused
from mpnn.interop.pyg_base import Core, Pyg, biases, node_sets, parts, structure, widths
from mpnn.interop.pyg_gat import attention, check_returnable, common, ends, loops
from mpnn.interop.pyg_networks import CosineScore, SuperScore
from mpnn.message_passing import MessagePassing
from mpnn.neighbours import Graph
from mpnn.weights import EdgeLearned, HeadMean, QKSoftmax


class SuperGAT(Pyg):
    """``SuperGATConv``: scores MX and SD. Its self-supervision is no part of the output, so it is no part of the core;
    a converted layer goes on sampling edges in training, by the original's methods, for ``get_attention_loss()``.
    """

    name = "SuperGATConv"
    _SAMPLING = ("neg_sample_ratio", "edge_sample_ratio", "is_undirected")

    def configure(self, layer: Any) -> MessagePassing:
        channels = layer.heads * layer.out_channels
        network = SuperScore(
            channels, layer.heads, mixed=layer.attention_type == "MX", negative_slope=layer.negative_slope
        )
        return MessagePassing(loops(layer), attention(layer, network, layer.lin.weight.shape[1], bias=False))

    def tensors(self, layer: Any, core: nn.Module) -> dict[str, Tensor]:
        found = {"weight.value.weight": layer.lin.weight}
        if layer.attention_type == "MX":
            found |= {"weight.network.source": layer.att_l[0], "weight.network.target": layer.att_r[0]}
        return found | ends(layer)

    def options(self, layer: Any) -> dict[str, Any]:
        return super().options(layer) | {name: getattr(layer, name) for name in self._SAMPLING}

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        rule, weight = parts(self.name, core, EdgeLearned)
        network, given = weight.network, common(rule, weight)
        if not isinstance(network, SuperScore):
            raise Refused("SuperGATConv's score is SuperScore")
        if given.pop("residual") or given.pop("fill_value") != "mean":
            raise Refused("SuperGATConv has no residual and no edge attributes")
        layer = self.original(
            weight.in_channels, negative_slope=network.negative_slope,
            attention_type="MX" if network.mixed else "SD",
            **given, **{name: options[name] for name in self._SAMPLING if name in options},
        )  # fmt: skip
        return layer, {}

    def run(  # type: ignore[no-untyped-def]
        self, layer: Any, core: Core, x, edge_index, neg_edge_index=None, batch=None
    ) -> Tensor:
        y, edges = core(x, structure(edge_index), return_weights=True) if layer.training else (
            core(x, structure(edge_index)), None
        )  # fmt: skip
        if edges is not None:
            self._supervise(layer, x, torch.stack([edges.source, edges.target]), neg_edge_index, batch)
        return y

    @staticmethod
    def _supervise(layer: Any, x: Tensor, index: Tensor, negative: Tensor | None, batch: Tensor | None) -> None:
        """Scores of edges and of pairs that are none, for the loss of the original."""
        value = layer.lin(x).view(-1, layer.heads, layer.out_channels)
        positive = layer.positive_sampling(index)
        if negative is None:
            negative = layer.negative_sampling(index, x.shape[0], batch)
        logits = [
            layer.get_attention(i[1], value[i[1]], value[i[0]], num_nodes=x.shape[0], return_logits=True)
            for i in (positive, negative)
        ]
        layer.att_x = torch.cat(logits)
        layer.att_y = layer.att_x.new_zeros(layer.att_x.shape[0])
        layer.att_y[: positive.shape[1]] = 1.0


class Transformer(Pyg):
    """``TransformerConv``: queries and keys; ``beta=True``, a gate of output and root, is refused."""

    name = "TransformerConv"

    def refuse_more(self, layer: Any) -> list[str]:
        if layer.beta:
            return ["beta=True): a learned gate between output and root is no sum of the two"]
        return []

    def configure(self, layer: Any) -> MessagePassing:
        heads, each = layer.heads, layer.out_channels
        weight = QKSoftmax(
            layer.lin_query.weight.shape[1], heads, head_channels=each, source_channels=layer.lin_key.weight.shape[1],
            edge_channels=0 if layer.lin_edge is None else layer.lin_edge.weight.shape[1], dropout=layer.dropout,
            out_channels=heads * each if layer.concat else each, bias=layer.lin_query.bias is not None,
            output=False if layer.concat else HeadMean(heads, each), root=layer.root_weight,
        )  # fmt: skip
        return MessagePassing(Graph(), weight)

    def tensors(self, layer: Any, core: nn.Module) -> dict[str, Tensor]:
        pairs = {"query": layer.lin_query, "key": layer.lin_key, "value": layer.lin_value, "edge": layer.lin_edge}
        pairs |= {"root": layer.lin_skip} if layer.root_weight else {}
        found: dict[str, Tensor] = {}
        for name, linear in pairs.items():
            if linear is not None:
                found |= {f"weight.{name}.weight": linear.weight} | biases(f"weight.{name}.bias", linear.bias)
        return found

    def options(self, layer: Any) -> dict[str, Any]:
        unused = {} if layer.root_weight else {n: p.detach().clone() for n, p in layer.lin_skip.named_parameters()}
        return super().options(layer) | {"lin_skip": unused}  # parameters that the layer has and does not read

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        _, weight = parts(self.name, core, QKSoftmax)
        if weight.split or weight.position or weight.score_bias or weight.kv_heads != weight.heads:
            raise Refused("TransformerConv has no position, score bias, grouped heads or separate key tokens")
        if isinstance(weight.output, nn.Linear) or weight.scale != 1 / math.sqrt(weight.head_channels):
            raise Refused("TransformerConv has no output projection and no scale of its own; build with output=False")
        layer = self.original(
            widths(options, weight.source_channels, weight.in_channels), weight.head_channels, weight.heads,
            concat=weight.output is None, dropout=weight.dropout, edge_dim=weight.edge_channels or None,
            bias=weight.query.bias is not None, root_weight=weight.root is not None,
        )  # fmt: skip
        for name, value in options.get("lin_skip", {}).items():
            setattr(layer.lin_skip, name, nn.Parameter(value.clone()))
        return layer, {}

    def run(  # type: ignore[no-untyped-def]
        self, layer: Any, core: Core, x, edge_index, edge_attr=None, return_attention_weights=None
    ) -> Any:
        wanted = isinstance(return_attention_weights, bool)
        check_returnable(edge_index, wanted)
        found = core(node_sets(x), structure(edge_index), edge_attr, return_weights=wanted)
        if not wanted:
            return found
        return found[0], (edge_index, found[1].weight)


class AGNN(Pyg):
    """``AGNNConv``: β times the cosine of the two ends, tokens of any width."""

    name = "AGNNConv"

    def configure(self, layer: Any) -> MessagePassing:
        network = CosineScore(trained=layer.requires_grad)
        weight = EdgeLearned(None, None, network, heads=1, normalise="softmax", value=False, bias=False)
        return MessagePassing(loops(layer), weight)

    def tensors(self, layer: Any, core: nn.Module) -> dict[str, Tensor]:
        return {"weight.network.beta": layer.beta}

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        rule, weight = parts(self.name, core, EdgeLearned)
        if not isinstance(weight.network, CosineScore):
            raise Refused("AGNNConv's score is CosineScore")
        trained = isinstance(weight.network.beta, nn.Parameter)
        return self.original(requires_grad=trained, add_self_loops=rule.self_loops == "replace"), {}

    def run(self, layer: Any, core: Core, x: Tensor, edge_index: Any) -> Tensor:
        return core(x, structure(edge_index))
