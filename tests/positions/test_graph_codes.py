"""LaplacianEigenvectors and RandomWalk against PyG's transforms and dense formulas written out."""

from __future__ import annotations

import gc

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE
from torch_geometric.utils import erdos_renyi_graph, to_dense_adj, to_undirected

from mpnn.positions import LaplacianEigenvectors, RandomWalk


def graph(nodes: int, p: float = 0.4) -> torch.Tensor:
    """A connected graph: a path with chords."""
    path = torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)])
    return to_undirected(torch.cat([path, erdos_renyi_graph(nodes, p)], 1))


def test_laplacian_equals_pyg_up_to_sign() -> None:
    edges = graph(12)
    theirs = AddLaplacianEigenvectorPE(4, attr_name=None)(Data(x=torch.zeros(12, 0), edge_index=edges)).x
    mine = LaplacianEigenvectors(8, 4).table(edges, 12)
    torch.testing.assert_close(mine.abs(), theirs.abs(), rtol=1e-4, atol=1e-5)
    signs = (mine * theirs).sum(0).sign()
    torch.testing.assert_close(mine, theirs * signs, rtol=1e-4, atol=1e-5)


def test_laplacian_vectors_are_eigenvectors_with_weights_and_one_direction() -> None:
    source, target = torch.triu_indices(9, 9, 1)
    weight = torch.rand(len(source)) + 0.1
    loops = torch.arange(9)
    edges = torch.cat([torch.stack([source, target]), torch.stack([loops, loops])], 1)
    mine = LaplacianEigenvectors(8, 3).table(edges, 9, edge_weight=torch.cat([weight, torch.ones(9)])).double()
    a = to_dense_adj(torch.stack([source, target]), edge_attr=weight.double(), max_num_nodes=9)[0]
    a = a + a.T
    d = a.sum(1).rsqrt()
    laplacian = torch.eye(9) - d[:, None] * a * d
    values = torch.linalg.eigvalsh(laplacian)
    torch.testing.assert_close(laplacian @ mine, mine * values[1:4], rtol=1e-5, atol=1e-5)
    assert (mine.amax(0) >= -mine.amin(0) - 1e-6).all()


def test_laplacian_of_small_and_edgeless_graphs() -> None:
    code = LaplacianEigenvectors(8, 5)
    assert torch.equal(code.table(torch.zeros(2, 0, dtype=torch.long), 1), torch.zeros(1, 5))
    assert code.table(torch.zeros(2, 0, dtype=torch.long), 0).shape == (0, 5)
    two = code.table(torch.tensor([[0, 1], [1, 0]]), 2)
    torch.testing.assert_close(two[:, 0].abs(), torch.full((2,), 0.5**0.5))
    assert torch.equal(two[:, 1:], torch.zeros(2, 4))
    assert code.table(torch.tensor([[0, 1], [1, 0]]), 4).isfinite().all()


def test_laplacian_of_a_large_graph_equals_the_dense_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy", reason="scipy is not installed: sparse eigenvectors need it")
    edges = graph(60, 0.1)
    code = LaplacianEigenvectors(8, 3)
    dense = code.table(edges, 60)
    monkeypatch.setattr("mpnn.positions.laplacian._DENSE", 10)
    torch.testing.assert_close(code.table(edges, 60), dense, rtol=1e-4, atol=1e-5)
    assert torch.equal(code.table(edges, 60), code.table(edges, 60))


@pytest.mark.parametrize("kind", [LaplacianEigenvectors, RandomWalk])
def test_a_batch_is_its_graphs(kind: type) -> None:
    graphs = [Data(x=torch.zeros(n, 1), edge_index=graph(n)) for n in (5, 1, 9, 2)]
    joined = Batch.from_data_list(graphs)
    code = kind(8, 3)
    table = code.table(joined.edge_index, 17, batch=joined.batch)
    alone = torch.cat([code.table(g.edge_index, g.num_nodes) for g in graphs])
    torch.testing.assert_close(table, alone)


def test_random_walk_equals_pyg() -> None:
    # With a loop; no duplicates, of which PyG's dense form keeps one (the test with weights has some).
    edges = torch.cat([graph(10), torch.tensor([[3], [3]])], 1)
    data = Data(edge_index=edges, num_nodes=12)  # two nodes without edges
    theirs = AddRandomWalkPE(6)(data).random_walk_pe
    torch.testing.assert_close(RandomWalk(8, 6).table(edges, 12), theirs)


def test_random_walk_with_weights_and_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    edges, weight = torch.randint(0, 7, (2, 30)), torch.rand(30)
    a = torch.zeros(7, 7).index_put((edges[0], edges[1]), weight, accumulate=True)
    p = a / a.sum(1, keepdim=True).clamp(min=1e-9)
    expected = torch.stack([torch.linalg.matrix_power(p, k).diagonal() for k in range(1, 6)], 1)
    code = RandomWalk(8, 5)
    torch.testing.assert_close(code.table(edges, 7, edge_weight=weight), expected)
    monkeypatch.setattr("mpnn.positions.random_walk._COLUMNS", 3)
    torch.testing.assert_close(code.table(edges, 7, edge_weight=weight), expected)


def test_signs_flip_in_training_for_each_graph_by_itself() -> None:
    graphs = Batch.from_data_list([Data(x=torch.zeros(6, 1), edge_index=graph(6)) for _ in range(40)])
    code = LaplacianEigenvectors(2, 2)
    code.projection.weight.data.copy_(torch.eye(2))
    x = torch.zeros(240, 2)
    still = code.eval()(x, graphs.edge_index, batch=graphs.batch)
    assert torch.equal(still, code(x, graphs.edge_index, batch=graphs.batch))
    flipped = code.train()(x, graphs.edge_index, batch=graphs.batch)
    assert torch.equal(flipped.abs(), still.abs())
    signs = (flipped * still).view(40, 6, 2).sum(1).sign()
    assert torch.equal(flipped.view(40, 6, 2), still.view(40, 6, 2) * signs[:, None])
    assert all(10 < (signs[:, k] > 0).sum() < 30 for k in (0, 1))
    assert 10 < (signs[:, 0] == signs[:, 1]).sum() < 30


@pytest.mark.parametrize("kind", [LaplacianEigenvectors, RandomWalk])
def test_added_to_tokens_and_kept_with_the_edges(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    code, edges, x = kind(4, 3).eval(), graph(6), torch.randn(2, 6, 4)
    calls: list[int] = []
    compute = code.compute
    monkeypatch.setattr(code, "compute", lambda *a: (calls.append(1), compute(*a))[1])
    expected = x + code.table(edges, 6) @ code.projection.weight.T
    calls.clear()
    for _ in range(3):
        torch.testing.assert_close(code(x, edges), expected)
    torch.testing.assert_close(code.add(x, code.table(edges, 6)), expected)
    assert len(calls) == 2
    edges[:, 0] = edges[:, 1]  # written to: a new version
    code(x, edges)
    assert len(calls) == 3
    code(x, edges).sum().backward()
    assert code.projection.weight.grad is not None
    gc.collect()


@pytest.mark.parametrize("kind", [LaplacianEigenvectors, RandomWalk])
def test_wrong_arguments_are_refused(kind: type) -> None:
    code, edges, x = kind(4, 3), graph(6), torch.randn(6, 4)
    with pytest.raises(IndexError, match="edge_index from 0 to 4, got 5"):
        code(x[:5], edges)
    with pytest.raises(ValueError, match=r"edge_index of shape \(2, E\)"):
        code(x, edges.T)
    with pytest.raises(TypeError, match="edge_index of dtype"):
        code(x, edges.float())
    with pytest.raises(ValueError, match="edge_weight of shape"):
        code(x, edges, edge_weight=torch.ones(3))
    with pytest.raises(ValueError, match="detach"):
        code(x, edges, edge_weight=torch.ones(edges.shape[1], requires_grad=True))
    with pytest.raises(ValueError, match=r"batch of shape \(6,\)"):
        code(x, edges, batch=torch.zeros(5, dtype=torch.long))
    with pytest.raises(ValueError, match="both ends of an edge in one graph"):
        code(x, edges, batch=torch.tensor([0, 0, 0, 1, 1, 1]))
    with pytest.raises(ValueError, match=r"a table of shape \(N, 3\)"):
        code.add(x, torch.zeros(6, 2))
