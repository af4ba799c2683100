"""The one kind of data that every model takes: a set of tokens with what is known about each of them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import SymInt, Tensor

from mpnn import checks


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Tokens:
    """A set of tokens: features, and for each token its mask, place, coordinates and graph where they exist.

    Leading dimensions that a field lacks broadcast against those of ``x``: a ``mask`` of shape ``(N,)`` serves all of a
    batch. Only shapes, dtypes and devices are checked, so that ``Tokens`` can be made inside ``torch.compile`` and
    ``torch.func.vmap``.

    Shapes:
        x: ``(..., N, C)``, floating point
        mask: bool ``(..., N)``, True = takes part
        positions: integer ``(..., N)``, or ``(..., N, axes)`` for tokens on a grid
        coordinates: floating point ``(..., N, axes)``
        batch: integer ``(N,)``, sorted, the graph of each token; only without leading dimensions
        grid: a tuple of ints, row-major, whose product is N

    Raises:
        TypeError: for a dtype that a field does not take.
        ValueError: for a shape or a device that does not fit ``x``.

    >>> tokens = Tokens(torch.ones(2, 3, 4), mask=torch.tensor([True, True, False]))
    >>> tokens.clean().x[0, :, 0]
    tensor([1., 1., 0.])
    """

    x: Tensor
    _: dataclasses.KW_ONLY
    mask: Tensor | None = None
    positions: Tensor | None = None
    coordinates: Tensor | None = None
    batch: Tensor | None = None
    grid: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        _tensor("x", self.x)
        checks.dense("x", self.x, "(..., N, C)")
        if not (self.x.is_floating_point() or self.x.is_complex()):
            raise TypeError(f"expected x of a floating-point dtype, got {self.x.dtype}; embed integer ids first")
        if self.x.ndim < 2:
            raise ValueError(
                f"expected x of shape (..., N, C), got {tuple(self.x.shape)}; a single token is x[None, :]"
            )
        lead = self.x.shape[:-1]
        if self.mask is not None:
            _tensor("mask", self.mask, self.x)
            checks.bool_mask("mask", self.mask)
            if not _fits(self.mask.shape, lead):
                raise ValueError(f"expected mask of shape (..., N) = {tuple(lead)}, got {tuple(self.mask.shape)}")
        if self.positions is not None:
            _tensor("positions", self.positions, self.x)
            checks.integers("positions", self.positions)
            if not (_fits(self.positions.shape, lead) or _fits(self.positions.shape[:-1], lead)):
                raise ValueError(
                    f"expected positions of shape (..., N) = {tuple(lead)} or (..., N, axes), "
                    f"got {tuple(self.positions.shape)}"
                )
        if self.coordinates is not None:
            _tensor("coordinates", self.coordinates, self.x)
            if not self.coordinates.is_floating_point():
                raise TypeError(f"expected floating-point coordinates, got {self.coordinates.dtype}")
            if not _fits(self.coordinates.shape[:-1], lead):
                raise ValueError(
                    f"expected coordinates of shape (..., N, axes) with (..., N) = {tuple(lead)}, "
                    f"got {tuple(self.coordinates.shape)}"
                )
        if self.batch is not None:
            _tensor("batch", self.batch, self.x)
            checks.integers("batch", self.batch)
            if self.x.ndim != 2:
                raise ValueError(
                    f"batch= needs x of shape (N, C) without leading dimensions, got {tuple(self.x.shape)}"
                )
            if self.batch.shape != lead:
                raise ValueError(f"expected batch of shape (N,) = {tuple(lead)}, got {tuple(self.batch.shape)}")
        if self.grid is not None:
            if not (isinstance(self.grid, tuple) and all(isinstance(n, int | SymInt) for n in self.grid)):
                raise TypeError(f"expected grid to be a tuple of ints, got {self.grid!r}")
            if any(isinstance(n, int) and n < 0 for n in self.grid):
                raise ValueError(f"expected grid of sizes ≥ 0, got {self.grid}")
            if math.prod(self.grid) != lead[-1]:
                raise ValueError(
                    f"expected {math.prod(self.grid)} tokens for grid {self.grid}, got {lead[-1]}; the cells of an "
                    f"image (B, C, {', '.join(map(str, self.grid))}) are image.flatten(-{len(self.grid)}).mT"
                )

    def __repr__(self) -> str:
        fields = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        shown = (f"{k}={tuple(v.shape) if isinstance(v, Tensor) else v}" for k, v in fields if v is not None)
        return f"Tokens({', '.join(shown)})"

    def replace(self, **changes: Any) -> Tokens:
        """The same tokens with some fields changed, checked again."""
        return dataclasses.replace(self, **changes)

    def clean(self) -> Tokens:
        """The same tokens, zero in value and gradient where the mask is False, whatever stood there, NaN included."""
        if self.mask is None:
            return self
        return self.replace(x=self.x.masked_fill(~self.mask.unsqueeze(-1), 0))

    def to(self, *args: Any, **kwargs: Any) -> Tokens:
        """``Tensor.to`` on every field: all follow the device, only ``x`` and ``coordinates`` take the dtype."""
        x = self.x.to(*args, **kwargs)
        moved = {
            name: None
            if value is None
            else value.to(device=x.device, dtype=x.dtype if name == "coordinates" else value.dtype)
            for name, value in (
                ("mask", self.mask),
                ("positions", self.positions),
                ("coordinates", self.coordinates),
                ("batch", self.batch),
            )
        }
        return self.replace(x=x, **moved)


def _tensor(name: str, value: Any, like: Tensor | None = None) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"expected {name} to be a tensor, got {type(value).__name__}")
    if like is not None:
        checks.same_device(name, value, like.device)


def _fits(shape: torch.Size, lead: torch.Size) -> bool:
    """Whether a field of this shape broadcasts to ``lead = (..., N)`` with N itself never broadcast."""
    if not 1 <= len(shape) <= len(lead) or shape[-1] != lead[-1]:
        return False
    return all(a == 1 or a == b for a, b in zip(reversed(shape[:-1]), reversed(lead[:-1]), strict=False))
