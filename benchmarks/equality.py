"""The gate before every timing: all sides give the same values and the same gradients."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.case import FORWARD, TRAIN, Case, Side
from benchmarks.timing import settle

HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Gate:
    """The largest difference of ours from each peer, of values and of each gradient, by the peer's largest entry.

    ``first``: seconds of the first call of each side and mode, with everything that is made once inside it ·
    ``gradients``: each side's fixed upstream gradient, in its own layout.
    """

    errors: dict[str, dict[str, float]]  # peer → what → error
    tolerance: float
    first: dict[str, dict[str, float]] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)

    @property
    def green(self) -> bool:
        """Whether every difference is within the tolerance; NaN is not."""
        return all(e <= self.tolerance for found in self.errors.values() for e in found.values())

    @property
    def worst(self) -> float:
        """The largest difference; NaN where one is NaN."""
        found = [e for each in self.errors.values() for e in each.values()]
        return max(found, key=lambda e: (e != e, e), default=0.0)

    def plain(self) -> dict[str, Any]:
        """For a result file."""
        return {
            "green": self.green,
            "worst": self.worst,
            "tolerance": self.tolerance,
            "words": self.words(),
            "errors": self.errors,
        }

    def words(self) -> str:
        """Which differences are too large."""
        pairs = ((peer, what, e) for peer, found in self.errors.items() for what, e in found.items())
        return "; ".join(f"{peer}: {what} differ by {e:.1e}" for peer, what, e in pairs if not e <= self.tolerance)


def upstream(side: Side, y: Tensor) -> Tensor:
    """The fixed gradient of the common output, in this side's own layout."""
    probe = torch.zeros_like(y).requires_grad_()
    common = side.view(probe)
    generator = torch.Generator().manual_seed(7)
    common.backward(torch.randn(common.shape, generator=generator, dtype=common.dtype).to(common.device))
    assert probe.grad is not None
    return torch.empty_like(y).copy_(probe.grad)


def forward(side: Side) -> Callable[[], Any]:
    """What the mode "forward" times."""

    @torch.no_grad()
    def call() -> Tensor:
        return side.forward()

    return call


def train(side: Side, gradient: Tensor) -> Callable[[], Any]:
    """What the mode "train" times: a step, or forward and backward with a fixed upstream gradient."""
    leaves = list(side.leaves.values())
    return side.step or (lambda: torch.autograd.grad(side.forward(), leaves, gradient))


def largest(x: Tensor) -> float:
    """The largest entry without its sign."""
    return float(x.abs().max()) if x.numel() else 0.0


def difference(a: Tensor, b: Tensor, least: float = 0.0) -> float:
    """The largest difference of a from b by the largest entry of b, or by ``least``; inf where shapes differ."""
    if a.shape != b.shape:
        return float("inf")
    return largest(a.float() - b.float() if a.dtype in HALF else a - b) / (max(largest(b), least) or 1.0)


def differences(own: dict[str, Tensor], found: dict[str, Tensor]) -> dict[str, float]:
    """By name. A gradient is measured by a twentieth of the largest one at least: some are zero but for rounding, as
    that of a key's bias, which moves all scores of a target alike."""
    gradients = [largest(g) for name, g in found.items() if name != "values"]
    least = max(gradients, default=0.0) / 20
    return {name: difference(own[name], found[name], 0.0 if name == "values" else least) for name in found}


def compare(case: Case, *, training: bool = True) -> Gate:
    """Ours beside each peer: values, then the gradient of every leaf.

    Raises:
        ValueError: where a peer has other leaves than ours, a fault of the case.
    """
    errors: dict[str, dict[str, float]] = {}
    first: dict[str, dict[str, float]] = {}
    own: dict[str, Tensor] = {}
    gradients: dict[str, Tensor] = {}
    for side in (case.ours, *case.peers):
        wanted = training and side.trains and case.ours.trains
        found, first[side.name], gradient = _results(side, wanted)
        gradients |= {} if gradient is None else {side.name: gradient}
        if side is case.ours:
            own = found
            continue
        if not side.same:
            continue
        if wanted and set(found) != set(own):
            raise ValueError(f"expected {side.name} to give {sorted(own)}, got {sorted(found)}")
        errors[side.name] = differences(own, found)
    return Gate(errors, case.tolerance, first, gradients)


def _results(side: Side, training: bool) -> tuple[dict[str, Tensor], dict[str, float], Tensor | None]:
    """Values and gradients in the common layout by name, how long the two calls took, and the upstream gradient."""
    settle()
    start = time.perf_counter()
    y = forward(side)()
    settle()
    seconds = {FORWARD: time.perf_counter() - start}
    found = {"values": side.view(y).clone()}
    gradient = upstream(side, y) if training else None
    if gradient is not None:
        start = time.perf_counter()
        grads = torch.autograd.grad(side.forward(), list(side.leaves.values()), gradient)
        settle()
        seconds[TRAIN] = time.perf_counter() - start
        for name, g in zip(side.leaves, grads, strict=True):
            common = side.views[name](g) if name in side.views else g
            parts = common if isinstance(common, dict) else {name: common}
            found |= {f"gradients of {part}": each for part, each in parts.items()}
    return found, seconds, gradient
