"""What codes of a graph's nodes share: a table computed from the edges, projected and added to the tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from mpnn import checks
from mpnn.memo import derived


class GraphCode(nn.Module, ABC):
    """Adds a projection of numbers that say where each node stands in its graph: ``x + W table(edges)``.

    The table is a constant of the graph: no gradient flows to the edges. It is kept as long as the edge tensors live
    and are not written to; for mini-batches compute it once with ``table``, store it, and call ``add``.

    Args:
        channels: channels of the tokens.
        count: numbers for each node.

    Shapes:
        x: ``(..., N, channels)``
        edge_index: integer ``(2, E)``; edge_weight: ``(E,)``; batch: integer ``(N,)``, sorted
        returns: ``(..., N, channels)``

    Raises:
        ValueError: for shapes that do not fit, or edge weights that want a gradient.
    """

    def __init__(self, channels: int, count: int) -> None:
        super().__init__()
        self.channels, self.count = checks.positive("channels", channels), checks.positive("count", count)
        self.projection = nn.Linear(count, channels, bias=False)

    @abstractmethod
    def compute(self, edge_index: Tensor, edge_weight: Tensor | None, batch: Tensor | None, num_nodes: int) -> Tensor:
        """The table from checked arguments: float32 ``(N, count)``."""

    def table(
        self, edge_index: Tensor, num_nodes: int, *, edge_weight: Tensor | None = None, batch: Tensor | None = None
    ) -> Tensor:
        """The numbers of each node: float32 ``(N, count)``."""
        checks.integers("edge_index", edge_index)
        if edge_index.ndim != 2 or edge_index.shape[0] != 2:
            raise ValueError(f"expected edge_index of shape (2, E), got {tuple(edge_index.shape)}")
        inside = (edge_index >= 0) & (edge_index < num_nodes)
        checks.values(inside, IndexError, f"expected edge_index from 0 to {num_nodes - 1}", edge_index)
        if edge_weight is not None:
            if edge_weight.shape != edge_index.shape[1:]:
                raise ValueError(
                    f"expected edge_weight of shape ({edge_index.shape[1]},), got {tuple(edge_weight.shape)}"
                )
            if edge_weight.requires_grad:
                raise ValueError(
                    "edge_weight wants a gradient that this table does not give; pass edge_weight.detach()"
                )
        if batch is not None:
            checks.integers("batch", batch)
            if batch.shape != (num_nodes,):
                raise ValueError(f"expected batch of shape ({num_nodes},), got {tuple(batch.shape)}")
            one_graph = batch[edge_index[0]] == batch[edge_index[1]]
            checks.values(one_graph, ValueError, "expected both ends of an edge in one graph of batch")
        return self.compute(edge_index, edge_weight, batch, num_nodes)

    def add(self, x: Tensor, table: Tensor, *, batch: Tensor | None = None) -> Tensor:
        """``x`` with the projection of a table made before."""
        if x.shape[-1] != self.channels or table.shape != (x.shape[-2], self.count):
            raise ValueError(
                f"expected x of shape (..., N, {self.channels}) and a table of shape (N, {self.count}), "
                f"got {tuple(x.shape)} and {tuple(table.shape)}"
            )
        return x + self.projection(table.to(self.projection.weight.dtype)).to(x.dtype)

    def forward(
        self, x: Tensor, edge_index: Tensor, *, edge_weight: Tensor | None = None, batch: Tensor | None = None
    ) -> Tensor:
        nodes = x.shape[-2]

        def make() -> Tensor:
            return self.table(edge_index, nodes, edge_weight=edge_weight, batch=batch)

        table = derived(make, (type(self), self.count, nodes), edge_index, edge_weight, batch)
        return self.add(x, table, batch=batch)

    def extra_repr(self) -> str:
        return f"{self.channels}, {self.count}"


def first_of_graph(batch: Tensor | None, num_nodes: int, device: torch.device) -> Tensor:
    """The number of the first node of each node's graph."""
    if batch is None:
        return torch.zeros(num_nodes, dtype=torch.int64, device=device)
    return torch.searchsorted(batch.contiguous(), batch.contiguous())
