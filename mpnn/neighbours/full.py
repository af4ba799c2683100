"""Full: a fixed number of units, each target sees every source."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mpnn.checks import positive
from mpnn.edges import Edges
from mpnn.neighbours.base import Layout, Neighbours
from mpnn.slots import device_of, row_numbers


class Full(Neighbours):
    """Every one of ``targets`` units sees every one of ``sources`` units: N(i) = {0, …, sources - 1}.

    With two numbers the targets are units of the layer's own (``Full(784, 256) × Static()`` is
    ``nn.Linear(784, 256)`` on ``x[..., None]``); with one number they are the sources themselves.

    Relations: j - (i + sources - targets), ascending, sources + targets - 1 of them (a Toeplitz matrix).
    Pairs: targets · sources.

    Raises:
        TypeError, ValueError: where a number is no positive int; at the call where the tokens are not ``sources``.

    Example::

        >>> from mpnn.neighbours import Full
        >>> Full(3, 2).edges(2, 3).source
        tensor([0, 1, 2, 0, 1, 2])
    """

    axes = 1
    enumerates = True
    fixed_places = complete = True
    tiled = True

    def __init__(self, sources: int, targets: int | None = None) -> None:
        super().__init__()
        self.sources = positive("sources", sources)
        self.own_targets = targets is not None
        self.targets = self.sources if targets is None else positive("targets", targets)
        self.relations = self.sources + self.targets - 1
        self.pairs = self.sources * self.targets

    def edges(self, targets: int, sources: int, *, rows: slice | None = None, tokens: Any = None) -> Edges:
        i = row_numbers(rows, targets, device_of(tokens))
        target = i[:, None].expand(-1, sources).reshape(-1)
        source = torch.arange(sources, device=i.device).expand(i.shape[0], sources).reshape(-1)
        offset = source - target - (sources - targets)
        return Edges(source, target, offset + self.sources - 1, offset[:, None], target * sources + source)

    def holds(self, target: Tensor, source: Tensor, targets: int, sources: int, tokens: Any = None) -> Tensor:
        return (target >= 0) & (source >= 0)

    def target_count(self, sources: int, tokens: Any = None) -> int | None:
        return self.targets if self.own_targets else None

    def check(self, targets: int, sources: int, tokens: Any) -> None:
        if sources != self.sources or (not self.own_targets and targets != self.targets):
            got = sources if sources != self.sources else targets
            raise ValueError(
                f"expected tokens of shape (..., {self.sources}, C) for {self}, got {int(got)} tokens; "
                "build the layer for that number, or use AllTokens() for any number"
            )
        if self.own_targets and targets != self.targets:
            raise ValueError(f"expected {self.targets} targets for {self}, got {int(targets)}")

    def pair_layout(self) -> Layout | None:
        return (self.targets,), (self.sources,), ()

    def pair_ids(self, edges: Edges, targets: int, sources: int) -> Tensor:
        return edges.target * sources + edges.source

    def key(self) -> tuple:
        return self.sources, self.targets, self.own_targets

    def extra_repr(self) -> str:
        return f"{self.sources}, {self.targets}" if self.own_targets else f"{self.sources}"

    __repr__ = Neighbours.__repr__
