"""Small graphs as tiles: the ranges of nodes that no edge leaves, each padded to one of a few widths.

A cut stands before a node where no edge crosses; between two cuts are one or more whole graphs, so that a batch of
graphs in the order of its nodes (PyG's) falls into at least as many parts as ``batch`` would tell, which need not be
given. Widths are multiples of 8, four to a doubling: a graph is padded by a quarter at most, or to 8 nodes, so that one
large graph pads no other and Σ width² stays near Σ n², and yet there are few shapes.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mpnn.edges import Edges
from mpnn.memo import lasting, outside

# 8, 16, … 64, then 80, 96, 112, 128, 160, …
WIDTHS = [8 * i for i in range(1, 9)] + [part << e for e in range(4, 29) for part in (5, 6, 7, 8)]


class Parts(NamedTuple):
    """The parts between cuts: ``of`` (N,) a node's part · ``first``, ``width`` (parts,): its first node, and how many
    rows it is padded to, 0 where it has no edge."""

    of: Tensor
    first: Tensor
    width: Tensor


class Bucket(NamedTuple):
    """Graphs of one width: rows ``first_row`` …, pairs ``first_pair`` …, of all buckets side by side."""

    graphs: int
    width: int
    first_row: int
    first_pair: int


class SmallGraphs:
    """Where nodes and edges of small graphs stand, once each graph is padded to the width of its bucket.

    ``rows`` (R,): the node in each row, the graph's first one in an empty row · ``home`` (R,): where a row goes back
    to, N from an empty one · ``outside``: the nodes in no graph, or None · ``at`` (E,): each edge's pair among all P
    pairs (row, column) · ``count`` (P,): edges of a pair, where some are parallel, else None.
    """

    def __init__(self, edges: Edges, nodes: int) -> None:
        parts = parts_of(edges, nodes)
        used = (parts.width > 0).nonzero().squeeze(-1)
        used = used[torch.argsort(parts.width[used], stable=True)]
        width = parts.width[used]
        widths, counts = (t.tolist() for t in torch.unique_consecutive(width, return_counts=True))
        self.buckets: list[Bucket] = []
        row = pair = 0
        for w, graphs in zip(widths, counts, strict=True):
            self.buckets.append(Bucket(graphs, w, row, pair))
            row, pair = row + graphs * w, pair + graphs * w * w
        self.pairs = pair
        first_row, first_pair = torch.zeros_like(parts.first), torch.zeros_like(parts.first)
        first_row[used], first_pair[used] = width.cumsum(0) - width, (width * width).cumsum(0) - width * width
        node, part = torch.arange(nodes, device=parts.of.device), parts.of
        inside = parts.width[part] > 0
        outside = node[~inside]
        self.outside = outside if len(outside) else None
        node = node[inside]
        place = first_row[part[node]] + node - parts.first[part[node]]
        self.rows = parts.first[used].repeat_interleave(width, output_size=row).index_copy(0, place, node)
        self.home = torch.full_like(self.rows, nodes).index_copy(0, place, node)
        part = part[edges.target]
        inner = edges.target - parts.first[part], edges.source - parts.first[part]
        self.at = first_pair[part] + inner[0] * parts.width[part] + inner[1]
        count = torch.bincount(self.at, minlength=pair)
        self.count = count if bool((count > 1).any()) else None
        self.cache: dict[Any, Any] = {}

    @staticmethod
    def of(edges: Edges, nodes: int) -> SmallGraphs:
        """The graphs of these edges, found once and kept with them."""
        return _kept(edges, ("small graphs", nodes), lambda: SmallGraphs(edges, nodes))

    def nodes(self, dtype: torch.dtype, value: float, *shape: int) -> Tensor:
        """(N + 1, ...) to be filled at the ``home`` of every row, with the value for the nodes in no graph."""
        total = torch.empty(shape, dtype=dtype, device=self.rows.device)
        return total if self.outside is None else total.index_fill_(0, self.outside, value)

    def added(self, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        """What is added to the scores of all pairs, (…, P): the bias at the edges (…, E), -inf where there is none.

        Parallel edges have one score and count as often as they are, so that they are one pair with the sum of their
        weights: log Σ exp(bias), or the log of their number.
        """
        if bias is None:
            if dtype not in self.cache:
                with outside():
                    count = torch.bincount(self.at, minlength=self.pairs) if self.count is None else self.count
                    self.cache[dtype] = count.to(dtype).log_()
            return self.cache[dtype]
        bias = bias.to(dtype)
        at, size = self.at.expand_as(bias), (*bias.shape[:-1], self.pairs)
        top = bias.new_full(size, -torch.inf)
        if self.count is None:
            return top.scatter_(-1, at, bias)
        top.scatter_reduce_(-1, at, bias, "amax")
        finite = top.masked_fill(top == -torch.inf, 0)
        total = bias.new_zeros(size).index_add_(-1, self.at, (bias - finite.gather(-1, at)).exp())
        return finite + total.log()


def padded_pairs(edges: Edges, nodes: int) -> int:
    """How many pairs the graphs have once padded, Σ width²; known without the layout."""
    return _kept(edges, ("padded pairs", nodes), lambda: int(parts_of(edges, nodes).width.square().sum()))


def parts_of(edges: Edges, nodes: int) -> Parts:
    """The parts that no edge leaves, from the number of edges over each cut."""
    return _kept(edges, ("parts", nodes), lambda: _parts(edges, nodes))


def _parts(edges: Edges, nodes: int) -> Parts:
    low, high = torch.minimum(edges.source, edges.target), torch.maximum(edges.source, edges.target)
    opened = torch.bincount(low, minlength=nodes) - torch.bincount(high, minlength=nodes)
    over = torch.nn.functional.pad(opened.cumsum(0), (1, 0))[:-1]  # edges over the cut before each node
    first = (over == 0).nonzero().squeeze(-1)
    part = (over == 0).cumsum(0) - 1
    size = torch.diff(first, append=first.new_full((1,), nodes))
    table = torch.tensor(WIDTHS, device=size.device)
    width = table[torch.bucketize(size, table)]
    some = size > 1  # of one node alone, only a loop is an edge
    some[part[low[low == high]]] = True
    return Parts(part, first, width * some)


def _kept(edges: Edges, key: Any, make: Any) -> Any:
    if key not in edges.cache:
        with outside() if lasting(edges.source) else nullcontext():
            edges.cache[key] = make()
    return edges.cache[key]
