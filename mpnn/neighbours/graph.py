"""Graph: an explicit multiset of edges, given when built or at the call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mpnn.checks import compiling, integers, one_of, positive, tensor, values, wide
from mpnn.edges import Edges, blocks_of
from mpnn.memo import derived, outside
from mpnn.neighbours.base import Neighbours


class Graph(Neighbours):
    """The sources of a target are those of its edges: N(i) = {j : (j, i) an edge}, with multiplicity.

    ``edge_index[0]`` is the source and ``edge_index[1]`` the target (PyG); a sparse matrix is ``A[target, source]`` and
    its values are the edge weights. Duplicate edges count twice. Without ``edge_index`` the object is the rule alone,
    and every call of the layer brings its edges.

    Shapes: ``edge_index`` (2, E) int32 or int64 · ``attr`` (E, k) · ``type`` (E,) integers below ``relations`` ·
    ``weight`` (E,).

    Args:
        num_nodes: how many nodes, or (sources, targets); by default the call's tokens tell.
        self_loops: None; "add" adds a loop where a node has none (GCN); "replace" removes loops and adds one each
        (GAT).
        loop_fill: an added loop's attributes: "mean" of the node's remaining incoming ones, or a number.
        loop_weight: an added loop's edge weight.
        relations: the number of edge types.

    Raises:
        TypeError, IndexError, ValueError: for indices that are no integers, out of range, or of another shape; for data
            whose rows are not the edges; for loops with several relations or between two node sets.

    Source: ``torch_geometric.utils.add_remaining_self_loops``.

    Example::

        >>> import torch
        >>> from mpnn.neighbours import Graph
        >>> Graph(torch.tensor([[0, 1], [1, 2]]), 3, self_loops="add").edges(3, 3).target
        tensor([1, 2, 0, 1, 2])
    """

    listed = True
    edge_index: Tensor
    edge_attr: Tensor | None
    edge_type: Tensor | None
    edge_weight: Tensor | None

    def __init__(  # type: ignore[no-untyped-def]
        self, edge_index=None, num_nodes=None, *, attr=None, type=None, weight=None, self_loops=None, loop_fill="mean",
        loop_weight=1.0, relations=1,
    ) -> None:  # fmt: skip
        super().__init__()
        one_of("self_loops", self_loops, (None, "add", "replace"))
        if not (loop_fill == "mean" or isinstance(loop_fill, int | float)):
            raise ValueError(f"expected loop_fill to be 'mean' or a number, got {loop_fill!r}")
        if self_loops is None and (loop_fill != "mean" or loop_weight != 1.0):
            raise ValueError("loop_fill and loop_weight would be ignored without self_loops; pass 'add' or 'replace'")
        self.relations = positive("relations", relations)
        if self_loops and self.relations > 1:
            raise ValueError(
                f"self_loops={self_loops!r} is refused with several relations, got {relations}; add the loops yourself"
            )
        self.self_loops, self.loop_fill, self.loop_weight = self_loops, loop_fill, float(loop_weight)
        if edge_index is None and not (num_nodes is None and attr is None and type is None and weight is None):
            raise ValueError(
                "expected edge_index= with num_nodes=, attr=, type= or weight=, got None; or pass them at the call"
            )
        index, values_, shape = read(edge_index) if edge_index is not None else (None, None, None)
        if values_ is not None and weight is not None:
            raise ValueError("expected one source of edge weights, got weight= and a sparse matrix with values")
        self.sizes = _sizes(num_nodes, shape)
        weight = values_ if weight is None else weight
        given = {"edge_index": index, "edge_attr": attr, "edge_type": type, "edge_weight": weight}
        for name, value in given.items():
            tensor(name.removeprefix("edge_"), value, "with one row for each edge")
            self.register_buffer(name, value, persistent=False)
        self._linked: dict[str, Tensor] = {}
        if index is not None:
            check_rows(attr, type, self.edge_weight, index.shape[1], ("attr", "type", "weight"))
            if self.sizes is not None:
                self.link(self.edge_index, self.edge_type, self.sizes[1], self.sizes[0])
            if self_loops and self.sizes is not None and self.sizes[0] != self.sizes[1]:
                raise ValueError(
                    f"self_loops={self_loops!r} is refused between two node sets, got num_nodes={num_nodes}"
                )

    @property
    def built(self) -> bool:
        """Whether the edges are part of the rule."""
        return self.edge_index is not None

    @property
    def pairs(self) -> int | None:  # type: ignore[override]
        return len(self._pair_keys()) if self.built else None

    def edges(self, targets: int, sources: int, *, rows: slice | None = None, tokens: Any = None) -> Edges:
        if not self.built:
            raise ValueError(f"expected edge_index at the call, since {self} was built without edges, got None")
        linked = self.link(self.edge_index, self.edge_type, targets, sources)
        if rows is None:
            return linked
        order, start = linked.rows("target", targets)
        first, stop, _ = rows.indices(targets)
        return linked.take(order[start[first] : start[max(stop, first)]])

    def link(self, edge_index: Tensor, edge_type: Tensor | None, targets: int, sources: int) -> Edges:
        """The edges with this rule's loops, checked; made once for an ``edge_index`` as long as nobody writes to it."""
        key = ("link", self.self_loops, self.relations, targets, sources)
        if compiling():
            return self._link(edge_index, edge_type, targets, sources)
        return derived(lambda: self._link(edge_index, edge_type, targets, sources), key, edge_index, edge_type)

    def _link(self, edge_index: Tensor, edge_type: Tensor | None, targets: int, sources: int) -> Edges:
        check_index(edge_index, targets, sources)
        relation = None
        if edge_type is not None:
            integers("edge_type", edge_type)
            relation = edge_type.long().clone()
            values(
                (relation >= 0) & (relation < self.relations),
                IndexError,
                f"expected edge_type in 0 … {self.relations - 1}",
                relation,
            )
        source, target = (
            edge_index[0].long().clone(),
            edge_index[1].long().clone(),
        )  # views would keep the key of the cache alive
        row = torch.arange(source.shape[0], device=source.device)
        if self.self_loops is None:
            return Edges(source, target, relation, index=row)
        loop = torch.arange(targets, device=source.device)
        is_loop = source == target
        if self.self_loops == "replace":
            kept, wanted = ~is_loop, torch.ones_like(loop, dtype=torch.bool)
        else:
            has = torch.zeros(targets, dtype=torch.int64, device=source.device).index_add(0, target, is_loop.long())
            kept, wanted = torch.ones_like(is_loop), has == 0
        ends = torch.cat([source, loop]), torch.cat([target, loop])
        relation = None if relation is None else torch.cat([relation, torch.zeros_like(loop)])
        index, valid = torch.cat([row, torch.full_like(loop, -1)]), torch.cat([kept, wanted])
        return Edges(*ends, relation, index=index, valid=valid).compact()

    @property
    def has_data(self) -> bool:
        """Whether edges, or the loops that are added to them, have attributes or weights."""
        loops = self.self_loops is not None and self.loop_weight != 1
        return loops or self.edge_attr is not None or self.edge_weight is not None

    def weights(self) -> Tensor | None:
        """The weights of a built graph's edges; ones where only its added loops weigh more or less."""
        if self.edge_weight is None and self.self_loops is not None and self.loop_weight != 1:
            return torch.ones(self.edge_index.shape[1], device=self.edge_index.device)
        return self.edge_weight

    def pick(
        self, edges: Edges, nodes: int, attr: Tensor | None, weight: Tensor | None, counted: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """This graph's data, one row for each of its edges, at some of them."""
        if self.self_loops is not None:
            return self.fill(edges, nodes, attr, weight, counted)
        assert edges.index is not None
        attr = None if attr is None else attr.index_select(-2, edges.index)
        return attr, None if weight is None else weight.index_select(-1, edges.index)

    def fill(
        self, edges: Edges, nodes: int, attr: Tensor | None, weight: Tensor | None, counted: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Edge attributes and weights for the linked edges: the caller's rows, then those of the added loops.

        ``counted``: bool (..., E), edges that no mask removes; the mean of a node is over these.
        """
        if self.self_loops is None:
            return attr, weight
        assert edges.index is not None
        added, row = edges.index < 0, edges.index.clamp(min=0)
        if weight is not None:
            own = nn.functional.pad(weight, (0, 1), value=self.loop_weight)  # the last column is an added loop's
            weight = own.index_select(-1, torch.where(added, weight.shape[-1], row))
        if attr is not None:
            own = nn.functional.pad(attr, (0, 0, 0, 1), value=0.0 if self.loop_fill == "mean" else self.loop_fill)
            attr = own.index_select(-2, torch.where(added, attr.shape[-2], row))
            if self.loop_fill == "mean":
                attr = torch.where(added[:, None], self._mean(edges, nodes, attr, ~added, counted), attr)
        return attr, weight

    @staticmethod
    def _mean(edges: Edges, nodes: int, attr: Tensor, given: Tensor, counted: Tensor | None) -> Tensor:
        """For each edge, the mean attribute over the given edges into its target."""
        given = given if edges.valid is None else given & edges.valid
        share = (given if counted is None else given & counted).to(wide(attr.dtype))[..., None]
        summands = share * attr
        total = summands.new_zeros(*summands.shape[:-2], nodes, attr.shape[-1]).index_add(-2, edges.target, summands)
        number = share.new_zeros(*share.shape[:-2], nodes, 1).index_add(-2, edges.target, share)
        return (total / number.clamp(min=1)).to(attr.dtype).index_select(-2, edges.target)

    def check(self, targets: int, sources: int, tokens: Any) -> None:
        if self.sizes is not None and self.sizes != (sources, targets):
            raise ValueError(
                f"expected {self.sizes[0]} source and {self.sizes[1]} target nodes for {self}, "
                f"got {int(sources)} and {int(targets)}"
            )

    def versions(self) -> tuple:
        held = [t for t in self._buffers.values() if t is not None]
        # an inference tensor does not count what is written to it: no two looks at it are known to see the same
        return tuple([(id(t), object() if t.is_inference() else t._version, t.requires_grad) for t in held])

    def state(self) -> Any:
        return self.revision, self.versions()

    def row_blocks(self, targets: int, sources: int, edges: int) -> Iterator[slice]:
        start = self.edges(targets, sources).rows("target", targets).start
        return iter(blocks_of(start, edges))

    def _pair_keys(self) -> Tensor:
        if "pairs" not in self._linked:
            sources, targets = self.sizes or (int(self.edge_index.max()) + 1 if self.edge_index.numel() else 0,) * 2
            linked = self.link(self.edge_index, self.edge_type, targets, sources)
            with outside():
                self._linked["pairs"] = torch.unique(linked.target * (1 << 31) + linked.source)
        return self._linked["pairs"]

    def pair_ids(self, edges: Edges, targets: int, sources: int) -> Tensor:
        """Pairs are numbered by target, then source; duplicates share a number."""
        keys = self._pair_keys()
        return torch.searchsorted(keys.to(edges.source.device), edges.target * (1 << 31) + edges.source)

    def _apply(self, fn, recurse=True):
        self._linked.clear()
        return super()._apply(fn, recurse)

    def extra_repr(self) -> str:
        edges = [f"{self.edge_index.shape[1]} edges"] if self.built else []
        nodes = [f"num_nodes={self.sizes}"] if self.sizes else []
        loops = [f"self_loops={self.self_loops!r}"] if self.self_loops else []
        return ", ".join(edges + nodes + loops + [f"relations={self.relations}"] * (self.relations > 1))


def _sizes(num_nodes: Any, shape: tuple[int, int] | None) -> tuple[int, int] | None:
    """(sources, targets), from num_nodes and from a sparse matrix."""
    if num_nodes is None:
        return shape
    pair = num_nodes if isinstance(num_nodes, tuple | list) else (num_nodes, num_nodes)
    if len(pair) != 2:
        raise ValueError(f"expected num_nodes to be an int or (sources, targets), got {num_nodes!r}")
    sizes = positive("num_nodes", pair[0], 0), positive("num_nodes", pair[1], 0)
    if shape is not None and sizes != shape:
        raise ValueError(f"expected num_nodes={shape} (sources, targets), as the sparse matrix's, got {num_nodes!r}")
    return sizes


def read(edge_index: Any) -> tuple[Tensor, Tensor | None, tuple[int, int] | None]:
    """(edge_index (2, E), edge weights or None, (sources, targets) or None) of whatever PyG and torch call a graph."""
    if not isinstance(edge_index, Tensor):
        raise TypeError(
            "expected edge_index to be a tensor (2, E), a Graph, an EdgeIndex or a sparse matrix, "
            f"got {type(edge_index).__name__}"
        )
    if edge_index.layout != torch.strided:
        coo = edge_index.to_sparse_coo().coalesce()
        if coo.ndim != 2:
            raise ValueError(f"expected a sparse matrix A[target, source] of 2 dimensions, got {tuple(coo.shape)}")
        return coo.indices().flip(0).contiguous(), coo.values(), (coo.shape[1], coo.shape[0])
    if type(edge_index) is not Tensor and hasattr(edge_index, "as_tensor"):  # PyG's EdgeIndex
        plain = edge_index.as_tensor()
        plain = plain if edge_index.is_contiguous() else plain.contiguous()
        return plain, getattr(edge_index, "_value", None), None
    return edge_index, None, None


class EdgeIndexError(ValueError, IndexError):
    """An ``edge_index`` of another shape than (2, E): a wrong value, and no index."""


def check_index(edge_index: Tensor, targets: int, sources: int) -> None:
    """Refuse what is no (2, E) integer index of existing tokens."""
    integers("edge_index", edge_index)
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        swapped = "; pass edge_index.t()" if edge_index.ndim == 2 and edge_index.shape[1] == 2 else ""
        raise EdgeIndexError(f"expected edge_index of shape (2, E), got {tuple(edge_index.shape)}{swapped}")
    for row, side, count in ((0, "source", sources), (1, "target", targets)):
        ends = edge_index[row]
        # a number in the traced text would compile anew for every number of tokens
        limit = "the number of tokens - 1" if compiling() else count - 1
        text = f"expected edge_index[{row}] ({side}) in 0 … {limit}"
        values((ends >= 0) & (ends < count), IndexError, text, ends)


def check_rows(
    attr: Tensor | None, type: Tensor | None, weight: Tensor | None, edges: int, names: tuple[str, str, str]
) -> None:
    """Refuse edge data whose rows are not the edges."""
    for name, rows, axis in zip(names, (attr, type, weight), (-2, -1, -1), strict=True):
        if rows is not None and (rows.ndim < -axis or rows.shape[axis] != edges):
            raise ValueError(
                f"expected {name} with one row for each of {int(edges)} edges, got shape {tuple(rows.shape)}"
            )
