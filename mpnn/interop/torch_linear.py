"""``nn.Linear``: the channels of each token, or neurons as tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from mpnn.interop.bridge import Bridge, Unlike
from mpnn.interop.torch_nested import nested, padded
from mpnn.message_passing import MessagePassing
from mpnn.neighbours import Full, Window
from mpnn.weights import SharedKernel, Static


class Linear(Bridge):
    """``nn.Linear``: every token sees itself, ``Window(0)`` × ``SharedKernel``; with ``units=True`` its neurons are the
    tokens, ``Full(in, out)`` × ``Static``, called with x[..., None].
    """

    kind = "linear"
    structure = ("units",)

    def layers(self) -> tuple[type[nn.Module], ...]:
        return (nn.Linear,)

    def configure(self, layer: Any, units: bool = False) -> MessagePassing:
        sizes, bias = (layer.in_features, layer.out_features), layer.bias is not None
        if units:
            return MessagePassing(Full(*sizes), Static(bias=bias))
        return MessagePassing(Window(0), SharedKernel(*sizes, bias=bias))

    def tensors(self, layer: Any, core: Any) -> dict[str, Tensor]:
        units = isinstance(core.neighbours, Full)
        weight = layer.weight[:, None, :, None] if units else layer.weight[None]
        bias = {} if layer.bias is None else {"weight.bias": layer.bias[:, None] if units else layer.bias}
        return {"weight.weight": weight} | bias

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        rule: Any = getattr(core, "neighbours", None)
        weight: Any = getattr(core, "weight", None)
        units = isinstance(rule, Full) and isinstance(weight, Static)
        if not units and not (isinstance(rule, Window) and isinstance(weight, SharedKernel)):
            raise Unlike("nn.Linear needs Full × Static or Window(0) × SharedKernel")
        sizes = (rule.sources, rule.targets) if units else (weight.in_channels, weight.out_channels)
        return nn.Linear(*sizes, bias=weight.bias is not None), {"units": units}

    def call(self, layer: Any, core: Callable[..., Any], input: Tensor) -> Tensor:
        if input.is_nested:
            x, mask = padded(input)
            return nested(core(x), mask)
        return core(input) if input.ndim > 1 else core(input[None])[0]
