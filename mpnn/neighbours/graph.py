"""Graph: an explicit multiset of edges, given when built or at the call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mpnn.added_loops import add_loops, fill_loops
from mpnn.checks import compiling, integers, one_of, positive, tensor, values
from mpnn.edge_index import check_index, check_rows, read, sizes_of
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
        self.sizes = sizes_of(num_nodes, shape)
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
        given = Edges(source, target, relation, index=row)
        return given if self.self_loops is None else add_loops(given, targets, replace=self.self_loops == "replace")

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
        return fill_loops(edges, nodes, attr, weight, counted, self.loop_fill, self.loop_weight)

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
