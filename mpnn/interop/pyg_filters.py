"""NNConv, CFConv, GMMConv: a graph with a network of each edge's attributes."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from mpnn.interop.bridge import Refused, Unlike, lent
from mpnn.interop.pyg_base import Core, Pyg, biases, node_sets, parts, reduce_of, widths
from mpnn.interop.pyg_networks import Gaussians
from mpnn.interop.stacks import CosineCutoff
from mpnn.message_passing import MessagePassing
from mpnn.neighbours import Graph
from mpnn.weights import EdgeLearned, EdgeNetwork, HeadSum

ALL = ("sum", "mean", "max")


def refused_network(name: str, network: Any) -> list[str]:
    """A network that is no module has parameters that nobody sees."""
    return [] if isinstance(network, nn.Module) else [f"{name}=...): expected an nn.Module, whose parameters are known"]


def plain_network(name: str, weight: Any) -> nn.Module:
    """A copy of a network of edge attributes."""
    if isinstance(weight.network, EdgeNetwork) or not isinstance(weight.network, nn.Module):
        raise Refused(f"{name}'s network is a module of the edge attributes, got {type(weight.network).__name__}")
    return copy.deepcopy(weight.network)


class NN(Pyg):
    """``NNConv``: a matrix per edge, from a network of its attributes."""

    name = "NNConv"
    reduces = ALL

    def refuse_more(self, layer: Any) -> list[str]:
        return refused_network("nn", layer.nn)

    def configure(self, layer: Any) -> MessagePassing:
        out = layer.out_channels
        root = nn.Linear(layer.lin.weight.shape[1], out, bias=False) if layer.root_weight else False
        weight = EdgeLearned(
            layer.in_channels_l, out, copy.deepcopy(layer.nn), reduce=reduce_of(layer), root=root,
            bias=layer.bias is not None,
        )  # fmt: skip
        return MessagePassing(Graph(), weight)

    def tensors(self, layer: Any, core: nn.Module) -> dict[str, Tensor]:
        root = {"weight.root.weight": layer.lin.weight} if layer.root_weight else {}
        return lent("weight.network", layer.nn) | root | biases("weight.bias", layer.bias)

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        _, weight = parts(self.name, core, EdgeLearned)
        network = plain_network(self.name, weight)
        target = None if weight.root is None else weight.root.in_features
        layer = self.original(
            widths(options, weight.in_channels, target), weight.out_channels, network,
            options.get("aggr", weight.reduce), weight.root is not None, weight.bias is not None,
        )  # fmt: skip
        return layer, {}

    def run(  # type: ignore[no-untyped-def]
        self, layer: Any, core: Core, x, edge_index, edge_attr=None, size=None
    ) -> Tensor:
        width = layer.lin.weight.shape[1] if layer.root_weight else layer.in_channels_l
        return core(node_sets(x, size, width), edge_index, edge_attr)


class CF(Pyg):
    """SchNet's ``CFConv``: a number per channel, from a network, which falls to 0 at the cutoff."""

    name = "CFConv"
    module = "torch_geometric.nn.models.schnet"

    def refuse_more(self, layer: Any) -> list[str]:
        return refused_network("nn", layer.nn)

    def configure(self, layer: Any) -> CosineCutoff:
        filters, width = layer.lin1.weight.shape
        out = layer.lin2.weight.shape[0]
        weight = EdgeLearned(
            width, out, copy.deepcopy(layer.nn), groups=filters, value=nn.Linear(width, filters, bias=False),
            output=nn.Linear(filters, out),
        )  # fmt: skip
        return CosineCutoff(MessagePassing(Graph(), weight), layer.cutoff)

    def tensors(self, layer: Any, core: nn.Module) -> dict[str, Tensor]:
        found = {"layer.weight.value.weight": layer.lin1.weight, "layer.weight.output.weight": layer.lin2.weight}
        found["layer.weight.output.bias"] = layer.lin2.bias
        return found | lent("layer.weight.network", layer.nn)

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        if not isinstance(core, CosineCutoff):
            raise Unlike("CFConv has a cutoff of the distance: wrap the layer in CosineCutoff")
        _, weight = parts(self.name, core.layer, EdgeLearned)
        network = plain_network(self.name, weight)
        return self.original(weight.in_channels, weight.out_channels, weight.before, network, core.cutoff), {}

    def run(  # type: ignore[no-untyped-def]
        self, layer: Any, core: Core, x, edge_index, edge_weight, edge_attr
    ) -> Tensor:
        return core(x, edge_index, edge_attr, edge_weight=edge_weight)


class GMM(Pyg):
    """``GMMConv``: kernels as heads, their sum as output; separate Gaussians are a matrix per edge."""

    name = "GMMConv"
    reduces = ALL

    def refuse_more(self, layer: Any) -> list[str]:
        if reduce_of(layer) == "max" and not layer.separate_gaussians and layer.kernel_size > 1:
            return ["aggr='max'): the largest of sums over kernels is no sum of the largest of each"]
        return []

    def configure(self, layer: Any) -> MessagePassing:
        kernels, out, width = layer.kernel_size, layer.out_channels, layer.g.shape[0]
        root = nn.Linear(layer.root.weight.shape[1], out, bias=False) if layer.root_weight else False
        common: dict[str, Any] = {"reduce": reduce_of(layer), "root": root, "bias": layer.bias is not None}
        if layer.separate_gaussians:
            network = Gaussians(layer.dim, kernels, matrix=(width, out))
            return MessagePassing(Graph(), EdgeLearned(width, out, network, **common))
        weight = EdgeLearned(
            width, out, Gaussians(layer.dim, kernels), heads=kernels, value=nn.Linear(width, kernels * out, bias=False),
            output=HeadSum(kernels, out), **common,
        )  # fmt: skip
        return MessagePassing(Graph(), weight)

    def tensors(self, layer: Any, core: nn.Module) -> dict[str, Tensor]:
        found = {"weight.network.mu": layer.mu, "weight.network.sigma": layer.sigma}
        if layer.separate_gaussians:
            found["weight.network.g"] = layer.g
        else:
            found["weight.value.weight"] = layer.g.t()
        if layer.root_weight:
            found["weight.root.weight"] = layer.root.weight
        return found | biases("weight.bias", layer.bias)

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        _, weight = parts(self.name, core, EdgeLearned)
        network = weight.network
        if not isinstance(network, Gaussians):
            raise Refused("GMMConv's network is Gaussians")
        target = None if weight.root is None else weight.root.in_features
        layer = self.original(
            widths(options, weight.in_channels, target), weight.out_channels, network.edge_channels, network.kernels,
            network.matrix is not None, options.get("aggr", weight.reduce), weight.root is not None,
            weight.bias is not None,
        )  # fmt: skip
        return layer, {}

    def run(  # type: ignore[no-untyped-def]
        self, layer: Any, core: Core, x, edge_index, edge_attr=None, size=None
    ) -> Tensor:
        width = layer.root.weight.shape[1] if layer.root_weight else layer.g.shape[0]
        return core(node_sets(x, size, width), edge_index, edge_attr)
