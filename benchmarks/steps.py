"""One training step, the same around every model: zero the gradients, forward, loss, backward, Adam."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.case import Side


def side(
    name: str,
    parameters: Mapping[str, nn.Parameter],
    forward: Callable[[], Tensor],
    labels: Tensor,
    views: Mapping[str, Callable[[Tensor], Any]] | None = None,
) -> Side:
    """A model as a side: the gate compares logits and gradients of all parameters, training times whole steps.

    The learning rate is tiny, so that thousands of steps do not lead one side to other numbers than another.
    """
    optimiser = torch.optim.Adam(parameters.values(), lr=1e-7)

    def step() -> None:
        optimiser.zero_grad()
        logits = forward()
        F.cross_entropy(logits.flatten(0, -2), labels.flatten()).backward()
        optimiser.step()

    return Side(name, forward, dict(parameters), views=dict(views or {}), step=step)


def copied(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, nn.Parameter]:
    """Copy these numbers into a module, by the module's names, and give its parameters by the same.

    Raises:
        ValueError: where the names are not all of the module's parameters.
    """
    own = dict(module.named_parameters())
    if set(own) != set(tensors):
        raise ValueError(f"expected numbers for {sorted(own)}, got {sorted(tensors)}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor.view(own[name].shape))
    return own
