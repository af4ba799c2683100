"""Pairs: what a weight rule may read about the edges of a block, gathered when read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from mpnn.edges import Edges


class Pairs:
    """The edges of one block of targets, with what stands at their two ends.

    Shapes (E edges of the block; leading dimensions where the tokens have them):
        source, target: int64 (E,), token numbers · relation: int64 (E,) · edges: the :class:`Edges`
        x_source, x_target: (..., E, C)
        value_source, value_target: (..., E, heads, D); with groups, or without ``value``, the x of that end
        attr: (..., E, k) · offset: (E, axes) or, from coordinates, (..., E, axes): source minus target

    How a field lies in memory is up to the kernel: ``reshape`` it where ``view`` would need one layout.

    Reading a field that the call does not have raises an AttributeError that says what to pass.
    """

    def __init__(
        self,
        edges: Edges | None,
        nodes: Mapping[str, Tensor],
        heads: int | None,
        value: Callable[[Tensor], Tensor],
        attr: Tensor | None,
        slot: Tensor | None,
        pair_ids: Callable[[Edges], Tensor],
    ) -> None:
        self._edges, self.nodes, self.heads = edges, nodes, heads
        self._project, self._edge_attr, self._slot, self._pair_ids = value, attr, slot, pair_ids
        self._read: dict[str, Tensor] = {}
        self.edge_projection: Tensor | None = None  # a rule's own projection of attr, kept for key and value

    def _once(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """Gathered when first read; functools.cached_property holds a lock, which torch.compile cannot trace."""
        if name not in self._read:
            self._read[name] = make()
        return self._read[name]

    @property
    def edges(self) -> Edges:
        assert self._edges is not None
        return self._edges

    @property
    def source(self) -> Tensor:
        return self.edges.source

    @property
    def target(self) -> Tensor:
        return self.edges.target

    @property
    def relation(self) -> Tensor:
        return torch.zeros_like(self.edges.source) if self.edges.relation is None else self.edges.relation

    @property
    def pair(self) -> Tensor:
        """The number of each edge's pair, where pairs are fixed."""
        return self._once("pair", lambda: self._pair_ids(self.edges))

    def at_source(self, tokens: Tensor, dim: int = -2) -> Tensor:
        """Rows of a tensor over the source tokens: (..., M, C) → (..., E, C)."""
        return tokens.index_select(dim, self.edges.source)

    def at_target(self, tokens: Tensor, dim: int = -2) -> Tensor:
        """Rows of a tensor over the target tokens: (..., N, C) → (..., E, C)."""
        return tokens.index_select(dim, self.edges.target)

    def products(self, query: Tensor, key: Tensor, added: Tensor | None = None) -> Tensor:
        """q_i · (k_j + added_ij) of (..., heads, N, D), (..., heads, M, D) and (..., E, heads, D): (..., E, heads)."""
        at_key = self.at_source(key)
        if added is not None:
            at_key = at_key + added.transpose(-3, -2).to(key.dtype)
        return (self.at_target(query) * at_key).sum(-1).transpose(-2, -1)

    def node(self, name: str) -> Tensor:
        """A tensor over the tokens."""
        if name not in self.nodes:
            reader = "read the target" if name == "x_target" else f"need {name}"
            raise ValueError(f"expected (x_source, x_target) as first argument for rules that {reader}, got x alone")
        return self.nodes[name]

    @property
    def x_source(self) -> Tensor:
        return self._once("x_source", lambda: self.at_source(self.node("x_source")))

    @property
    def x_target(self) -> Tensor:
        return self._once("x_target", lambda: self.at_target(self.node("x_target")))

    @property
    def value_source(self) -> Tensor:
        return self._once("value_source", self._value_source)

    def _value_source(self) -> Tensor:
        if self.heads is None or "value" not in self.nodes:
            return self.x_source
        return self.at_source(self.nodes["value"]).transpose(-3, -2)

    @property
    def value_target(self) -> Tensor:
        return self._once("value_target", self._value_target)

    def _value_target(self) -> Tensor:
        if self.heads is None or "value" not in self.nodes:
            return self.x_target
        if self.node("x_target") is self.nodes["x_source"]:
            return self.at_target(self.nodes["value"]).transpose(-3, -2)
        return self.at_target(self._project(self.node("x_target"))).transpose(-3, -2)

    def per_edge_row(self, rows: Tensor) -> Tensor:
        """Rows of a tensor over all edges: (..., E all, k) → (..., E, k)."""
        return rows if self._slot is None else rows.index_select(-2, self._slot)

    @property
    def attr(self) -> Tensor:
        return self._once("attr", self._attr)

    def _attr(self) -> Tensor:
        if self._edge_attr is None:
            raise ValueError("expected edge_attr (..., E, k) at the call, since the weight rule reads attr, got None")
        return self.per_edge_row(self._edge_attr)

    @property
    def offset(self) -> Tensor:
        return self._once("offset", self._offset)

    def _offset(self) -> Tensor:
        if "coordinates_source" in self.nodes:
            return self.at_source(self.nodes["coordinates_source"]) - self.at_target(self.node("coordinates_target"))
        if self.edges.offset is None:
            raise ValueError(
                "expected coordinates= at the call, since the weight rule reads offset and these neighbours have none, "
                "got None"
            )
        return self.edges.offset.to(self.node("x_source").dtype)

    @property
    def count(self) -> int:
        """How many edges there are, see :class:`~mpnn.edges.Edges`."""
        return self.edges.count

    def __len__(self) -> int:
        return len(self.edges)
