"""What a kernel gets: the call, checked and cleaned, as tensors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from mpnn.checks import values, wide
from mpnn.edges import Edges, blocks_of
from mpnn.neighbours import Graph, Neighbours
from mpnn.neighbours.base import enumerate_edges, own_edges
from mpnn.pairs import Pairs
from mpnn.scores import at_pairs
from mpnn.segments import segment_softmax, segment_sum
from mpnn.slots import SameSet
from mpnn.spec import Spec
from mpnn.tokens.base import Tokens


@dataclasses.dataclass
class Call:
    """One call of a layer, checked and cleaned: all that a kernel reads."""

    neighbours: Neighbours
    weight: Any  # a Weight, or attend's given scores
    targets: int
    sources: int
    lead: tuple[int, ...]  # leading dimensions
    nodes: dict[
        str, Tensor
    ]  # tensors over tokens: x_source, x_target, value, query, key, positions_…, coordinates_…, score_bias
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
        if self.neighbours.degree(self.targets, self.sources) * self.targets <= edges_each:
            return None
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
        edges = own_edges(self.neighbours, edges, self.targets, self.sources, self.value.device)
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

    def scale(self, edges: Edges, slot: Tensor | None, keep: Tensor | None, first: int, rows: int) -> Tensor | None:
        """What multiplies the weights besides the rule: edge weights and degrees, (..., E, 1 or heads); None for 1."""
        factor = None
        if self.edge_weight is not None:
            factor = self.edge_weight if slot is None else self.edge_weight.index_select(-1, slot)
            factor = factor[..., None]
        if self.weight.normalise == "symmetric":
            root = self.inverse_root()
            norm = root.index_select(-2, edges.source) * root.index_select(-2, edges.target)
            factor = norm if factor is None else factor * norm
        if self.weight.normalise == "relation":
            norm = self._per_relation(edges, keep, first, rows)
            factor = norm if factor is None else factor * norm
        return factor

    def normalised(self, pairs: Pairs, slot: Tensor | None, first: int, rows: int) -> tuple[Tensor, Tensor | None]:
        """The weights of a block as they are used, before dropout, and which edges no mask removes."""
        keep = self.keep(pairs.edges)
        weight = self.per_edge(pairs)
        if self.weight.normalise == "softmax":
            return segment_softmax(weight, keep, pairs.target - first, rows), keep
        scale = self.scale(pairs.edges, slot, keep, first, rows)
        if scale is not None:
            weight = weight * scale.to(wide(weight.dtype))
        return (weight if keep is None else weight.masked_fill(~keep, 0)), keep

    def per_edge(self, pairs: Pairs) -> Tensor:
        """What the rule says of a block, checked: (..., E, heads) or (..., E, in·out/groups)."""
        rule = self.weight
        weight = rule.per_edge(pairs)
        if rule.heads is None:
            wanted, legend = rule.before * rule.after // rule.groups, "in·out/groups"
        else:
            wanted, legend = rule.heads, "heads"
        rows = pairs.count
        if not isinstance(weight, Tensor) or weight.ndim < 2 or weight.shape[-1] != wanted or weight.shape[-2] != rows:
            got = tuple(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
            name = "the network" if hasattr(rule, "network") else f"{type(rule).__name__}.per_edge"
            raise ValueError(f"expected {name} to return (..., E, {legend}) = (..., {rows}, {wanted}), got {got}")
        return weight

    def _per_relation(self, edges: Edges, keep: Tensor | None, first: int, rows: int) -> Tensor:
        count = self.neighbours.relations
        kind = (edges.target - first) * count + (0 if edges.relation is None else edges.relation)
        ones = torch.ones((), dtype=wide(self.value.dtype), device=kind.device)
        ones = ones.expand(edges.count, 1) if keep is None else keep.to(ones.dtype)
        total = segment_sum(ones, kind, rows * count)
        return 1 / total.index_select(-2, kind).clamp(min=1)

    def messages(self, pairs: Pairs, weight: Tensor) -> Tensor:
        """w_ij · value_j: (..., heads, E, D), or (..., E, C) with groups, in the accumulation's dtype."""
        return weigh(self.weight, pairs.at_source(self.value), weight, self.weight.edge_value(pairs))

    def inverse_root(self) -> Tensor:
        """1/√degree of each token, 0 where the degree is 0: (..., N, 1 or heads), made once a call."""
        if "inverse_root" not in self.nodes:
            degree = None
            for rows in self.blocks(None if torch.compiler.is_compiling() else 1 << 22) or (None,):
                edges, slot = self.block(rows)
                part = self.degree(edges, slot, self.keep(edges))
                degree = part if degree is None else degree + part
            assert degree is not None
            if self.edge_weight is not None:
                text = "expected degrees ≥ 0 for normalise='symmetric', which takes their square root; negative degree"
                values(degree >= 0, ValueError, text, degree)
            some = degree > 0
            self.nodes["inverse_root"] = torch.where(some, degree, 1).rsqrt() * some
        return self.nodes["inverse_root"]

    def degree(self, edges: Edges, slot: Tensor | None, keep: Tensor | None) -> Tensor:
        """Summed weights of the edges into each token: (..., N, 1 or heads)."""
        dtype = wide(self.value.dtype)
        weight = torch.ones(edges.count, 1, dtype=dtype, device=edges.source.device)
        if self.edge_weight is not None:
            weight = (self.edge_weight if slot is None else self.edge_weight.index_select(-1, slot))[..., None].to(
                dtype
            )
        if keep is not None:
            weight = torch.where(keep, weight, 0)
        return segment_sum(weight, edges.target, self.targets)

    def blank_targets(self, aggregate: Tensor) -> Tensor:
        """Zeros at masked targets, for kernels that do not read the mask edge by edge."""
        return aggregate if self.target_mask is None else aggregate.masked_fill(~self.target_mask[..., None], 0)

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


def weigh(rule: Any, value: Tensor, weight: Tensor, added: Tensor | None) -> Tensor:
    """w_ij · (value_j + added_ij) of values at the edges: (..., heads, E, D), or (..., E, C) with groups."""
    dtype = wide(value.dtype)
    if rule.groups is not None:
        value = value if added is None else value + added
        per_group = value.unflatten(-1, (rule.groups, -1))
        matrix = weight.unflatten(-1, (rule.groups, rule.before // rule.groups, rule.after // rule.groups))
        product = torch.einsum("...egi,...egio->...ego", per_group, matrix.to(value.dtype))
        return product.flatten(-2).to(dtype)
    if value.shape[-3] != rule.heads:
        value = value.repeat_interleave(rule.heads // value.shape[-3], -3)
    if added is not None:
        value = value + added.transpose(-3, -2)
    return weight.transpose(-2, -1)[..., None].to(dtype) * value.to(dtype)


class Kernel(Protocol):
    """A kernel module: its name, why it cannot run a call (in words), and the run."""

    name: str

    def unsupported(self, spec: Spec) -> list[str]: ...

    def run(self, call: Call, reference: Callable[[Call], Tensor]) -> Tensor: ...
