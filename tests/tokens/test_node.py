"""NodeTokens on tensors and PyG's data, and TokenGT's edge tokens against a loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch_geometric.data import Batch, Data

from mpnn.tokens import NodeTokens


def small(nodes: int, edges: int) -> Data:
    return Data(
        x=torch.randn(nodes, 3),
        edge_index=torch.randint(0, nodes, (2, edges)),
        edge_attr=torch.randn(edges, 2),
        pos=torch.randn(nodes, 2),
    )


def test_features_are_projected_and_fields_kept() -> None:
    joined = Batch.from_data_list([small(3, 2), small(4, 5)])
    tokens = NodeTokens(3, 6)
    t = tokens(joined)
    assert torch.equal(t.x, F.linear(joined.x, tokens.projection.weight, tokens.projection.bias))
    assert t.batch is joined.batch and t.coordinates is joined.pos
    assert torch.equal(NodeTokens(3, None)(joined).x, joined.x)
    dense, mask = torch.randn(2, 5, 3), torch.rand(2, 5) > 0.5
    assert NodeTokens(3, 6)(dense, mask=mask).mask is mask
    single = NodeTokens(3, 6)(small(3, 2))
    assert single.batch is None


def test_edge_tokens_follow_the_nodes_of_their_graph() -> None:
    graphs = [small(3, 2), small(1, 0), small(4, 5)]
    tokens = NodeTokens(3, 6, edge_channels=2, identifiers=4)
    p = torch.randn(8, 4)
    rows, batch, centres, start = [], [], [], 0
    for g, data in enumerate(graphs):
        own = p[start : start + data.num_nodes]
        kinds = tokens.type_embedding.weight
        for v in range(data.num_nodes):
            rows.append(tokens.projection(data.x[v]) + kinds[0] + tokens.identifier(torch.cat([own[v], own[v]])))
            centres.append(data.pos[v])
        for e, (u, v) in enumerate(data.edge_index.T.tolist()):
            identity = tokens.identifier(torch.cat([own[u], own[v]]))
            rows.append(tokens.edge_projection(data.edge_attr[e]) + kinds[1] + identity)
            centres.append((data.pos[u] + data.pos[v]) / 2)
        batch += [g] * (data.num_nodes + data.num_edges)
        start += data.num_nodes
    joined = Batch.from_data_list(graphs)
    t = tokens(joined, identifiers=p)
    torch.testing.assert_close(t.x, torch.stack(rows))
    torch.testing.assert_close(t.coordinates, torch.stack(centres))
    assert t.batch.tolist() == batch
    slots = tokens.node_slots(joined.batch, joined.edge_index, 8)
    assert slots.tolist() == [0, 1, 2, 5, 6, 7, 8, 9]
    t.x.sum().backward()
    assert all(q.grad is not None for q in tokens.parameters())


def test_edge_tokens_of_one_graph_without_features() -> None:
    data = small(4, 3)
    tokens = NodeTokens(3, 6, edge_channels=0)
    t = tokens(data.x, edge_index=data.edge_index)
    assert t.x.shape == (7, 6)
    assert torch.equal(t.x[4:], tokens.type_embedding.weight[1].expand(3, 6))
    assert tokens.node_slots(None, data.edge_index, 4).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("tokens", "call", "error", "match"),
    [
        (NodeTokens(3, 6), {"data": torch.zeros(4, 2)}, ValueError, r"\(..., N, 3\), got \(4, 2\)"),
        (NodeTokens(3, 6), {"data": Data(edge_index=torch.zeros(2, 0))}, TypeError, "Data without x"),
        (NodeTokens(3, 6), {"data": [1.0]}, TypeError, "list without x"),
        (NodeTokens(3, 6), {"edge_index": torch.zeros(2, 0, dtype=torch.long)}, ValueError, "edge_index= would be"),
        (NodeTokens(3, 6), {"identifiers": torch.eye(4)}, ValueError, "identifiers= would be ignored"),
        (NodeTokens(3, 6, edge_channels=0), {}, ValueError, r"edge_index of shape \(2, E\), got none"),
        (
            NodeTokens(3, 6, edge_channels=2),
            {"edge_index": torch.zeros(2, 5, dtype=torch.long)},
            ValueError,
            r"edge_attr of shape \(5, 2\), none for width 0, got none",
        ),
        (
            NodeTokens(3, 6, edge_channels=0, identifiers=2),
            {"edge_index": torch.zeros(2, 5, dtype=torch.long), "identifiers": torch.eye(4)},
            ValueError,
            r"identifiers of shape \(4, 2\), none for width 0, got \(4, 4\)",
        ),
        (
            NodeTokens(3, 6, edge_channels=0),
            {"data": torch.zeros(2, 4, 3), "edge_index": torch.zeros(2, 5, dtype=torch.long)},
            ValueError,
            "without leading dimensions",
        ),
    ],
)
def test_what_does_not_fit_is_refused(tokens: NodeTokens, call: dict[str, Any], error: Any, match: str) -> None:
    with pytest.raises(error, match=match):
        tokens(**{"data": torch.zeros(4, 3), **call})


def test_edges_out_of_place_are_refused() -> None:
    tokens, x = NodeTokens(3, 6, edge_channels=0), torch.zeros(4, 3)
    with pytest.raises(IndexError, match="edge_index from 0 to 3, got 4"):
        tokens(x, edge_index=torch.tensor([[0], [4]]))
    with pytest.raises(TypeError, match="edge_index of dtype"):
        tokens(x, edge_index=torch.zeros(2, 3))
    with pytest.raises(ValueError, match="both ends of an edge in one graph"):
        tokens(x, edge_index=torch.tensor([[0], [3]]), batch=torch.tensor([0, 0, 1, 1]))


def test_fields_given_twice_and_useless_arguments_are_refused() -> None:
    data = small(4, 3)
    with pytest.raises(ValueError, match="coordinates= is given and the data has pos too"):
        NodeTokens(3, 6)(data, coordinates=data.pos)
    with pytest.raises(ValueError, match="pass edge_channels="):
        NodeTokens(3, 6, identifiers=2)
    with pytest.raises(ValueError, match="edge tokens need channels="):
        NodeTokens(3, None, edge_channels=0)


def test_compiles_whole_and_maps() -> None:
    tokens = NodeTokens(3, 6, edge_channels=2)
    compiled = torch.compile(tokens, fullgraph=True, dynamic=True, backend="aot_eager")
    for nodes, edges in ((5, 8), (7, 3), (7, 0)):
        data = small(nodes, edges)
        batch = torch.arange(nodes) // 3
        inside = batch[data.edge_index[0]] == batch[data.edge_index[1]]
        fields = {"edge_index": data.edge_index[:, inside], "edge_attr": data.edge_attr[inside], "batch": batch}
        mine, theirs = compiled(data.x, **fields), tokens(data.x, **fields)
        torch.testing.assert_close(mine.x, theirs.x)
        assert torch.equal(mine.batch, theirs.batch)
    x = torch.randn(2, 4, 3)
    plain = NodeTokens(3, 6)
    torch.testing.assert_close(torch.func.vmap(lambda x: plain(x).x)(x), plain(x).x)
