"""Which samples make up each training step: a pure function of the seed and the step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import Sampler


class StepSampler(Sampler[list[int]]):
    """Index lists for the steps `start … steps - 1`, epoch after epoch, each epoch in its own order.

    The order of epoch `e` depends on `(seed, e)` alone, so a run that stops after step `k` goes on with `start=k` as if
    it had never stopped. As a `batch_sampler` it serves a `DataLoader` with workers; incomplete batches are left out.

    >>> list(StepSampler(5, batch_size=2, steps=3, shuffle=False))
    [[0, 1], [2, 3], [0, 1]]
    """

    def __init__(
        self, size: int, *, batch_size: int, steps: int, shuffle: bool = True, seed: int = 0, start: int = 0
    ) -> None:
        for name, value in (("size", size), ("batch_size", batch_size), ("steps", steps)):
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        if not 0 <= start <= steps:
            raise ValueError(f"start: expected 0 … {steps}, got {start}")
        self.size, self.batch_size, self.steps = size, min(batch_size, size), steps
        self.shuffle, self.seed, self.start = shuffle, seed, start

    def __len__(self) -> int:
        return self.steps - self.start

    def __iter__(self) -> Iterator[list[int]]:
        each = self.size // self.batch_size
        order: list[int] | None = None
        for step in range(self.start, self.steps):
            epoch, place = divmod(step, each)
            if order is None or place == 0:
                order = self._order(epoch)
            yield order[place * self.batch_size : (place + 1) * self.batch_size]

    def _order(self, epoch: int) -> list[int]:
        if not self.shuffle:
            return list(range(self.size))
        # One number from two: the factor is a prime above any number of epochs that a run has.
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        return torch.randperm(self.size, generator=generator).tolist()


class Batches:
    """Pairs `(x, y)` for each list of indices, cut from tensors in memory: no worker and no collation.

    >>> x = torch.arange(5)
    >>> [batch for batch, _ in Batches(x, x, x.split(3))]
    [tensor([0, 1, 2]), tensor([3, 4])]
    """

    def __init__(self, x: Tensor, y: Tensor, order: StepSampler | Sequence[Tensor]) -> None:
        self.x, self.y, self.order = x, y, order

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for index in self.order:
            yield self.x[index], self.y[index]
