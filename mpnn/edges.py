"""Edges: the pairs of a neighbourhood, and their order by target and by source."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mpnn.memo import lasting, outside


class Rows(NamedTuple):
    """Edges grouped by one of their ends: row r holds ``order[start[r]:start[r + 1]]``."""

    order: Tensor  # int64 (E,): the edges, stably sorted by row
    start: Tensor  # int64 (rows + 1,)


class Edges:
    """The pairs of a neighbourhood as parallel tensors.

    ``source``, ``target`` int64 (E,) · ``relation`` int64 (E,) or None (all 0) · ``offset`` (E, axes) from the target
    to the source, or None · ``index`` int64 (E,): a graph's row in the caller's ``edge_index`` (-1 for an added loop),
    elsewhere the pair's number, or None · ``valid`` bool (E,): rows that are no pair. Only code traced by
    torch.compile uses ``valid``, where the number of edges may not depend on values.
    """

    def __init__(
        self,
        source: Tensor,
        target: Tensor,
        relation: Tensor | None = None,
        offset: Tensor | None = None,
        index: Tensor | None = None,
        *,
        valid: Tensor | None = None,
    ) -> None:
        self.source, self.target, self.relation = source, target, relation
        self.offset, self.index, self.valid = offset, index, valid
        self.cache: dict[Any, Any] = {}  # what kernels derive from these edges lives as long as they do

    @property
    def count(self) -> int:
        """How many rows there are; ``len()`` would make a plain number of a size that torch.export keeps open."""
        return self.source.shape[0]

    def __len__(self) -> int:
        return self.source.shape[0]

    def take(self, rows: Tensor) -> Edges:
        """The edges at the given rows (indices or a bool mask)."""
        fields = (self.relation, self.offset, self.index)
        picked = [None if t is None else t[rows] for t in fields]
        valid = None if self.valid is None else self.valid[rows]
        return Edges(self.source[rows], self.target[rows], *picked, valid=valid)

    @staticmethod
    def joined(parts: list[Edges]) -> Edges:
        """The edges of several blocks as one list."""
        names = ("source", "target", "relation", "offset", "index")
        fields = [[getattr(p, n) for p in parts] for n in names]
        return Edges(*(None if f[0] is None else torch.cat(f) for f in fields))  # type: ignore[arg-type]

    def compact(self) -> Edges:
        """Without the rows that are no pair; unchanged while compiling."""
        if self.valid is None or torch.compiler.is_compiling():
            return self
        kept = self.take(self.valid.nonzero().squeeze(-1))
        kept.valid = None
        return kept

    def keys(self, sources: int) -> Tensor:
        """The pairs as sorted numbers target · sources + source, made once; a traced row that is no pair is -1."""
        if ("keys", sources) not in self.cache:
            with outside() if lasting(self.source) else nullcontext():
                keys = self.target * max(1, sources) + self.source
                keys = keys if self.valid is None else keys.masked_fill(~self.valid, -1)
                self.cache["keys", sources] = keys.sort().values
        return self.cache["keys", sources]

    def rows(self, by: str, count: int) -> Rows:
        """The edges grouped by "target" or "source", made once."""
        key = ("rows", by, count)
        if key not in self.cache:
            ends: Tensor = getattr(self, by)
            with outside() if lasting(ends) else nullcontext():
                order = torch.argsort(ends, stable=True)
                start = torch.nn.functional.pad(torch.bincount(ends, minlength=count).cumsum(0), (1, 0))
            self.cache[key] = Rows(order, start)
        return self.cache[key]

    def __repr__(self) -> str:
        return f"Edges({len(self)} edges)"


def blocks_of(start: Tensor, edges: int) -> list[slice]:
    """Slices of rows of about ``edges`` edges each, from the row starts."""
    starts = start.cpu()
    cuts, row, rows = [], 0, starts.shape[0] - 1
    while row < rows:
        end = int(torch.searchsorted(starts, starts[row] + max(edges, 1), right=True)) - 1
        end = min(max(end, row + 1), rows)
        cuts.append(slice(row, end))
        row = end
    return cuts
