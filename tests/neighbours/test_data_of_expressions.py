"""``&`` and ``-`` keep the data of a graph on their left, against sums written as loops; a union refuses it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mpnn import MessagePassing, attend
from mpnn.neighbours import AllTokens, Global, Graph, Neighbours, Window
from mpnn.weights import EdgeLearned, EdgeMLP, QKSoftmax, SharedKernel

EDGES = torch.tensor([[3, 0, 4, 2, 1, 2], [2, 1, 0, 2, 2, 1]])  # in no order, with a loop
WEIGHT = torch.tensor([2.0, 3.0, 5.0, 7.0, 11.0, 13.0], dtype=torch.float64)
ATTR = torch.randn(6, 2, dtype=torch.float64)

KEPT: dict[str, tuple[Any, Any]] = {
    "&": (lambda g: g & Window(1), lambda j, i: abs(i - j) <= 1),
    "-": (lambda g: g - Window(0), lambda j, i: i != j),
    "nested": (lambda g: (g - Window(0)) & AllTokens(causal=True), lambda j, i: j < i),
}
each = pytest.mark.parametrize("name", KEPT)


def kept(name: str) -> list[int]:
    """The rows of the graph that are left, by target and source."""
    rows = [e for e in range(6) if KEPT[name][1](*EDGES[:, e].tolist())]
    return sorted(rows, key=lambda e: (int(EDGES[1, e]), int(EDGES[0, e])))


@each
@pytest.mark.parametrize("compiled", [False, True])
def test_weights_are_kept(name: str, compiled: bool) -> None:
    weight = WEIGHT.clone().requires_grad_()
    layer: Any = MessagePassing(KEPT[name][0](Graph(EDGES, 5, weight=weight)), SharedKernel(3, 3, fixed=True)).double()
    layer = torch.compile(layer, fullgraph=True, backend="eager") if compiled else layer
    x = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    expected = torch.zeros_like(x)
    for e in kept(name):
        row = torch.zeros(5, 1, dtype=torch.float64)
        row[EDGES[1, e]] = 1
        expected = expected + weight[e] * row * x[:, EDGES[0, e]][:, None]
    y = layer(x)
    torch.testing.assert_close(y, expected)
    grads = (torch.autograd.grad(t.square().sum(), (x, weight)) for t in (y, expected))
    torch.testing.assert_close(*grads)


@each
def test_attributes_are_kept(name: str) -> None:
    network = EdgeLearned(3, 4, EdgeMLP(2, 12, hidden=(3,)))
    layer = MessagePassing(KEPT[name][0](Graph(EDGES, 5, attr=ATTR)), network).double()
    plain = MessagePassing(Graph(), layer.weight)
    rows, x = kept(name), torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(layer(x), plain(x, EDGES[:, rows], ATTR[rows]))
    mask = torch.tensor([True, True, False, True, True])
    torch.testing.assert_close(layer(x, mask=mask), plain(x, EDGES[:, rows], ATTR[rows], mask=mask))


def test_added_loops_keep_their_data() -> None:
    graph = Graph(EDGES, 5, weight=WEIGHT, attr=ATTR, self_loops="add", loop_weight=0.5)
    x = torch.randn(5, 3, dtype=torch.float64)
    layer = MessagePassing(graph & Window(0), SharedKernel(3, 3, fixed=True)).double()
    with pytest.raises(ValueError, match="edge_attr of shape"):
        layer(x)  # which nothing here reads
    light = Graph(EDGES, 5, self_loops="add", loop_weight=0.5)
    y = MessagePassing(light & Window(0), SharedKernel(3, 3, fixed=True)).double()(x)
    torch.testing.assert_close(y, x * torch.tensor([[0.5], [0.5], [1.0], [0.5], [0.5]], dtype=torch.float64))


def test_data_is_never_ignored() -> None:
    x, q = torch.randn(5, 4), torch.randn(1, 5, 2)
    weighted = Graph(EDGES, 5, weight=WEIGHT.float())
    rule: Neighbours
    for graph in (weighted, Graph(EDGES, 5, attr=ATTR), Graph(EDGES, 5, self_loops="add", loop_weight=2.0)):
        for make in (lambda g: g | Global(1), lambda g: Window(1) | (g & Window(1))):
            with pytest.raises(ValueError, match="expected a Graph without attr, weight and loop_weight"):
                make(graph)
        with pytest.raises(ValueError, match="would be ignored by attend"):
            attend(q, q, q, graph - Window(0))
    rule = weighted & Window(1)
    with pytest.raises(ValueError, match="expected edge_weight once"):
        MessagePassing(rule, SharedKernel(4, 4))(x, edge_weight=torch.ones(4))
    with pytest.raises(ValueError, match="refused with softmax"):
        MessagePassing(rule, QKSoftmax(4, 2))(x)
    other = Window(3) & weighted  # the right side says which pairs, and nothing more
    given = torch.rand(len(other.edges(5, 5)))
    y: Tensor = MessagePassing(other, SharedKernel(4, 4, fixed=True))(x, edge_weight=given)
    assert y.shape == x.shape
