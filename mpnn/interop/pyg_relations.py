"""RGCNConv: a graph with a matrix for each kind of edge."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mpnn.interop.bridge import Refused
from mpnn.interop.pyg_base import Core, Pyg, as_wide, biases, node_sets, parts, reduce_of, structure, widths
from mpnn.message_passing import MessagePassing
from mpnn.neighbours import Graph
from mpnn.weights import SharedKernel


class RGCN(Pyg):
    """``RGCNConv``: a matrix a relation, from bases or in blocks; x of node numbers, or None, means one-hot tokens."""

    name = "RGCNConv"
    reduces = ("sum", "mean")

    def configure(self, layer: Any) -> MessagePassing:
        out, width = layer.out_channels, layer.in_channels_l
        root = False if layer.root is None else nn.Linear(layer.root.shape[0], out, bias=False)
        weight = SharedKernel(
            width, out, groups=layer.num_blocks or 1, bases=layer.num_bases, root=root, bias=layer.bias is not None,
            normalise="relation" if reduce_of(layer) == "mean" else None,
        )  # fmt: skip
        return MessagePassing(Graph(relations=layer.num_relations), weight)

    def tensors(self, layer: Any, core: nn.Module) -> dict[str, Tensor]:
        found = {"weight.weight": layer.weight.transpose(-2, -1)}
        if layer.num_blocks is not None:
            found = {"weight.weight": layer.weight.transpose(-2, -1).flatten(1, 2)}
        if layer.num_bases is not None:
            found["weight.coefficients"] = layer.comp
        if layer.root is not None:
            found["weight.root.weight"] = layer.root.t()
        return found | biases("weight.bias", layer.bias)

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        rule, weight = parts(self.name, core, SharedKernel)
        if weight.groups is None:
            raise Refused("RGCNConv has a matrix a relation, not heads")
        target = None if weight.root is None else weight.root.in_features
        layer = self.original(
            widths(options, weight.in_channels, target), weight.out_channels, rule.relations, weight.bases,
            options.get("num_blocks", weight.groups if weight.groups > 1 else None),
            aggr=options.get("aggr", "mean" if weight.normalise == "relation" else "add"),
            root_weight=weight.root is not None, bias=weight.bias is not None,
        )  # fmt: skip
        return layer, {}

    def options(self, layer: Any) -> dict[str, Any]:
        return super().options(layer) | {"num_blocks": layer.num_blocks}

    def run(self, layer: Any, core: Core, x: Any, edge_index: Any, edge_type: Tensor | None = None) -> Tensor:
        source, target = x if isinstance(x, tuple) else (x, x)
        if source is None:
            source = torch.arange(layer.in_channels_l, device=layer.weight.device)
        target = source if target is None else target
        root = layer.in_channels_l if layer.root is None else layer.root.shape[0]
        one_set, source = target is source, self._tokens(layer, source, layer.in_channels_l)
        target = source if one_set else self._tokens(layer, target, root)
        edges = edge_index if layer.num_relations > 1 else structure(edge_index)
        kind = edge_type if layer.num_relations > 1 else None
        return core(node_sets(as_wide((source, target), root)), edges, edge_type=kind)

    @staticmethod
    def _tokens(layer: Any, x: Tensor, width: int) -> Tensor:
        """Node numbers as one-hot tokens: the row of a matrix that PyG looks up is then a product."""
        if x.is_floating_point():
            return x
        if layer.num_blocks is not None:
            raise ValueError("expected x of a floating dtype for RGCNConv(num_blocks=...), got node numbers")
        return nn.functional.one_hot(x.long(), width).to(layer.weight.dtype)
