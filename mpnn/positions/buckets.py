"""Which distances share a learned bias: rules that number the offsets between two places."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from mpnn import checks


class Buckets(ABC):
    """A rule from the offset ``source - target`` to a bucket, as a table over all offsets up to ``limits``.

    Offsets beyond a limit are those at the limit. ``axes`` is 0 for plain positions, else the axes of a grid.
    """

    axes: int = 0

    @property
    @abstractmethod
    def count(self) -> int:
        """How many buckets there are."""

    @property
    @abstractmethod
    def limits(self) -> tuple[int, ...]:
        """The largest offset on each axis that has an entry of its own."""

    @abstractmethod
    def table(self) -> Tensor:
        """The bucket of each offset from ``-limits`` to ``limits``, row-major: int64 ``(prod(2 limits + 1),)``."""


@dataclasses.dataclass(frozen=True)
class OffsetBuckets(Buckets):
    """A bucket for each offset from -max_distance to max_distance, ascending.

    Source: Shaw et al., "Self-attention with relative position representations", 2018.
    """

    max_distance: int

    def __post_init__(self) -> None:
        checks.positive("max_distance", self.max_distance)

    @property
    def count(self) -> int:
        return 2 * self.max_distance + 1

    @property
    def limits(self) -> tuple[int, ...]:
        return (self.max_distance,)

    def table(self) -> Tensor:
        return torch.arange(self.count, device="cpu")


@dataclasses.dataclass(frozen=True)
class T5Buckets(Buckets):
    """Small distances have a bucket each, larger ones share buckets that grow with the logarithm of the distance.

    ``bidirectional`` gives half of the buckets to sources after the target; else these all share bucket 0.

    Source: Raffel et al., "Exploring the limits of transfer learning" (T5), 2020.
    """

    buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True

    def __post_init__(self) -> None:
        exact = self.buckets // (4 if self.bidirectional else 2)
        if exact < 1 or self.max_distance <= exact:
            raise ValueError(
                f"expected at least {4 if self.bidirectional else 2} buckets and a max_distance above {exact}, "
                f"got {self.buckets} and {self.max_distance}"
            )

    @property
    def count(self) -> int:
        return self.buckets

    @property
    def limits(self) -> tuple[int, ...]:
        return (self.max_distance,)

    def table(self) -> Tensor:
        offset = torch.arange(-self.max_distance, self.max_distance + 1, device="cpu")
        side = self.buckets // 2 if self.bidirectional else self.buckets
        distance = offset.abs() if self.bidirectional else (-offset).clamp(min=0)
        exact = side // 2
        # The published formula in its own float32 operations, so that no distance lands in the bucket beside.
        scale = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        far = (exact + (scale * (side - exact)).long()).clamp(max=side - 1)
        bucket = torch.where(distance < exact, distance, far)
        return bucket + side * (offset > 0).long() if self.bidirectional else bucket


@dataclasses.dataclass(frozen=True)
class WindowBuckets(Buckets):
    """A bucket for each offset ``target - source`` inside a window of a grid, in row-major order, as in Swin's table.

    Source: Liu et al., "Swin Transformer", 2021.
    """

    window: tuple[int, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.window, tuple) or not self.window:
            raise TypeError(f"expected window to be a tuple of ints, as (7, 7), got {self.window!r}")
        for size in self.window:
            checks.positive("window", size)

    @property
    def axes(self) -> int:  # type: ignore[override]
        return len(self.window)

    @property
    def count(self) -> int:
        return math.prod(2 * size - 1 for size in self.window)

    @property
    def limits(self) -> tuple[int, ...]:
        return tuple(size - 1 for size in self.window)

    def table(self) -> Tensor:
        return torch.arange(self.count, device="cpu").flip(0)  # of source - target: the other way round
