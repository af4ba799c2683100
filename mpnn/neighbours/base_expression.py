"""What every expression is, a set of pairs made of two rules, and what those are that keep some of the left one's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from mpnn.edges import Edges
from mpnn.listing import distinct_edges
from mpnn.neighbours.base import Neighbours


class Expression(Neighbours):
    """A set of pairs made of two rules; a ``Graph`` in one is built with its edges and loses its duplicates."""

    enumerates = True
    sign = ""

    def __init__(self, left: Neighbours, right: Neighbours) -> None:
        super().__init__()
        for rule in (left, right):
            if getattr(rule, "built", True) is False:
                raise ValueError(f"expected a Graph built with its edges in an expression, got {rule}")
        self.left, self.right = left, right
        both = (left, right)
        self.causal = self._causal()
        self.counts_slots = any(r.counts_slots for r in both)
        self.reads_tokens = any(r.reads_tokens for r in both)
        self.reads_grid, self.fixed_places = any(r.reads_grid for r in both), any(r.fixed_places for r in both)
        self.axes, self.relations = left.axes, left.relations

    def _causal(self) -> bool:
        return self.left.causal

    @property
    def foreseen(self) -> bool:
        return self.left.foreseen and self.right.foreseen

    @abstractmethod
    def edges(self, targets: int, sources: int, *, rows: slice | None = None, tokens: Any = None) -> Edges: ...

    def target_count(self, sources: int, tokens: Any = None) -> int | None:
        counts = [r.target_count(sources, tokens) for r in (self.left, self.right)]
        if None not in counts and counts[0] != counts[1]:
            raise ValueError(f"expected both sides of {self} to have one number of targets, got {counts}")
        return counts[0] if counts[0] is not None else counts[1]

    def centres(self, tokens: Any, device: torch.device) -> Tensor | None:
        found = (r.centres(tokens, device) for r in (self.left, self.right) if r.reads_grid)
        return next((c for c in found if c is not None), None)

    def check(self, targets: int, sources: int, tokens: Any) -> None:
        self.left.check(targets, sources, tokens)
        self.right.check(targets, sources, tokens)

    def versions(self) -> tuple:
        return (*self.left.versions(), *self.right.versions())

    def key(self) -> tuple:
        return self.left, self.right

    def state(self) -> Any:
        return self.revision, self.left.state(), self.right.state()

    def stamp(self) -> tuple:
        return type(self), self.left.stamp(), self.right.stamp()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("left", "right") and name in self._modules:
            raise AttributeError(f"an expression keeps its sides; make a new one of them to change {self!r}")
        super().__setattr__(name, value)

    def row_blocks(self, targets: int, sources: int, edges: int) -> Iterator[slice]:
        cuts = {0, targets}
        for rule in (self.left, self.right):
            cuts |= {r.start for r in rule.row_blocks(targets, sources, max(1, edges // 2))}
        return (slice(a, b) for a, b in pairwise(sorted(cuts)))

    def __repr__(self) -> str:
        left, right = (f"({r!r})" if isinstance(r, Expression) else repr(r) for r in (self.left, self.right))
        return f"{left} {self.sign} {right}"


class Filtered(Expression):
    """Some of the left rule's pairs, which keep their relation, offset and data."""

    def __init__(self, left: Neighbours, right: Neighbours) -> None:
        super().__init__(left, right)
        self.graph = left if hasattr(left, "built") else getattr(left, "graph", None)

    @property
    def pairs(self) -> int | None:  # type: ignore[override]
        return self.left.pairs

    @abstractmethod
    def _kept(self, edges: Edges, targets: int, sources: int, tokens: Any) -> Tensor: ...

    def edges(self, targets: int, sources: int, *, rows: slice | None = None, tokens: Any = None) -> Edges:
        made = distinct_edges(self.left, targets, sources, rows, tokens)
        kept = self._kept(made, targets, sources, tokens)
        made = Edges(made.source, made.target, made.relation, made.offset, made.index, valid=both(kept, made.valid))
        return made.compact()

    def pair_ids(self, edges: Edges, targets: int, sources: int) -> Tensor:
        return self.left.pair_ids(edges, targets, sources)

    def degree(self, targets: int, sources: int) -> int:
        return self.left.degree(targets, sources)

    def within(self, other: Neighbours) -> bool:
        return super().within(other) or self.left.within(other)


def both(a: Tensor, b: Tensor | None) -> Tensor:
    """Where both say yes; None says it everywhere."""
    return a if b is None else a & b
