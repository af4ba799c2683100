"""SGConv, TAGConv, ChebConv: several steps over a graph, and a matrix for each."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mpnn.interop.bridge import Refused, Unlike
from mpnn.interop.hops import Hops, ScaledLaplacian
from mpnn.interop.loops import one_loop_each
from mpnn.interop.pyg_base import Core, Pyg, biases, parts, refused_cache
from mpnn.message_passing import MessagePassing
from mpnn.neighbours import Graph
from mpnn.weights import SharedKernel


def step(*, symmetric: bool, self_loops: str | None = None) -> MessagePassing:
    """A sum over neighbours without a parameter, of tokens of any width."""
    weight = SharedKernel(None, None, fixed=True, normalise="symmetric" if symmetric else None, bias=False)
    return MessagePassing(Graph(self_loops=self_loops), weight)


def linears(layers: Any, bias: bool = False) -> list[nn.Linear]:
    """Linears of the widths of others."""
    return [nn.Linear(each.weight.shape[1], each.weight.shape[0], bias=bias) for each in layers]


def hops_of(name: str, core: Any, recurrence: tuple[float, float]) -> tuple[Hops, Any, Any]:
    """(hops, rule, weight of the step); refused where the core is another."""
    if not isinstance(core, Hops) or core.recurrence != recurrence:
        raise Unlike(f"{name} is Hops with recurrence={recurrence}")
    rule, weight = parts(name, core.step, SharedKernel)
    if not weight.fixed:
        raise Refused(f"{name}'s step has no parameter")
    return core, rule, weight


class SG(Pyg):
    """``SGConv``: the last power only."""

    name = "SGConv"

    def refuse_more(self, layer: Any) -> list[str]:
        return refused_cache(layer, "x and edges")

    def configure(self, layer: Any) -> Hops:
        rule = step(symmetric=True, self_loops="add" if layer.add_self_loops else None)
        return Hops(rule, linears([layer.lin], layer.lin.bias is not None), first=layer.K)

    def tensors(self, layer: Any, core: nn.Module) -> dict[str, Tensor]:
        return {"linears.0.weight": layer.lin.weight} | biases("linears.0.bias", layer.lin.bias)

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        hops, rule, _ = hops_of(self.name, core, (1.0, 0.0))
        linear: Any = hops.linears[0]
        if len(hops.linears) != 1:
            raise Refused("SGConv has one matrix, of the last power")
        layer = self.original(
            linear.in_features, linear.out_features, hops.first, False, rule.self_loops == "add",
            linear.bias is not None, aggr=options.get("aggr", "add"),
        )  # fmt: skip
        return layer, {}

    def run(self, layer: Any, core: Core, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        if layer.add_self_loops:
            edge_index, edge_weight = one_loop_each(edge_index, edge_weight, x.shape[-2], 1.0)
        return core(x, edge_index, edge_weight=edge_weight)


class TAG(Pyg):
    """``TAGConv``: all powers from 0 to K."""

    name = "TAGConv"

    def configure(self, layer: Any) -> Hops:
        bias = 0 if layer.bias is None else layer.bias.shape[0]
        return Hops(step(symmetric=layer.normalize), linears(layer.lins), bias=bias)

    def tensors(self, layer: Any, core: nn.Module) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {f"linears.{k}.weight": each.weight for k, each in enumerate(layer.lins)}
        return found | biases("bias", layer.bias)

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        hops, _, weight = hops_of(self.name, core, (1.0, 0.0))
        linear: Any = hops.linears[0]
        layer = self.original(
            linear.in_features, linear.out_features, len(hops.linears) - 1, hops.bias is not None,
            weight.normalise == "symmetric", aggr=options.get("aggr", "add"),
        )  # fmt: skip
        return layer, {}

    def run(self, layer: Any, core: Core, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        return core(x, edge_index, edge_weight=edge_weight)


class Cheb(Pyg):
    """``ChebConv``: Chebyshev's polynomials of the scaled Laplacian."""

    name = "ChebConv"

    def configure(self, layer: Any) -> ScaledLaplacian:
        bias = 0 if layer.bias is None else layer.bias.shape[0]
        hops = Hops(step(symmetric=False), linears(layer.lins), recurrence=(2.0, -1.0), bias=bias)
        return ScaledLaplacian(hops, layer.normalization)

    def tensors(self, layer: Any, core: nn.Module) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {f"hops.linears.{k}.weight": each.weight for k, each in enumerate(layer.lins)}
        return found | biases("hops.bias", layer.bias)

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        if not isinstance(core, ScaledLaplacian):
            raise Unlike("ChebConv steps by ScaledLaplacian")
        hops, _, _ = hops_of(self.name, core.hops, (2.0, -1.0))
        linear: Any = hops.linears[0]
        layer = self.original(
            linear.in_features, linear.out_features, len(hops.linears), core.normalization, hops.bias is not None,
            aggr=options.get("aggr", "add"),
        )  # fmt: skip
        return layer, {}

    def run(  # type: ignore[no-untyped-def]
        self, layer: Any, core: Core, x, edge_index, edge_weight=None, batch=None, lambda_max=None
    ) -> Tensor:
        return core(x, edge_index, edge_weight=edge_weight, batch=batch, lambda_max=lambda_max)
