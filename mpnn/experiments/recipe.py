"""A model of an adjustable width and how it is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from mpnn.data import Dataset, UsageError
from mpnn.experiments.measure import count_parameters
from mpnn.training import Settings


@dataclass(frozen=True)
class Recipe:
    """What one architecture is on one kind of data.

    `build(data, width)` makes the model, from `(B, N, C)` to `(B, classes)`; `rule` says in words who sends and how
    much. Widths are multiples of `multiple`; 0 where the model has none.
    """

    rule: str
    build: Callable[[Dataset, int], nn.Module]
    width: int
    settings: Settings
    multiple: int = 1

    def model(self, data: Dataset) -> nn.Module:
        return self.build(data, self.width)

    def as_dict(self) -> dict[str, Any]:
        """What a result file keeps of it."""
        return {"rule": self.rule, "width": self.width, **asdict(self.settings)}


def within(recipe: Recipe, data: Dataset, budget: int, name: str) -> Recipe:
    """The recipe with the largest width whose parameters are at most `budget`.

    Raises:
        UsageError: even the narrowest has more.
    """

    def parameters(multiples: int) -> int:
        with torch.random.fork_rng(devices=[]):  # counting must not use up the caller's random numbers
            return count_parameters(recipe.build(data, multiples * recipe.multiple))

    if parameters(1) > budget:
        raise UsageError(
            f"budget: expected at least {parameters(1):,}, which the smallest {name} on {data.name} has, got {budget:,}"
        )
    if not recipe.width:
        return recipe
    high = 2
    while parameters(high) <= budget:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if parameters(middle) <= budget else (low, middle)
    return replace(recipe, width=low * recipe.multiple)
