"""Random: each target sees a few sources drawn at random, the same at every call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mpnn.checks import positive
from mpnn.edges import Edges
from mpnn.neighbours.base import Neighbours
from mpnn.slots import device_of, extent, row_numbers, two

_LOW = (1 << 32) - 1


class Random(Neighbours):
    """Each target sees ``degree`` distinct sources of its graph, all subsets equally likely; all of them if there are
    fewer.

    The draw depends on ``seed``, the target's number i and the number M of sources, both counted in its own graph: the
    same at every call, on every device and in every process; no random state is read or changed. A token may draw
    itself. It is Floyd's sampling with numbers from a hash: with S empty and d = min(degree, M), for t = 0 … d - 1 let
    m = M - d + t and r = ⌊h(i, t) · (m + 1) / 2³²⌋; add r to S, or m where r is there already. h(i, t) is
    ``mix(mix(mix(seed mod 2³²) xor i) xor t)`` of 32 bits, ``mix`` being lowbias32: x ^= x >> 16; x *= 0x7FEB352D;
    x ^= x >> 15; x *= 0x846CA68B; x ^= x >> 16.

    Raises:
        TypeError, ValueError: where degree is no int ≥ 1 or seed no int ≥ 0.

    Source: the random attention of BigBird (Zaheer et al., 2020), `arXiv:2007.14062
    <https://arxiv.org/abs/2007.14062>`_; sampling: Floyd, in Bentley & Floyd (1987), "A sample of brilliance".

    Example::

        >>> from mpnn.neighbours import Random
        >>> Random(2, seed=0).edges(3, 5).source
        tensor([0, 2, 1, 4, 0, 4])
    """

    enumerates = True
    listed = True

    def __init__(self, degree: int, seed: int) -> None:
        super().__init__()
        self.drawn = positive("degree", degree)
        self.seed = positive("seed", seed, 0)

    def edges(self, targets: int, sources: int, *, rows: slice | None = None, tokens: Any = None) -> Edges:
        i = row_numbers(rows, targets, device_of(tokens))
        low, high, _ = extent(tokens, targets, sources, i)
        count = high - low
        taken = count.clamp(max=self.drawn)
        key = _mix(_mix(torch.full_like(i, self.seed & _LOW)) ^ (i - _first(tokens, i)))
        none = max(sources, 0)  # no token's number, for the places after the last draw
        places = self.drawn if torch.compiler.is_compiling() else min(self.drawn, sources)
        chosen = torch.full((i.shape[0], places), none, dtype=torch.int64, device=i.device)
        for t in range(places):
            last = count - taken + t
            draw = (_mix(key ^ t) * (last + 1)) >> 32
            again = (chosen[:, :t] == (low + draw)[:, None]).any(1)
            number = low + torch.where(again, last, draw)
            chosen[:, t] = torch.where(t < taken, number, none)
        source, target = chosen.sort(1).values, i[:, None].expand_as(chosen)
        valid = source < none
        source = source.clamp(max=max(none - 1, 0))
        return Edges(source.reshape(-1), target.reshape(-1), valid=valid.reshape(-1)).compact()

    def degree(self, targets: int, sources: int) -> int:
        return min(self.drawn, sources)

    def key(self) -> tuple:
        return self.drawn, self.seed

    def extra_repr(self) -> str:
        return f"{self.drawn}, seed={self.seed}"


def _first(tokens: Any, i: Tensor) -> Tensor:
    """The first target of each target's graph."""
    _, target = two(tokens)
    if target is None or target.batch is None:
        return torch.zeros_like(i)
    batch = target.batch.long()
    return torch.searchsorted(batch, batch[i])


def _mix(x: Tensor) -> Tensor:
    """lowbias32: a hash of 32 bits, in int64. The second factor is taken less 2³², so that no product overflows."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _LOW
    x = ((x ^ (x >> 15)) * (0x846CA68B - (1 << 32))) & _LOW
    return x ^ (x >> 16)
