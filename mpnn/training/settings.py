"""How a model is trained: plain numbers, checked, that can be written down."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

OPTIMISERS: dict[str, Callable[..., Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}


def constant(share: float) -> float:
    """The same rate at every step."""
    return 1.0


def cosine(share: float) -> float:
    """Half a cosine from 1 to 0."""
    return 0.5 * (1 + math.cos(math.pi * share))


SCHEDULES: dict[str, Callable[[float], float]] = {"constant": constant, "cosine": cosine}


@dataclass(frozen=True)
class Settings:
    """An optimiser, its rate over time, and the batches.

    The rate at step t of T is `learning_rate · min((t + 1) / (warmup · T), schedule(t / T))`.

    Args:
        learning_rate: the highest rate.
        optimiser: one of `OPTIMISERS`.
        weight_decay: as the optimiser means it.
        schedule: one of `SCHEDULES`, a function of the share of the steps that is done.
        warmup: the share of the steps in which the rate rises linearly.
        batch_size: samples a step.
        shuffle: a new order each epoch, or the stored one.
        clip: the largest norm of the gradient; None leaves it.
        label_smoothing: of the cross-entropy.

    Raises:
        ValueError: a name that is not known or a number out of its range.

    >>> Settings(1e-2, schedule="cosine").rate(50, steps=100)
    0.5
    """

    learning_rate: float
    optimiser: str = "adam"
    weight_decay: float = 0.0
    schedule: str = "constant"
    warmup: float = 0.0
    batch_size: int = 100
    shuffle: bool = True
    clip: float | None = None
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        for name, known in (("optimiser", OPTIMISERS), ("schedule", SCHEDULES)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}: expected one of {', '.join(known)}, got {getattr(self, name)!r}")
        for name, low, high in (
            ("learning_rate", 0, math.inf),
            ("weight_decay", 0, math.inf),
            ("warmup", 0, 1),
            ("batch_size", 1, math.inf),
            ("clip", 0, math.inf),
            ("label_smoothing", 0, 1),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ValueError(f"{name}: expected a number from {low} to {high}, got {value}")

    def rate(self, step: int, *, steps: int) -> float:
        """The factor on the learning rate at a step of a run."""
        rising = (step + 1) / (self.warmup * steps) if self.warmup else math.inf
        return min(rising, SCHEDULES[self.schedule](step / steps))

    def make_optimiser(self, parameters: Iterable[Tensor], steps: int) -> tuple[Optimizer, LambdaLR]:
        """The optimiser, and the scheduler that is stepped after each of its steps."""
        optimiser = OPTIMISERS[self.optimiser](parameters, lr=self.learning_rate, weight_decay=self.weight_decay)
        return optimiser, LambdaLR(optimiser, lambda step: self.rate(step, steps=steps))
