"""What the bridges to PyG's convolutions share: which layers, what is refused of all of them, how they are called."""

from __future__ import annotations

import importlib
import importlib.util
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from mpnn.interop.bridge import Bridge, Refused, Unlike, quietly
from mpnn.message_passing import MessagePassing
from mpnn.neighbours import Graph

INSTALLED = importlib.util.find_spec("torch_geometric") is not None
REDUCES = {"SumAggregation": "sum", "MeanAggregation": "mean", "MaxAggregation": "max"}
Core = Callable[..., Any]


class Pyg(Bridge):
    """A convolution of PyG: its name, where it is imported from, and the aggregations that its core has."""

    library = "torch_geometric"
    kind = "graph"
    name: str
    module = "torch_geometric.nn"
    reduces: tuple[str, ...] = ("sum",)

    @property
    def original(self) -> Any:
        """The class of PyG."""
        return getattr(importlib.import_module(self.module), self.name)

    def layers(self) -> tuple[type[nn.Module], ...]:
        return (self.original,) if INSTALLED else ()

    def refuse(self, layer: Any) -> list[str]:
        if any(isinstance(p, UninitializedParameter) for p in layer.parameters()):
            return [f"{self.name}: its lazy channels (-1) have no width yet; run one forward first"]
        return [f"{self.name}({why}" for why in (*refused_rules(layer, self.reduces), *self.refuse_more(layer))]

    def refuse_more(self, layer: Any) -> list[str]:
        """What has no configuration besides what no layer has: ``"option=value): the reason"``."""
        return []

    def options(self, layer: Any) -> dict[str, Any]:
        aggregation = {"aggr": layer.aggr} if layer.aggr in ("add", "sum", "mean", "max") else {}
        return aggregation | {"in_channels": getattr(layer, "in_channels", None)}

    def call(self, layer: Any, core: Core, *args: Any, **kwargs: Any) -> Any:
        """The layer's own signature. While an explainer or a hook looks into its propagate, PyG's own code runs."""
        if looked_into(layer):
            if rules(layer.core) != rules(quietly(lambda: self.configure(layer))):
                raise RuntimeError(
                    f"an explainer or a hook looks into {self.name}, whose own forward does not know the rule that "
                    "swap() gave it; put as_conv(from_layer(layer)) in its place"
                )
            return self.original.forward(layer, *args, **kwargs)
        return self.run(layer, core, *args, **kwargs)

    @abstractmethod
    def run(self, layer: Any, core: Core, *args: Any, **kwargs: Any) -> Any:
        """The layer's own signature, by the core."""


def refused_rules(layer: Any, reduces: Sequence[str]) -> list[str]:
    """Options of PyG's MessagePassing that no core has."""
    why = []
    if layer.flow != "source_to_target":
        why.append(f"flow={layer.flow!r}): messages flow from source to target here; flip the rows of edge_index")
    if layer.node_dim not in (-2, 0):
        why.append(f"node_dim={layer.node_dim}): nodes are the last but one dimension here; move it there")
    if reduce_of(layer) not in reduces:
        why.append(f"aggr={layer.aggr!r}): the core reduces by {', '.join(reduces)}")
    return why


def refused_cache(layer: Any, what: str) -> list[str]:
    """Why a layer that goes on with what its first call was given is refused."""
    why = [
        f"cached=True): PyG goes on with the {what} of the first call, whatever comes later, and a core reads each "
        "call's; set layer.cached = False (what edges are made into is remembered here without it)"
    ]
    return why if layer.cached else []


def reduce_of(layer: Any) -> str:
    """The reduction of the core that a layer's aggregation is."""
    aggregation = type(layer.aggr_module).__name__
    return REDUCES.get(aggregation, aggregation)


def rules(core: nn.Module) -> list[str]:
    """Who sends in each layer of a core, in words."""
    return [repr(part.neighbours) for part in core.modules() if isinstance(part, MessagePassing)]


def looked_into(layer: Any) -> bool:
    """Whether somebody reads or changes messages: an explainer with its edge mask, or hooks of PyG's propagate."""
    hooks = (
        "propagate_forward_pre", "propagate_forward", "message_forward_pre", "message_forward",
        "aggregate_forward_pre", "aggregate_forward", "message_and_aggregate_forward_pre",
        "message_and_aggregate_forward", "edge_update_forward_pre", "edge_update_forward",
    )  # fmt: skip
    return bool(layer.explain) or any(getattr(layer, f"_{hook}_hooks") for hook in hooks)


def parts(name: str, core: Any, weight: type[nn.Module]) -> tuple[Any, Any]:
    """(rule, weight) of a core that is Graph × weight; refused where it is another."""
    if (
        not isinstance(core, MessagePassing)
        or not isinstance(core.neighbours, Graph)
        or type(core.weight) is not weight
    ):
        raise Unlike(f"{name} needs Graph × {weight.__name__}")
    if core.neighbours.built:
        raise Refused(f"{name} takes its edges at the call, and this Graph was built with them")
    return core.neighbours, core.weight


def widths(options: dict[str, Any], source: int, target: int | None) -> Any:
    """in_channels of a convolution: one width, or those of two node sets, as the layer had them."""
    given = options.get("in_channels")
    pair = tuple(given) if isinstance(given, tuple | list) else (given, given)
    if pair[0] == source and target in (None, pair[1]):
        return given
    return source if target is None or target == source else (source, target)


def node_sets(x: Any, size: Any = None, width: int | None = None) -> Any:
    """x as the core takes it: one set, or (x_source, x_target).

    Targets without features, (x, None), become zeros: a root or a score without bias is then 0, as if it were left out.
    ``width``: of the targets.
    """
    pair = x if isinstance(x, tuple | list) else (x, x)
    counts = (None, None) if size is None else tuple(size)
    source, target = pair
    if target is None:
        count = source.shape[-2] if counts[1] is None else counts[1]
        target = source.new_zeros(*source.shape[:-2], count, source.shape[-1] if width is None else width)
    for end, count in zip((source, target), counts, strict=True):
        if count is not None and count != end.shape[-2]:
            raise ValueError(f"expected size=({source.shape[-2]}, {target.shape[-2]}) as the tokens', got {size}")
    return source if target is source else (source, target)


def column(edge_attr: Tensor | None) -> Tensor | None:
    """Edge attributes with an axis of channels: (E,) → (E, 1)."""
    return edge_attr[:, None] if edge_attr is not None and edge_attr.ndim == 1 else edge_attr


def biases(name: str, bias: Tensor | None) -> dict[str, Tensor]:
    """A bias, where there is one."""
    return {} if bias is None else {name: bias}


def structure(edge_index: Any) -> Any:
    """Edges without the values of a sparse matrix, where the layer reads none."""
    if isinstance(edge_index, Tensor) and edge_index.layout != torch.strided:
        coo = edge_index.to_sparse_coo().coalesce()
        return coo.indices().flip(0).contiguous()
    return edge_index


def as_wide(x: Any, width: int) -> Any:
    """Targets that nobody reads may have any width in PyG: without a root only their number counts."""
    if isinstance(x, tuple | list) and x[1] is not None and x[1].shape[-1] != width:
        return x[0], x[1].new_zeros(*x[1].shape[:-1], width)
    return x
