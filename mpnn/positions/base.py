"""What all positions share: constants that keep their precision, and the three kinds of code and bias."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mpnn import checks


class Constants(nn.Module):
    """A module whose constants stay out of the state dict and keep their dtype.

    They are buffers, so that they follow ``.to(device)``; but ``.half()`` and ``.bfloat16()`` would round them and
    ``.to_empty()`` would lose them, so they are made anew from Python numbers whenever the module is moved or cast.
    """

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[str, tuple[Any, torch.dtype]] = {}

    def constant(self, name: str, values: Tensor) -> None:
        """Keeps these values, computed on the CPU, under this name and on the default device."""
        self._numbers[name] = (values.tolist(), values.dtype)
        self.register_buffer(name, torch.tensor(values.tolist(), dtype=values.dtype), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        for name, (numbers, dtype) in self._numbers.items():
            setattr(self, name, torch.tensor(numbers, dtype=dtype, device=getattr(self, name).device))
        return self


class PositionCode(Constants, ABC):
    """A code that is added to the tokens: ``code(x, positions=None) -> x + code``, positions 0 … N-1 by default.

    ``axes`` says which positions it takes: 0 for ``(..., N)``, else ``(..., N, axes)``.
    """

    channels: int
    axes: int = 0

    @abstractmethod
    def code(self, positions: Tensor) -> Tensor:
        """The codes of these places.

        Shapes:
            positions: integer ``(...)``, or ``(..., axes)``
            returns: ``(..., channels)``
        """

    def default(self, count: int, device: torch.device) -> Tensor:
        """The codes of the places 0 … count-1."""
        if self.axes:
            raise ValueError(
                f"expected positions of shape (..., N, {self.axes}), got none; pass positions=, as tokens of a grid do"
            )
        return self.code(torch.arange(count, device=device))

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        if x.ndim < 2 or x.shape[-1] != self.channels:
            raise ValueError(f"expected tokens of shape (..., N, {self.channels}), got {tuple(x.shape)}")
        if positions is None:
            return x + self.default(x.shape[-2], x.device).to(x.dtype)
        check_positions(positions, x.shape[:-1], self.axes)
        return x + self.code(positions).to(x.dtype)


class ScoreBias(Constants, ABC):
    """A bias of attention scores that depends on two places: ``b = f(target, source)``, a number for each head.

    ``axes`` says which positions it takes: 0 for plain ones, else the size of their last dimension.
    """

    heads: int
    axes: int = 0

    @abstractmethod
    def forward(self, target_positions: Tensor, source_positions: Tensor) -> Tensor:
        """Element by element, with broadcasting: ``(N, 1)`` and ``(1, M)`` for all pairs, twice ``(E,)`` for edges.

        Shapes:
            positions: integer ``(...)``, or ``(..., axes)``
            returns: ``(..., heads)``, float32 at least
        """


def check_positions(positions: Tensor, lead: torch.Size, axes: int) -> None:
    """Refuses positions that are no integers ``(N,)`` or ``(..., N)`` of the tokens' shape, or ``(..., N, axes)``."""
    checks.integers("positions", positions)
    legend = f"(..., N, {axes})" if axes else "(..., N)"
    shape = positions.shape
    if axes:
        if not shape or shape[-1] != axes:
            raise ValueError(f"expected positions of shape {legend}, got {tuple(shape)}")
        shape = shape[:-1]
    if not shape or shape[-1] != lead[-1]:
        extra = "" if axes or len(positions.shape) < 2 else "; for tokens on a grid use a code with axes"
        raise ValueError(
            f"expected positions of shape {legend} with (..., N) = {tuple(lead)}, got {tuple(positions.shape)}{extra}"
        )
    checks.broadcastable("positions", shape, tuple(lead), "(..., N)")


def inverse_frequencies(width: int, base: float) -> Tensor:
    """``base^(-2i / width)`` for i below width / 2, rounded up: float32, by the operations of the published models."""
    steps = torch.arange(0, width, 2, dtype=torch.int64, device="cpu").to(torch.float32)
    return 1.0 / (base ** (steps / width))


def angles(positions: Tensor, frequencies: Tensor, axes: int) -> Tensor:
    """``position · frequency`` in float32; the axes stand one after another.

    Shapes:
        positions: integer ``(...)``, or ``(..., axes)``
        returns: float32 ``(..., len(frequencies) * max(axes, 1))``
    """
    turns = positions.to(torch.float32).unsqueeze(-1) * frequencies
    return turns.flatten(-2) if axes else turns


def check_values(condition: Tensor, text: str, came: Tensor) -> None:
    """Raises an IndexError where a condition on positions fails; on CUDA the device raises, without a wait for it."""
    if condition.is_cuda and checks.readable(condition):
        torch._assert_async(condition.all(), text)
    else:
        checks.values(condition, IndexError, text, came)
