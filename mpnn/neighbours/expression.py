"""Expressions: sets of pairs made of others by ``|``, ``&`` and ``-``."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from mpnn.cover import Cover
from mpnn.edges import Edges
from mpnn.listing import distinct_edges, joined_edges
from mpnn.neighbours.base import OPERATORS, Neighbours
from mpnn.neighbours.base_expression import Expression, Filtered, both


class Intersection(Filtered):
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


class Difference(Filtered):
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
        a = distinct_edges(self.left, targets, sources, rows, tokens)
        b = distinct_edges(self.right, targets, sources, rows, tokens)
        new = ~self.left.holds(b.target, b.source, targets, sources, tokens)
        if torch.compiler.is_compiling():
            b.valid = both(new, b.valid)
        else:
            b = b.take(new.nonzero().squeeze(-1))
        index = None
        if self.pairs is not None:
            ids = [rule.pair_ids(e, targets, sources) for rule, e in ((self.left, a), (self.right, b))]
            index = torch.cat([ids[0], ids[1] + (self.left.pairs or 0)])
        return joined_edges(a, b, self.left.relations, sources, self.axes > 0, index)

    def holds(self, target: Tensor, source: Tensor, targets: int, sources: int, tokens: Any = None) -> Tensor:
        given = (target, source, targets, sources, tokens)
        return self.left.holds(*given) | self.right.holds(*given)

    def degree(self, targets: int, sources: int) -> int:
        return min(sources, self.left.degree(targets, sources) + self.right.degree(targets, sources))


OPERATORS |= {"|": Union, "&": Intersection, "-": Difference}
