"""Pairs: what a weight rule may read about the edges of a block, gathered when read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

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

    Reading a field that the call does not have raises an AttributeError that says what to pass.
    """

    def __init__(
        self,
        edges: Edges,
        nodes: Mapping[str, Tensor],
        heads: int | None,
        value: Callable[[Tensor], Tensor],
        attr: Tensor | None,
        slot: Tensor | None,
        pair_ids: Callable[[Edges], Tensor],
    ) -> None:
        self.edges, self.nodes, self.heads = edges, nodes, heads
        self._value, self._attr, self._slot, self._pair_ids = value, attr, slot, pair_ids
        self.edge_projection: Tensor | None = None  # a rule's own projection of attr, kept for key and value

    @property
    def source(self) -> Tensor:
        return self.edges.source

    @property
    def target(self) -> Tensor:
        return self.edges.target

    @cached_property
    def relation(self) -> Tensor:
        return torch.zeros_like(self.edges.source) if self.edges.relation is None else self.edges.relation

    @cached_property
    def pair(self) -> Tensor:
        """The number of each edge's pair, where pairs are fixed."""
        return self._pair_ids(self.edges)

    def at_source(self, tokens: Tensor, dim: int = -2) -> Tensor:
        """Rows of a tensor over the source tokens: (..., M, C) → (..., E, C)."""
        return tokens.index_select(dim, self.edges.source)

    def at_target(self, tokens: Tensor, dim: int = -2) -> Tensor:
        """Rows of a tensor over the target tokens: (..., N, C) → (..., E, C)."""
        return tokens.index_select(dim, self.edges.target)

    def node(self, name: str) -> Tensor:
        """A tensor over the tokens."""
        if name not in self.nodes:
            reader = "read the target" if name == "x_target" else f"need {name}"
            raise ValueError(f"expected (x_source, x_target) as first argument for rules that {reader}, got x alone")
        return self.nodes[name]

    @cached_property
    def x_source(self) -> Tensor:
        return self.at_source(self.node("x_source"))

    @cached_property
    def x_target(self) -> Tensor:
        return self.at_target(self.node("x_target"))

    @cached_property
    def value_source(self) -> Tensor:
        if self.heads is None or "value" not in self.nodes:
            return self.x_source
        return self.at_source(self.nodes["value"]).transpose(-3, -2)

    @cached_property
    def value_target(self) -> Tensor:
        if self.heads is None or "value" not in self.nodes:
            return self.x_target
        if self.node("x_target") is self.nodes["x_source"]:
            return self.at_target(self.nodes["value"]).transpose(-3, -2)
        return self.at_target(self._value(self.node("x_target"))).transpose(-3, -2)

    def per_edge_row(self, rows: Tensor) -> Tensor:
        """Rows of a tensor over all edges: (..., E all, k) → (..., E, k)."""
        return rows if self._slot is None else rows.index_select(-2, self._slot)

    @cached_property
    def attr(self) -> Tensor:
        if self._attr is None:
            raise ValueError("expected edge_attr (..., E, k) at the call, since the weight rule reads attr, got None")
        return self.per_edge_row(self._attr)

    @property
    def has_attr(self) -> bool:
        """Whether the call has edge attributes."""
        return self._attr is not None

    @cached_property
    def offset(self) -> Tensor:
        if "coordinates_source" in self.nodes:
            place = self.at_source(self.nodes["coordinates_source"]) - self.at_target(self.node("coordinates_target"))
            return place
        if self.edges.offset is None:
            raise ValueError(
                "expected coordinates= at the call, since the weight rule reads offset and this neighbourhood has none, "
                "got None"
            )
        return self.edges.offset.to(self.node("x_source").dtype)

    def __len__(self) -> int:
        return len(self.edges)
