"""AllTokens: any number of tokens, each sees every other (or every earlier) one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mpnn.checks import compiling, positive
from mpnn.cover import Cover, band
from mpnn.edges import Edges
from mpnn.neighbours.base import Layout, Neighbours
from mpnn.slots import device_of, extent, row_numbers, sequences, spread, two


class AllTokens(Neighbours):
    """Every token sees every token: N(i) = {0, …, M - 1}; with ``causal``, N(i) = {j : j ≤ i + M - N}.

    With N targets and M sources ``causal`` aligns the ends: the last target sees every source. (The flag of
    ``F.scaled_dot_product_attention`` aligns the starts.) With ``batch`` each graph's tokens see one another only, and
    N and M are the graph's own.

    ``max_tokens=m`` fixes the largest length, so that weights can be counted: relations are j - (i + M - N), ascending
    (2m - 1 of them, m when causal), and there are m² pairs, of which a shorter call uses the leading block.

    Raises:
        ValueError: where a call has more than ``max_tokens`` tokens.

    Example::

        >>> from mpnn.neighbours import AllTokens
        >>> AllTokens(causal=True).edges(2, 3).source
        tensor([0, 1, 0, 1, 2])
    """

    axes = 1
    enumerates = True
    tiled = True

    def __init__(self, *, causal: bool = False, max_tokens: int | None = None) -> None:
        super().__init__()
        self.causal = self.counts_slots = bool(causal)
        self.complete = not causal
        self.max_tokens = None if max_tokens is None else positive("max_tokens", max_tokens)
        if max_tokens is not None:
            self.relations = max_tokens if causal else 2 * max_tokens - 1
            self.pairs = max_tokens**2

    def edges(self, targets: int, sources: int, *, rows: slice | None = None, tokens: Any = None) -> Edges:
        i = row_numbers(rows, targets, device_of(tokens))
        low, high, slot = extent(tokens, targets, sources, i)
        end = torch.minimum(high, slot + 1) if self.causal else high
        target, source, valid = spread(i, low, end, sources)
        start = 0 if rows is None else rows.indices(targets)[0]
        offset = source - slot[target - start]
        relation = index = None
        if self.max_tokens is not None:
            relation = (offset + self.max_tokens - 1).clamp(0, self.relations - 1)
            first_s, first_t = self._starts(tokens, low, i)
            local = i - first_t
            index = local[target - start] * self.max_tokens + (source - first_s[target - start])
            if valid is not None:
                index = index.clamp(0, self.max_tokens**2 - 1)
        return Edges(source, target, relation, offset[:, None], index, valid=valid).compact()

    def holds(self, target: Tensor, source: Tensor, targets: int, sources: int, tokens: Any = None) -> Tensor:
        low, high, slot = extent(tokens, targets, sources, target)
        return (source >= low) & (source < high) & (source <= slot if self.causal else source == source)

    def cover(self, targets: int, sources: int, tokens: Any = None) -> Cover:
        first, length, low, high, slot = sequences(tokens, targets, sources)
        return band(first, length, slot, low, high, right=0 if self.causal else None, tile=256)

    @staticmethod
    def _starts(tokens, low: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
        _, target = two(tokens)
        if target is None or target.batch is None:
            return low, torch.zeros_like(i)
        batch = target.batch.long()
        return low, torch.searchsorted(batch, batch[i])

    def check(self, targets: int, sources: int, tokens: Any) -> None:
        if self.max_tokens is None or compiling():
            return
        for kind, count, side in zip(("sources", "targets"), (sources, targets), two(tokens), strict=True):
            batch = None if side is None else side.batch
            longest = int(batch.bincount().max()) if batch is not None and batch.numel() else int(count)
            if longest > self.max_tokens:
                raise ValueError(f"expected at most max_tokens={self.max_tokens} {kind} for {self}, got {longest}")

    def pair_layout(self) -> Layout | None:
        return None if self.max_tokens is None else ((self.max_tokens,), (self.max_tokens,), ())

    def key(self) -> tuple:
        return self.causal, self.max_tokens

    def extra_repr(self) -> str:
        given = ["causal=True"] * self.causal + [f"max_tokens={self.max_tokens}"] * (self.max_tokens is not None)
        return ", ".join(given)
