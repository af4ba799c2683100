"""Graph: loops as PyG's, every form of edges, and what is kept of them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.cases import FEW, edges
from mpnn import MessagePassing
from mpnn.neighbours import Graph
from mpnn.weights import EdgeLearned, EdgeMLP, QKSoftmax, SharedKernel


@pytest.mark.parametrize("fill", ["mean", 0.5])
@pytest.mark.parametrize("rule", ["add", "replace"])
def test_loops_are_those_of_pyg(rule: str, fill: Any) -> None:
    """A graph without loops of its own: there the two rules are add_self_loops."""
    from torch_geometric.utils import add_self_loops

    index = edges((0, 1), (2, 1), (1, 0), (0, 1), (3, 0))
    attr, weight = torch.randn(5, 3), torch.rand(5)
    graph = Graph(self_loops=rule, loop_fill=fill, loop_weight=0.25)
    made = graph.link(index, None, 5, 5)
    filled, scaled = graph.fill(made, 5, attr, weight, None)
    theirs, expected = add_self_loops(index, attr, fill_value=fill, num_nodes=5)
    assert torch.equal(torch.stack([made.source, made.target]), theirs)
    torch.testing.assert_close(filled, expected)
    assert torch.equal(scaled, torch.cat([weight, torch.full((5,), 0.25)]))


def test_loops_that_are_there() -> None:
    """PyG's add_remaining_self_loops moves loops to the end; as sets of (source, target, weight) the two agree."""
    from torch_geometric.utils import add_remaining_self_loops, remove_self_loops
    from torch_geometric.utils import add_self_loops as all_loops

    index, weight = edges((0, 0), (0, 1), (2, 2), (1, 0), (1, 3)), torch.tensor([5.0, 1.0, 7.0, 2.0, 3.0])

    def triples(index: Tensor, weight: Tensor) -> list:
        return sorted(zip(*index.tolist(), weight.tolist(), strict=True))

    for rule, theirs in (
        ("add", add_remaining_self_loops(index, weight, 0.5, 4)),
        ("replace", all_loops(*remove_self_loops(index, weight), 0.5, 4)),
    ):
        graph = Graph(self_loops=rule, loop_weight=0.5)
        made = graph.link(index, None, 4, 4)
        _, scaled = graph.fill(made, 4, None, weight, None)
        assert triples(torch.stack([made.source, made.target]), scaled) == triples(*theirs)


def matrix(layout: str) -> Tensor:
    """A[target, source] of the edges 1→0, 2→0, 0→2, with weights 2, 3, 4."""
    dense = torch.tensor([[0.0, 2.0, 3.0], [0.0, 0.0, 0.0], [4.0, 0.0, 0.0]])
    return {
        "coo": dense.to_sparse_coo,
        "csr": dense.to_sparse_csr,
        "csc": dense.to_sparse_csc,
        "uncoalesced": lambda: torch.sparse_coo_tensor(
            torch.tensor([[0, 0, 2, 0], [1, 2, 0, 1]]),
            torch.tensor([1.0, 3.0, 4.0, 1.0]),
            (3, 3),
            check_invariants=True,
        ),
    }[layout]()


@pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC) tensor support is in beta:UserWarning")
@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "uncoalesced"])
def test_sparse_matrices(layout: str) -> None:
    x = torch.randn(2, 3, 4)
    index, weight = edges((1, 0), (2, 0), (0, 2)), torch.tensor([2.0, 3.0, 4.0])
    layer = MessagePassing(Graph(), SharedKernel(4, 5))
    expected = layer(x, index, edge_weight=weight)
    torch.testing.assert_close(layer(x, matrix(layout)), expected)
    torch.testing.assert_close(layer(x, Graph(matrix(layout))), expected)
    built = MessagePassing(Graph(matrix(layout)), layer.weight)
    torch.testing.assert_close(built(x), expected)
    soft = MessagePassing(Graph(), QKSoftmax(4, 2))
    with pytest.raises(ValueError, match="refused with softmax"):
        soft(x, matrix(layout))
    ones = torch.sparse_coo_tensor(index.flip(0), torch.ones(3), (3, 3), check_invariants=True)
    torch.testing.assert_close(soft(x, ones), soft(x, index))
    with pytest.raises(ValueError, match=r"A\[target, source\] of shape \(4, 4\), got \(3, 3\)"):
        layer(torch.randn(4, 4), matrix(layout))


def test_gradients_reach_the_values_of_a_sparse_matrix() -> None:
    weight = torch.tensor([2.0, 3.0, 4.0], requires_grad=True)
    made = torch.sparse_coo_tensor(torch.tensor([[0, 0, 2], [1, 2, 0]]), weight, (3, 3), check_invariants=True)
    layer, x = MessagePassing(Graph(), SharedKernel(4, 5)), torch.randn(3, 4)
    (mine,) = torch.autograd.grad(layer(x, made).square().sum(), weight)
    other = weight.detach().requires_grad_()
    expected = layer(x, edges((1, 0), (2, 0), (0, 2)), edge_weight=other).square().sum()
    torch.testing.assert_close(mine, torch.autograd.grad(expected, other)[0])


@pytest.mark.parametrize("order", ["row", "col", None])
def test_edge_index_of_pyg(order: str | None) -> None:
    from torch_geometric import EdgeIndex

    x, index = torch.randn(5, 4), FEW
    if order:
        index = index[:, torch.argsort(index[int(order == "col")], stable=True)]
    layer = MessagePassing(Graph(self_loops="add"), SharedKernel(4, 5, normalise="symmetric"))
    made = EdgeIndex(index, sparse_size=(5, 5), sort_order=order)
    for _ in range(2):
        torch.testing.assert_close(layer(x, made), layer(x, index))
    torch.testing.assert_close(layer(x, Graph(made, 5)), layer(x, index))


def test_a_graph_built_or_given() -> None:
    """Edges, attributes, types and weights from a built graph, here, there or partly at the call."""
    x, attr, weight = torch.randn(5, 4), torch.randn(10, 2), torch.rand(10)
    given = MessagePassing(Graph(), EdgeLearned(4, 6, EdgeMLP(2, 24)))
    expected = given(x, FEW, attr, edge_weight=weight)
    whole, bare = Graph(FEW, 5, attr=attr, weight=weight), Graph(FEW, 5)
    assert torch.equal(given(x, whole), expected)
    assert torch.equal(given(x, bare, attr, edge_weight=weight), expected)
    assert torch.equal(given(x, Graph(FEW, attr=attr), edge_weight=weight), expected)
    assert torch.equal(MessagePassing(whole, given.weight)(x), expected)
    for call, text in (
        (lambda: given(x, whole, attr), "edge_attr once"),
        (lambda: MessagePassing(whole, given.weight)(x, FEW), "edge_index once"),
        (lambda: given(x), "edge_index at the call"),
        (lambda: given(x, Graph()), "built with its edges"),
        (lambda: given(x, Graph(FEW, 5, self_loops="add"), attr), "self_loops=None"),
        (lambda: given(torch.randn(6, 4), bare, attr), "5 source and 5 target nodes"),
    ):
        with pytest.raises(ValueError, match=text):
            call()


def test_what_is_kept_of_edges_dies_with_them() -> None:
    """Decision 14: caches are weak, by identity and version."""
    layer, x = MessagePassing(Graph(), SharedKernel(4, 5)), torch.randn(5, 4)
    index = FEW.clone()
    y = layer(x, index)
    index[1] = index[1].roll(1)
    torch.testing.assert_close(layer(x, index), layer(x, index.clone()))
    assert not torch.equal(layer(x, index), y)
    seen = weakref.ref(index)
    del index
    gc.collect()
    assert seen() is None
    for _ in range(20):  # a new tensor may take the memory and the id of a dead one
        other = torch.randint(0, 5, (2, 10))
        expected = MessagePassing(Graph(other, 5), layer.weight)(x)
        torch.testing.assert_close(layer(x, other), expected)
        del other
    with torch.inference_mode():
        first = layer(x, FEW + 0)
    torch.testing.assert_close(first.clone(), layer(x, FEW))


def test_edges_written_to_out_of_range_are_seen() -> None:
    layer, x = MessagePassing(Graph(), SharedKernel(4, 5)), torch.randn(5, 4)
    index = FEW.clone()
    layer(x, index)
    index[0, 0] = 5
    with pytest.raises(IndexError, match=r"edge_index\[0\] \(source\) in 0 … 4, got 5"):
        layer(x, index)
    with pytest.raises(IndexError, match=r"edge_index\[1\] \(target\) in 0 … 2"):
        Graph(FEW, (5, 3))
