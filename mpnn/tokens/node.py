"""Graphs as tokens: one for each node and, where asked for, one for each edge."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mpnn import checks
from mpnn.tokens.base import Tokens

_FIELDS = {"edge_index": "edge_index", "edge_attr": "edge_attr", "batch": "batch", "coordinates": "pos"}


class NodeTokens(nn.Module):
    """Makes one token of each node, ``x_v = W f_v + b``, and with ``edge_channels`` one of each edge too.

    With ``edge_channels=k`` an edge u → v of features e is the token ``W_e e + b_e + t_edge + P [p_u, p_v]`` and a node
    ``W f_v + b + t_node + P [p_v, p_v]``, with ``p`` the rows of ``identifiers`` (orthonormal or Laplacian vectors).
    The edge tokens of a graph follow its node tokens; ``node_slots`` says where the nodes went.

    Args:
        in_channels: features of a node.
        channels: channels of a token; None leaves the nodes' features as they are (without edge tokens).
        edge_channels: features of an edge, 0 for edges without features; None makes no edge tokens.
        identifiers: width of the node identifiers that edge tokens need to say which nodes they join.

    Shapes:
        data: node features ``(..., N, in_channels)``, or a PyG ``Data`` or ``Batch``, whose ``edge_index``,
            ``edge_attr``, ``batch`` and ``pos`` are taken where they exist
        mask: bool ``(..., N)``; edge_index: ``(2, E)``; edge_attr: ``(E, k)``; batch: ``(N,)``
        coordinates: ``(..., N, axes)``; identifiers: ``(N, identifiers)``
        returns: N tokens, or N + E with edge tokens (at the middle of their nodes' coordinates)

    Raises:
        TypeError, ValueError: for a field that is missing, given twice, of another width, or that would be ignored.

    Source: edge tokens: Kim et al., "Pure transformers are powerful graph learners" (TokenGT), 2022.

    >>> edges = torch.tensor([[0, 1], [1, 2]])
    >>> NodeTokens(4, 8)(torch.rand(3, 4))
    Tokens(x=(3, 8))
    >>> NodeTokens(4, 8, edge_channels=0, identifiers=3)(torch.rand(3, 4), edge_index=edges, identifiers=torch.eye(3))
    Tokens(x=(5, 8))
    """

    def __init__(
        self, in_channels: int, channels: int | None, *, edge_channels: int | None = None, identifiers: int = 0
    ) -> None:
        super().__init__()
        self.in_channels, self.channels = in_channels, channels
        self.edge_channels, self.identifiers = edge_channels, identifiers
        self.projection = None if channels is None else nn.Linear(in_channels, channels)
        self.edge_projection = self.identifier = self.type_embedding = None
        if edge_channels is None:
            if identifiers:
                raise ValueError("identifiers tell edge tokens which nodes they join: pass edge_channels= too")
        else:
            if channels is None:
                raise ValueError("edge tokens need channels=, got None")
            self.edge_projection = nn.Linear(edge_channels, channels) if edge_channels else None
            self.identifier = nn.Linear(2 * identifiers, channels, bias=False) if identifiers else None
            self.type_embedding = nn.Embedding(2, channels)  # node, edge

    def forward(
        self,
        data: Any,
        *,
        mask: Tensor | None = None,
        edge_index: Tensor | None = None,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        coordinates: Tensor | None = None,
        identifiers: Tensor | None = None,
    ) -> Tokens:
        given = {"edge_index": edge_index, "edge_attr": edge_attr, "batch": batch, "coordinates": coordinates}
        x = data
        if not isinstance(data, Tensor):
            x = getattr(data, "x", None)
            if not isinstance(x, Tensor):
                raise TypeError(f"expected node features or a PyG Data with x, got {type(data).__name__} without x")
            for name, field in _FIELDS.items():
                found = getattr(data, field, None)
                if found is not None and given[name] is not None:
                    raise ValueError(f"{name}= is given and the data has {field} too; pass one of them")
                given[name] = given[name] if found is None else found
        if x.ndim < 2 or x.shape[-1] != self.in_channels:
            raise ValueError(f"expected node features of shape (..., N, {self.in_channels}), got {tuple(x.shape)}")
        features = x if self.projection is None else self.projection(x)
        tokens = Tokens(features, mask=mask, batch=given["batch"], coordinates=given["coordinates"])
        if self.edge_channels is not None:
            return self._with_edges(tokens, given["edge_index"], given["edge_attr"], identifiers)
        for name, value in (("edge_index", edge_index), ("edge_attr", edge_attr), ("identifiers", identifiers)):
            if value is not None:
                raise ValueError(f"{name}= would be ignored: these NodeTokens were made without edge_channels=")
        return tokens

    def node_slots(self, batch: Tensor | None, edge_index: Tensor, num_nodes: int) -> Tensor:
        """The slot of each node among the tokens of nodes and edges: ``y[slots]`` are the nodes' rows of a result."""
        if batch is None:
            return torch.arange(num_nodes, device=edge_index.device)
        return torch.argsort(_order(batch, edge_index))[:num_nodes]

    def _with_edges(
        self, nodes: Tokens, edge_index: Tensor | None, attr: Tensor | None, identifiers: Tensor | None
    ) -> Tokens:
        if edge_index is None or edge_index.ndim != 2 or edge_index.shape[0] != 2:
            got = "none" if edge_index is None else tuple(edge_index.shape)
            raise ValueError(f"edge tokens need an edge_index of shape (2, E), got {got}")
        if nodes.x.ndim != 2 or nodes.mask is not None:
            raise ValueError("edge tokens are made of nodes (N, C) without leading dimensions or mask; use batch=")
        checks.integers("edge_index", edge_index)
        inside = (edge_index >= 0) & (edge_index < len(nodes.x))
        checks.values(inside, IndexError, f"expected edge_index from 0 to {len(nodes.x) - 1}", edge_index)
        if nodes.batch is not None:
            one_graph = nodes.batch[edge_index[0]] == nodes.batch[edge_index[1]]
            checks.values(one_graph, ValueError, "expected both ends of an edge in one graph of batch")
        count = edge_index.shape[1]
        source, target = edge_index[0], edge_index[1]
        assert self.type_embedding is not None
        kind = self.type_embedding.weight
        x, edges = nodes.x + kind[0], kind[1].expand(count, -1)
        for name, value, width, rows in (
            ("edge_attr", attr, self.edge_channels, count),
            ("identifiers", identifiers, self.identifiers, len(x)),
        ):
            if bool(width) != (value is not None) or (value is not None and value.shape != (rows, width)):
                got = "none" if value is None else tuple(value.shape)
                raise ValueError(f"expected {name} of shape ({rows}, {width}), none for width 0, got {got}")
        if self.edge_projection is not None and attr is not None:
            edges = edges + self.edge_projection(attr)
        if self.identifier is not None and identifiers is not None:
            identifiers = identifiers.to(x.dtype)
            x = x + self.identifier(torch.cat([identifiers, identifiers], dim=-1))
            edges = edges + self.identifier(torch.cat([identifiers[source], identifiers[target]], dim=-1))
        x, coordinates, batch = torch.cat([x, edges]), nodes.coordinates, nodes.batch
        if coordinates is not None:
            coordinates = torch.cat([coordinates, (coordinates[source] + coordinates[target]) / 2])
        if batch is not None:
            order = _order(batch, edge_index)
            batch = torch.cat([batch, batch[target]])[order]
            x, coordinates = x[order], None if coordinates is None else coordinates[order]
        return Tokens(x, coordinates=coordinates, batch=batch)


def _order(batch: Tensor, edge_index: Tensor) -> Tensor:
    """Which node or edge stands in each slot: graph by graph, nodes before edges, in their own order."""
    return torch.argsort(torch.cat([batch, batch[edge_index[1]]]), stable=True)
