"""A labelled set of samples that every architecture can read."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples as tokens on a grid, with a fixed split: units, cells, nodes or tokens are readings of the same tensor.

    Tokens are the grid's cells in row-major order, so a sample is `N·C` units to an MLP, a grid to a CNN, the nodes of
    a grid graph to a GNN, and a sequence of `N` tokens to a Transformer.

    Shapes:
        x_train, x_test: `(S, N, C)` float32, `N = prod(grid)`
        y_train, y_test: `(S,)` int64 in `0 … classes - 1`

    Raises:
        ValueError: shapes, dtypes or labels that do not fit each other.

    >>> x, y = torch.zeros(6, 4, 1), torch.tensor([0, 1, 0, 1, 0, 1])
    >>> data = Dataset("toy", x, y, x[:2], y[:2], grid=(4,), classes=2)
    >>> data.tokens, data.channels, len(data.y_train)
    (4, 1, 6)
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    grid: tuple[int, ...]
    classes: int

    def __post_init__(self) -> None:
        for part, x, y in (("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            if x.ndim != 3 or x.shape[1] != math.prod(self.grid) or x.dtype != torch.float32:
                raise ValueError(
                    f"x_{part}: expected float32 of shape (S, {math.prod(self.grid)}, C) for grid {self.grid}, "
                    f"got {x.dtype} {tuple(x.shape)}; flatten the grid row by row, channels last"
                )
            if y.shape != x.shape[:1] or y.dtype != torch.int64:
                raise ValueError(f"y_{part}: expected int64 of shape ({len(x)},), got {y.dtype} {tuple(y.shape)}")
            if len(y) == 0 or int(y.min()) < 0 or int(y.max()) >= self.classes:
                raise ValueError(f"y_{part}: expected at least one label, all in 0 … {self.classes - 1}")

    @property
    def tokens(self) -> int:
        return self.x_train.shape[1]

    @property
    def channels(self) -> int:
        return self.x_train.shape[2]

    def as_dict(self) -> dict[str, Any]:
        """What a result file says of it."""
        return {
            "name": self.name,
            "train": len(self.x_train),
            "test": len(self.x_test),
            "grid": list(self.grid),
            "channels": self.channels,
            "classes": self.classes,
        }

    def shuffle_positions(self, seed: int = 0) -> Dataset:
        """The same samples with their tokens in another order: one fixed permutation for train and test."""
        order = torch.randperm(self.tokens, generator=torch.Generator().manual_seed(seed))
        return replace(self, x_train=self.x_train[:, order], x_test=self.x_test[:, order])

    def hold_out(self, fraction: float = 0.2, seed: int = 0) -> Dataset:
        """A part of the training samples in the place of the test samples, to choose settings by."""
        if not 0 < fraction < 1:
            raise ValueError(f"fraction: expected a number between 0 and 1, got {fraction}")
        order = torch.randperm(len(self.x_train), generator=torch.Generator().manual_seed(seed))
        held, kept = order.tensor_split([max(1, round(fraction * len(order)))])
        x, y = self.x_train, self.y_train
        return replace(self, x_train=x[kept], y_train=y[kept], x_test=x[held], y_test=y[held])
