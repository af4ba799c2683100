"""The call of a layer, checked and cleaned, as tensors: what a kernel gets."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpnn.edges import Edges, blocks_of
from mpnn.listing import enumerate_edges, own_edges
from mpnn.neighbours import Graph, Neighbours
from mpnn.pairs import Pairs
from mpnn.scores import at_pairs
from mpnn.slots import SameSet, extent
from mpnn.tokens.base import Tokens


@dataclasses.dataclass
class Call:
    """One call of a layer, checked and cleaned: all that a kernel reads."""

    neighbours: Neighbours
    weight: Any  # a Weight, or attend's given scores
    targets: int
    sources: int
    lead: tuple[int, ...]  # leading dimensions
    # tensors over tokens: x_source, x_target, value, query, key, positions_…, coordinates_…, score_bias
    nodes: dict[str, Tensor]
    tokens: tuple[Tokens, Tokens | None]  # (source, target), for edges()
    explicit: Edges | None = None  # the list of edges, where the call has one
    attr: Tensor | None = None
    edge_weight: Tensor | None = None
    source_mask: Tensor | None = None
    target_mask: Tensor | None = None
    pair_mask: Tensor | None = None
    dropout: float = 0.0
    constants: dict[str, Tensor] = dataclasses.field(default_factory=dict)  # positions and coordinates
    centres: Tensor | None = None  # the source that stands for each target, where the rule fixes targets
    one_set: bool = False  # two tokens, keys and queries, of one set
    transformed: bool = False  # inside a functional transform
    expression: str | None = None  # the class of the expression that ``neighbours`` stand for
    bias: Tensor | None = None  # offered to kernels that add it on the way; None once taken

    def again(self) -> Call:
        """The same call, to be given other tensors."""
        new = object.__new__(Call)
        new.__dict__ = self.__dict__.copy()
        return new

    def take_bias(self, flat: bool = False) -> Tensor | None:
        """The layer's bias, if this kernel may add it; the layer then does not."""
        bias, self.bias = self.bias, None
        if bias is None or not flat:
            return bias
        return bias.reshape(-1) if bias.ndim > 1 else bias.repeat(self.targets)

    @property
    def value(self) -> Tensor:
        """The tensor whose rows are sent: (..., heads, M, D), or (..., M, C) with groups."""
        return self.nodes["value"]

    @property
    def target_tokens(self) -> Any:
        """The tokens as ``Neighbours.edges`` takes them."""
        source, target = self.tokens
        if target is None or target is source:
            return source
        return SameSet(self.tokens) if self.one_set else self.tokens

    def all_edges(self) -> Edges:
        """Every edge of the call."""
        if self.explicit is None:
            self.explicit = enumerate_edges(
                self.neighbours, self.targets, self.sources, self.target_tokens, self.tokens[0].x.device
            )
        return self.explicit

    def blocks(self, edges_each: int | None) -> list[slice] | None:
        """Targets of blocks of about ``edges_each`` edges; None where one block holds all."""
        if edges_each is None or (self.explicit is not None and self.explicit.count <= edges_each):
            return None
        if self.explicit is not None:
            return blocks_of(self.explicit.rows("target", self.targets).start, edges_each)
        degree = self.neighbours.degree(self.targets, self.sources)
        if degree * self.targets <= edges_each:
            return None
        batch = self.tokens[0].batch
        if batch is not None:  # a target hears no more than its own graph
            rows = torch.arange(self.targets, device=batch.device)
            low, high, _ = extent(self.target_tokens, self.targets, self.sources, rows)
            start = torch.nn.functional.pad((high - low).clamp(max=degree).cumsum(0), (1, 0))
            blocks = blocks_of(start, edges_each)
            return blocks if len(blocks) > 1 else None
        return list(self.neighbours.row_blocks(self.targets, self.sources, edges_each))

    def block(self, rows: slice | None) -> tuple[Edges, Tensor | None]:
        """The edges into some targets, and their rows in the edge data (None: all of it in order)."""
        if rows is None:
            return self.all_edges(), None
        if self.explicit is not None:
            order, start = self.explicit.rows("target", self.targets)
            slot = order[start[rows.start] : start[rows.stop]]
            return self.explicit.take(slot), slot
        made = self.neighbours.edges(self.targets, self.sources, rows=rows, tokens=self.target_tokens)
        return self._inside(made, rows), None

    def _inside(self, edges: Edges, rows: slice) -> Edges:
        """A person's own rule may return more than the rows it was asked for."""
        if self.neighbours.enumerates or isinstance(self.neighbours, Graph):
            return edges
        edges = own_edges(self.neighbours, edges, self.targets, self.sources, self.value.device, self.target_tokens)
        inside = (edges.target >= rows.start) & (edges.target < rows.stop)
        return edges if bool(inside.all()) else edges.take(inside.nonzero().squeeze(-1))

    def pairs(self, edges: Edges, slot: Tensor | None) -> Pairs:
        """The view of a block that the weight rule reads."""
        ids: Callable[[Edges], Tensor] = lambda e: self.neighbours.pair_ids(e, self.targets, self.sources)  # noqa: E731
        return Pairs(edges, self.nodes, self.weight.heads, self.weight.project, self.attr, slot, ids)

    def keep(self, edges: Edges) -> Tensor | None:
        """Which edges no mask removes: bool (..., E, 1 or heads); None where all stay."""
        kept = None if edges.valid is None else edges.valid[:, None]
        for mask, ends in ((self.source_mask, edges.source), (self.target_mask, edges.target)):
            if mask is not None:
                at = mask.index_select(-1, ends)[..., None]
                kept = at if kept is None else kept & at
        if self.pair_mask is not None:
            at = at_pairs(self.pair_mask, edges.target, edges.source)
            kept = at if kept is None else kept & at
        return kept

    def blank_targets(self, aggregate: Tensor) -> Tensor:
        """Zeros at masked targets, for kernels that do not read the mask edge by edge."""
        return aggregate if self.target_mask is None else aggregate.masked_fill(~self.target_mask[..., None], 0)

    @property
    def masked(self) -> bool:
        """Whether a mask may remove edges."""
        return self.source_mask is not None or self.target_mask is not None or self.pair_mask is not None

    @property
    def width(self) -> int:
        """Channels of the aggregate."""
        if self.weight.groups is not None:
            return self.weight.after
        return self.weight.heads * self.value.shape[-1]

    @property
    def entries(self) -> int:
        """Number of batch entries."""
        return math.prod(self.lead)
