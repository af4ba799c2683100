"""Expressions: sets of pairs made of others by ``|``, ``&`` and ``-``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from mpnn.cover import Cover
from mpnn.edges import Edges
from mpnn.neighbours.base import OPERATORS, Neighbours, enumerate_edges, own_edges
from mpnn.slots import device_of


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


def _sorted(rule: Neighbours, targets: int, sources: int, rows: slice | None, tokens: Any) -> Edges:
    """A rule's distinct pairs by target and source; of duplicates the first stays."""
    made = enumerate_edges(rule, targets, sources, tokens, _device(tokens)) if rows is None else None
    if made is None:
        made = rule.edges(targets, sources, rows=rows, tokens=tokens)
        if not (rule.enumerates or hasattr(rule, "built")):  # a person's own may return more than it was asked for
            assert rows is not None
            made = own_edges(rule, made, targets, sources, _device(tokens), tokens)
            made = made.take(((made.target >= rows.start) & (made.target < rows.stop)).nonzero().squeeze(-1))
    if rule.distinct:
        return made
    key = made.target * max(1, sources) + made.source
    if made.valid is not None:
        key = key.masked_fill(~made.valid, -1)
    key, order = key.sort(stable=True)
    first = torch.ones_like(key, dtype=torch.bool)
    first[1:] = key[1:] != key[:-1]
    made = made.take(order)
    made.valid = first if made.valid is None else first & made.valid
    return made.compact()


def _device(tokens: Any) -> torch.device:
    return device_of(tokens) or torch.device("cpu")


class _Filtered(Expression):
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
        made = _sorted(self.left, targets, sources, rows, tokens)
        kept = self._kept(made, targets, sources, tokens)
        made = Edges(made.source, made.target, made.relation, made.offset, made.index, valid=_and(kept, made.valid))
        return made.compact()

    def pair_ids(self, edges: Edges, targets: int, sources: int) -> Tensor:
        return self.left.pair_ids(edges, targets, sources)

    def degree(self, targets: int, sources: int) -> int:
        return self.left.degree(targets, sources)

    def within(self, other: Neighbours) -> bool:
        return super().within(other) or self.left.within(other)


class Intersection(_Filtered):
    """``a & b``: the pairs of both, with ``a``'s relation, offset and data.

    Example::

        >>> from mpnn.neighbours import AllTokens, Blocks
        >>> (Blocks(2) & AllTokens(causal=True)).edges(4, 4).source
        tensor([0, 0, 1, 2, 2, 3])
    """

    sign = "&"

    def _causal(self) -> bool:
        return self.left.causal or self.right.causal

    @property
    def listed(self) -> bool:  # type: ignore[override]
        return self.left.listed or self.right.listed

    @property
    def tiled(self) -> bool:
        return self.left.tiled or self.right.tiled

    def _kept(self, edges: Edges, targets: int, sources: int, tokens: Any) -> Tensor:
        return self.right.holds(edges.target, edges.source, targets, sources, tokens)

    def holds(self, target: Tensor, source: Tensor, targets: int, sources: int, tokens: Any = None) -> Tensor:
        given = (target, source, targets, sources, tokens)
        return self.left.holds(*given) & self.right.holds(*given)

    def cover(self, targets: int, sources: int, tokens: Any = None) -> Cover:
        listed = [r for r in (self.left, self.right) if r.tiled and r.listed]
        rule = listed[0] if listed else self.left if self.left.tiled else self.right
        return rule.cover(targets, sources, tokens)

    def degree(self, targets: int, sources: int) -> int:
        return min(self.left.degree(targets, sources), self.right.degree(targets, sources))

    def within(self, other: Neighbours) -> bool:
        return super().within(other) or self.right.within(other)

    def alone(self) -> Neighbours:
        sides = (self.left, self.right), (self.right, self.left)
        inner = next((a for a, b in sides if a.distinct and a.within(b)), None)
        return self if inner is None else inner.alone()


class Difference(_Filtered):
    """``a - b``: the pairs of ``a`` that are none of ``b``'s, with ``a``'s relation, offset and data.

    Example::

        >>> from mpnn.neighbours import Window
        >>> (Window(1) - Window(0)).edges(3, 3).source
        tensor([1, 0, 2, 1])
    """

    sign = "-"

    @property
    def listed(self) -> bool:  # type: ignore[override]
        return self.left.listed

    @property
    def tiled(self) -> bool:
        return self.left.tiled

    def _kept(self, edges: Edges, targets: int, sources: int, tokens: Any) -> Tensor:
        return ~self.right.holds(edges.target, edges.source, targets, sources, tokens)

    def holds(self, target: Tensor, source: Tensor, targets: int, sources: int, tokens: Any = None) -> Tensor:
        given = (target, source, targets, sources, tokens)
        return self.left.holds(*given) & ~self.right.holds(*given)

    def cover(self, targets: int, sources: int, tokens: Any = None) -> Cover:
        return self.left.cover(targets, sources, tokens)


class Union(Expression):
    """``a | b``: the pairs of either; one in both belongs to ``a``. ``b``'s relations are numbered after ``a``'s.

    Longformer is ``Window(w) | Global(g)``, BigBird ``Blocks(b, halo=b) | Global(g) | Random(r, seed)``, the strided
    Sparse Transformer ``Window(s, 0) | Window(n, 0, dilation=s)``, Exphormer ``graph | Random(r, seed) | Global(g)``,
    GPS ``graph | AllTokens()``; Swin and HaloNet are one ``Blocks`` each.

    Source: BigBird (Zaheer et al., 2020), `arXiv:2007.14062 <https://arxiv.org/abs/2007.14062>`_; Sparse Transformer
    (Child et al., 2019), `arXiv:1904.10509 <https://arxiv.org/abs/1904.10509>`_; Exphormer (Shirzad et al., 2023),
    `arXiv:2303.06147 <https://arxiv.org/abs/2303.06147>`_; GPS (Rampášek et al., 2022), `arXiv:2205.12454
    <https://arxiv.org/abs/2205.12454>`_.

    Example::

        >>> from mpnn.neighbours import Global, Window
        >>> longformer = Window(1) | Global(1)
        >>> longformer
        Window(1, 1) | Global(1)
        >>> longformer.edges(4, 4).source
        tensor([0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 0, 2, 3])
    """

    sign = "|"

    def __init__(self, left: Neighbours, right: Neighbours) -> None:
        super().__init__(left, right)
        for rule in (left, right):
            graph = rule if hasattr(rule, "built") else getattr(rule, "graph", None)
            if graph is not None and graph.has_data:
                raise ValueError(
                    f"expected a Graph without attr, weight and loop_weight in {self!r}, whose other pairs have none; "
                    "pass edge_attr= or edge_weight= of all pairs at the call, by target and source"
                )
        self.axes = left.axes if left.axes == right.axes else 0
        self.relations = left.relations + right.relations
        fixed = left.pairs is not None and right.pairs is not None
        self.pairs = left.pairs + right.pairs if fixed else None  # type: ignore[operator]

    def _causal(self) -> bool:
        return self.left.causal and self.right.causal

    @property
    def listed(self) -> bool:  # type: ignore[override]
        return self.left.listed and self.right.listed

    @property
    def tiled(self) -> bool:
        return False

    def parts(self) -> list[Neighbours]:
        """Disjoint rules whose pairs are the union's; those that list their pairs come last, since it costs them least
        to leave out the others', and those that lie within others are left out."""
        if torch.compiler.is_compiling():
            return self._disjoint()
        state = self.state()
        found = self.__dict__.get("_parts_of")
        if found is None or found[0] != state:
            found = self.__dict__["_parts_of"] = (state, self._disjoint())
        return found[1]

    def _disjoint(self) -> list[Neighbours]:
        kept: list[Neighbours] = []
        for rule in sorted(self.operands(), key=lambda r: (not r.complete, r.listed, not r.tiled, not r.distinct)):
            if not any(rule.within(k) for k in kept):
                kept = [*(k for k in kept if not k.within(rule)), rule]
        first = kept[0] if kept[0].distinct or kept[0].complete else Intersection(kept[0], kept[0])  # a set
        others = accumulate(kept, Union)
        return [first, *(Difference(rule, other) for rule, other in zip(kept[1:], others, strict=False))]

    def alone(self) -> Neighbours:
        parts = self.parts()
        return parts[0].alone() if len(parts) == 1 else self

    def operands(self) -> list[Neighbours]:
        return [*self.left.operands(), *self.right.operands()]

    def within(self, other: Neighbours) -> bool:
        return all(rule.within(other) for rule in self.operands())

    def edges(self, targets: int, sources: int, *, rows: slice | None = None, tokens: Any = None) -> Edges:
        a = _sorted(self.left, targets, sources, rows, tokens)
        b = _sorted(self.right, targets, sources, rows, tokens)
        new = ~self.left.holds(b.target, b.source, targets, sources, tokens)
        if torch.compiler.is_compiling():
            b.valid = _and(new, b.valid)
        else:
            b = b.take(new.nonzero().squeeze(-1))
        kinds = [torch.zeros_like(e.source) if e.relation is None else e.relation for e in (a, b)]
        relation = torch.cat([kinds[0], kinds[1] + self.left.relations])
        offset = torch.cat([a.offset, b.offset]) if self.axes else None  # type: ignore[list-item]
        index = None
        if self.pairs is not None:
            ids = [r.pair_ids(e, targets, sources) for r, e in ((self.left, a), (self.right, b))]
            index = torch.cat([ids[0], ids[1] + (self.left.pairs or 0)])
        valid = None
        if a.valid is not None or b.valid is not None:
            valid = torch.cat(
                [torch.ones_like(e.source, dtype=torch.bool) if e.valid is None else e.valid for e in (a, b)]
            )
        target, source = torch.cat([a.target, b.target]), torch.cat([a.source, b.source])
        order = torch.argsort(target * max(1, sources) + source, stable=True)
        return Edges(source, target, relation, offset, index, valid=valid).take(order)

    def holds(self, target: Tensor, source: Tensor, targets: int, sources: int, tokens: Any = None) -> Tensor:
        given = (target, source, targets, sources, tokens)
        return self.left.holds(*given) | self.right.holds(*given)

    def degree(self, targets: int, sources: int) -> int:
        return min(sources, self.left.degree(targets, sources) + self.right.degree(targets, sources))


def _and(a: Tensor, b: Tensor | None) -> Tensor:
    return a if b is None else a & b


OPERATORS |= {"|": Union, "&": Intersection, "-": Difference}
