"""Dense pairs: the pairs of some targets with every source, without a list of them.

They stand row by row, so that a field of them is a rectangle in which one end is repeated. It is laid out axis by axis,
a plane of targets × sources for each channel, and shown as (..., E, k): what a rule does to each number, and its sums
over channels, then run along memory, several times faster than over rows of a few channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from mpnn.checks import exactly
from mpnn.edges import Edges
from mpnn.pairs import Pairs


class DensePairs(Pairs):
    """The pairs (i, j) of the targets ``rows`` and all ``sources``, by target, then source; E = rows · sources.

    ``listed`` makes their :class:`~mpnn.edges.Edges`, for a rule that reads the numbers of tokens.
    """

    def __init__(
        self,
        rows: slice,
        sources: int,
        listed: Callable[[], Edges],
        nodes: Mapping[str, Tensor],
        heads: int | None,
        value: Callable[[Tensor], Tensor],
        attr: Tensor | None,
        pair_ids: Callable[[Edges], Tensor],
    ) -> None:
        super().__init__(None, nodes, heads, value, attr, None, pair_ids)
        self.rows, self.shape, self._listed = rows, (rows.stop - rows.start, sources), listed
        self.held = 0  # numbers that were made for a rule to read

    @property
    def edges(self) -> Edges:
        if self._edges is None:
            self._edges = self._listed()
        return self._edges

    @property
    def count(self) -> int:
        return self.shape[0] * self.shape[1]

    def __len__(self) -> int:
        return self.count

    def planes(self, per_edge: Tensor) -> Tensor:
        """(..., E, k) as (..., k, rows, sources)."""
        return per_edge.transpose(-2, -1).unflatten(-1, self.shape)

    def listing(self, planes: Tensor) -> Tensor:
        """(..., k, rows, sources) as (..., E, k)."""
        self.held += planes.numel()
        return planes.flatten(-2).transpose(-2, -1)

    def of_rows(self, tokens: Tensor, dim: int = -2) -> Tensor:
        """The rows' own part of a tensor over the targets."""
        return tokens.narrow(dim, self.rows.start, self.shape[0])

    def at_source(self, tokens: Tensor, dim: int = -2) -> Tensor:
        dim = dim - tokens.ndim if dim >= 0 else dim
        if dim < -2:
            return super().at_source(tokens, dim)
        if dim == -1:
            return tokens.unsqueeze(-2).expand(*tokens.shape[:-1], *self.shape).flatten(-2)
        planes = tokens.transpose(-2, -1).unsqueeze(-2)
        return self.listing(planes.expand(*planes.shape[:-2], *self.shape))

    def at_target(self, tokens: Tensor, dim: int = -2) -> Tensor:
        dim = dim - tokens.ndim if dim >= 0 else dim
        if dim < -2:
            return super().at_target(tokens, dim)
        own = self.of_rows(tokens, dim)
        if dim == -1:
            return own.unsqueeze(-1).expand(*own.shape[:-1], *self.shape).flatten(-2)
        planes = own.transpose(-2, -1).unsqueeze(-1)
        return self.listing(planes.expand(*planes.shape[:-2], *self.shape))

    def summed(self, source: Tensor, target: Tensor) -> Tensor:
        """source_j + target_i of (..., M, k) and (..., N, k): (..., E, k)."""
        ends = source.transpose(-2, -1).unsqueeze(-2), self.of_rows(target).transpose(-2, -1).unsqueeze(-1)
        return self.listing(ends[0] + ends[1])

    def products(self, query: Tensor, key: Tensor, added: Tensor | None = None) -> Tensor:
        if added is not None:
            return super().products(query, key, added)
        with exactly(query.device.type):
            return self.listing(self.of_rows(query) @ key.transpose(-2, -1))

    def per_edge_row(self, rows: Tensor) -> Tensor:
        return rows.narrow(-2, self.rows.start * self.shape[1], self.count)

    def _offset(self) -> Tensor:
        if "coordinates_source" not in self.nodes:
            return super()._offset()
        return self.summed(self.nodes["coordinates_source"], -self.node("coordinates_target"))
