"""GCNConv, GraphConv, SAGEConv, ClusterGCNConv: a graph with one matrix for all edges."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mpnn.interop.bridge import Refused
from mpnn.interop.loops import one_loop_each
from mpnn.interop.pyg_base import (
    Core,
    Pyg,
    as_wide,
    biases,
    node_sets,
    parts,
    reduce_of,
    refused_cache,
    structure,
    widths,
)
from mpnn.interop.stacks import Stack, UnitLength
from mpnn.message_passing import MessagePassing
from mpnn.neighbours import Graph
from mpnn.weights import SharedKernel

ALL = ("sum", "mean", "max")


class GCN(Pyg):
    """``GCNConv``: loops added, degrees on both ends, one matrix.

    ``improved`` is loops of weight 2; without edge weights PyG does not read it, and neither does a converted layer.
    """

    name = "GCNConv"
    reduces = ALL

    def refuse_more(self, layer: Any) -> list[str]:
        if layer.normalize and reduce_of(layer) != "sum":
            return [f"aggr={layer.aggr!r}): symmetric weights go with a sum; pass normalize=False"]
        return refused_cache(layer, "edges")

    def configure(self, layer: Any) -> MessagePassing:
        loops = {"self_loops": "add", "loop_weight": 2.0 if layer.improved else 1.0} if layer.add_self_loops else {}
        out, width = layer.lin.weight.shape
        weight = SharedKernel(
            width, out, normalise="symmetric" if layer.normalize else None, reduce=reduce_of(layer),
            bias=layer.bias is not None,
        )  # fmt: skip
        return MessagePassing(Graph(**loops), weight)

    def tensors(self, layer: Any, core: nn.Module) -> dict[str, Tensor]:
        return {"weight.weight": layer.lin.weight[None]} | biases("weight.bias", layer.bias)

    def options(self, layer: Any) -> dict[str, Any]:
        return super().options(layer) | {"improved": layer.improved}

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        rule, weight = parts(self.name, core, SharedKernel)
        normalised = weight.normalise == "symmetric"
        if rule.self_loops and not normalised:
            raise Refused("GCNConv adds loops only where it normalises")
        layer = self.original(
            weight.in_channels, weight.out_channels, improved=options.get("improved", rule.loop_weight == 2.0),
            add_self_loops=rule.self_loops == "add", normalize=normalised,
            bias=weight.bias is not None, aggr=options.get("aggr", weight.reduce),
        )  # fmt: skip
        return layer, {}

    def run(self, layer: Any, core: Core, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        if isinstance(x, tuple | list):
            raise ValueError("expected one node set for GCNConv, which weighs by degrees of both ends, got a tuple")
        if layer.normalize and layer.add_self_loops:
            loop = 2.0 if layer.improved else 1.0
            edge_index, edge_weight = one_loop_each(edge_index, edge_weight, x.shape[-2], loop)
        return core(x, edge_index, edge_weight=edge_weight)


class GraphSum(Pyg):
    """``GraphConv``: neighbours and the node itself by a matrix each."""

    name = "GraphConv"
    reduces = ALL

    def configure(self, layer: Any) -> MessagePassing:
        out, width = layer.lin_rel.weight.shape
        root = nn.Linear(layer.lin_root.weight.shape[1], out, bias=False)
        bias, reduce = layer.lin_rel.bias is not None, reduce_of(layer)
        if reduce == "max":  # the largest entries of tokens, not of products
            output = nn.Linear(width, out, bias=bias)
            weight = SharedKernel(width, out, fixed=True, output=output, reduce=reduce, root=root, bias=bias)
        else:
            weight = SharedKernel(width, out, reduce=reduce, root=root, bias=bias)
        return MessagePassing(Graph(), weight)

    def tensors(self, layer: Any, core: nn.Module) -> dict[str, Tensor]:
        return aggregate(core, "weight.", layer.lin_rel) | {"weight.root.weight": layer.lin_root.weight}

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        _, weight = parts(self.name, core, SharedKernel)
        if not isinstance(weight.root, nn.Linear):
            raise Refused("GraphConv has a root, a matrix of the node itself")
        bias = weight.bias if weight.output is None else weight.output.bias
        layer = self.original(
            widths(options, weight.in_channels, weight.root.in_features), weight.out_channels,
            aggr=options.get("aggr", weight.reduce), bias=bias is not None,
        )  # fmt: skip
        return layer, {}

    def run(
        self, layer: Any, core: Core, x: Any, edge_index: Any, edge_weight: Tensor | None = None, size: Any = None
    ) -> Tensor:
        return core(node_sets(x, size, layer.lin_root.weight.shape[1]), edge_index, edge_weight=edge_weight)


def aggregate(core: Any, prefix: str, linear: Any) -> dict[str, Tensor]:
    """The matrix of an aggregate: the kernel's where it commutes with the reduction, else the output's."""
    weight = core.get_submodule(prefix.rstrip("."))
    if weight.output is None:
        return {f"{prefix}weight": linear.weight[None]} | biases(f"{prefix}bias", linear.bias)
    return {f"{prefix}output.weight": linear.weight} | biases(f"{prefix}output.bias", linear.bias)


class SAGE(Pyg):
    """``SAGEConv``: mean, sum or max; ``project`` stands before the sources, ``normalize`` after the output."""

    name = "SAGEConv"
    reduces = ALL

    def configure(self, layer: Any) -> nn.Module:
        out, width = layer.lin_l.weight.shape
        root = nn.Linear(layer.lin_r.weight.shape[1], out, bias=False) if layer.root_weight else False
        reduce, bias = reduce_of(layer), layer.lin_l.bias is not None
        output = nn.Linear(width, out, bias=bias) if reduce == "max" else False
        weight = SharedKernel(width, out, fixed=reduce == "max", output=output, reduce=reduce, root=root, bias=bias)
        core = MessagePassing(Graph(), weight)
        if not (layer.project or layer.normalize):
            return core
        before = nn.Sequential(nn.Linear(width, width), nn.ReLU()) if layer.project else None
        return Stack(core, before=before, after=UnitLength() if layer.normalize else None)

    def tensors(self, layer: Any, core: Any) -> dict[str, Tensor]:
        prefix = "layer.weight." if isinstance(core, Stack) else "weight."
        found = aggregate(core, prefix, layer.lin_l)
        if layer.root_weight:
            found[f"{prefix}root.weight"] = layer.lin_r.weight
        if layer.project:
            found |= {"before.0.weight": layer.lin.weight, "before.0.bias": layer.lin.bias}
        return found

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        stack = core if isinstance(core, Stack) else None
        _, weight = parts(self.name, core if stack is None else stack.layer, SharedKernel)
        bias = weight.bias if weight.output is None else weight.output.bias
        target = None if weight.root is None else weight.root.in_features
        layer = self.original(
            widths(options, weight.in_channels, target), weight.out_channels, aggr=options.get("aggr", weight.reduce),
            normalize=stack is not None and stack.after is not None, root_weight=weight.root is not None,
            project=stack is not None and stack.before is not None, bias=bias is not None,
        )  # fmt: skip
        return layer, {}

    def run(self, layer: Any, core: Core, x: Any, edge_index: Any, size: Any = None) -> Tensor:
        width = layer.lin_r.weight.shape[1] if layer.root_weight else layer.lin_l.weight.shape[1]
        return core(node_sets(as_wide(x, width), size, width), edge_index)


class ClusterGCN(Pyg):
    """``ClusterGCNConv``: a mean over neighbours and a loop of weight 1 + λ."""

    name = "ClusterGCNConv"

    def refuse_more(self, layer: Any) -> list[str]:
        if not layer.add_self_loops and layer.diag_lambda:
            return ["add_self_loops=False, diag_lambda≠0): only an added loop may have a weight of its own"]
        return []

    def configure(self, layer: Any) -> MessagePassing:
        loops = {"self_loops": "replace", "loop_weight": 1.0 + layer.diag_lambda} if layer.add_self_loops else {}
        out, width = layer.lin_out.weight.shape
        weight = SharedKernel(width, out, reduce="mean", root=True, bias=layer.lin_out.bias is not None)
        return MessagePassing(Graph(**loops), weight)

    def tensors(self, layer: Any, core: nn.Module) -> dict[str, Tensor]:
        return aggregate(core, "weight.", layer.lin_out) | {"weight.root.weight": layer.lin_root.weight}

    def options(self, layer: Any) -> dict[str, Any]:
        return super().options(layer) | {"diag_lambda": layer.diag_lambda}

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        rule, weight = parts(self.name, core, SharedKernel)
        layer = self.original(
            weight.in_channels, weight.out_channels, diag_lambda=options.get("diag_lambda", rule.loop_weight - 1.0),
            add_self_loops=rule.self_loops == "replace", bias=weight.bias is not None,
            aggr=options.get("aggr", "add"),
        )  # fmt: skip
        return layer, {}

    def run(self, layer: Any, core: Core, x: Tensor, edge_index: Any) -> Tensor:
        return core(x, structure(edge_index))
