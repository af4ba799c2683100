"""What a model costs: its parameters, the operations for a sample, and the kernels that do them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mpnn import MessagePassing, Plan, trace_kernels


@dataclass(frozen=True)
class Cost:
    """The parameters, the floating-point operations for one sample's forward pass, and each layer's kernel."""

    parameters: int
    flops: int
    kernels: dict[str, str]


def count_parameters(model: nn.Module) -> int:
    """Numbers that training changes."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def cost(model: nn.Module, x: Tensor) -> Cost:
    """Measure a model on a training batch `(B, N, C)`; the kernels are those of a training step on it.

    The operations are, inside message-passing layers, those of the plan (a multiplication and an addition for each
    channel of each edge) and of the projections before and after; outside them, what torch's `FlopCounterMode` counts:
    matrix products of embeddings, channel MLPs and readouts. Activations, normalisations and softmaxes are not counted.
    """
    with trace_kernels(model) as kernels:
        model(x)
    layers: dict[str, int] = {}
    hooks = [
        module.register_forward_pre_hook(_noting(layers, name), with_kwargs=True)
        for name, module in model.named_modules()
        if isinstance(module, MessagePassing)
    ]
    counter = FlopCounterMode(display=False)
    try:
        with torch.no_grad(), counter:
            model(x[:1])
    finally:
        for hook in hooks:
            hook.remove()
    counts = {name: sum(found.values()) for name, found in counter.get_flop_counts().items()}
    inside = sum(counts.get(f"{type(model).__name__}.{name}", 0) for name in layers)
    return Cost(count_parameters(model), counts.get("Global", 0) - inside + sum(layers.values()), kernels)


def _noting(layers: dict[str, int], name: str) -> Callable[..., None]:
    def note(layer: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        plan = layer.plan(*args, **kwargs)
        layers[name] = layers.get(name, 0) + plan.flops + _projections(layer, plan)

    return note


def _projections(layer: MessagePassing, plan: Plan) -> int:
    """The linear maps of a layer: each works on the sources, the targets, or (in a network of the edge) the edges."""
    rows = {"value": plan.spec.sources, "key": plan.spec.sources, "network": plan.edges, "edge": plan.edges}
    return sum(
        2 * rows.get(name.partition(".")[0], plan.spec.targets) * plan.spec.batch * part.weight.numel()
        for name, part in layer.weight.named_modules()
        if isinstance(part, nn.Linear)
    )
