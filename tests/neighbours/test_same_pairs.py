"""Neighbourhoods that are one another's special cases, and what a batch is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mpnn import MessagePassing, Tokens, attend
from mpnn.neighbours import KNN, AllTokens, Edges, Full, Graph, Grid, Neighbours, Random, Window
from mpnn.weights import QKSoftmax, SharedKernel


def ends(edges: Edges) -> list[tuple[int, int]]:
    return list(zip(edges.target.tolist(), edges.source.tolist(), strict=True))


@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 5), (3, 5), (5, 3)])
def test_special_cases(n: int, m: int) -> None:
    everything = ends(AllTokens().edges(n, m))
    assert ends(Window(m + n).edges(n, m)) == everything
    assert ends(Full(m, n).edges(n, m)) == everything
    assert ends(Window(m + n, 0).edges(n, m)) == ends(AllTokens(causal=True).edges(n, m))
    assert ends(AllTokens(causal=True, max_tokens=9).edges(n, m)) == ends(AllTokens(causal=True).edges(n, m))
    if n == m:
        assert ends(Grid(n, 3).edges(n, m)) == ends(Window(1).edges(n, m))
        assert ends(Grid(n, 5, dilation=2).edges(n, m)) == ends(Window(2, dilation=2).edges(n, m))
        assert ends(Window(0).edges(n, m)) == ends(Grid(n, 1).edges(n, m)) == [(i, i) for i in range(n)]


@pytest.mark.parametrize("causal", [False, True])
def test_relations_of_a_set_are_the_same_everywhere(causal: bool) -> None:
    """An offset has one number under Full and AllTokens(max_tokens), the ends aligned."""
    for n, m in ((4, 4), (2, 4), (4, 2)):
        tokens = AllTokens(causal=causal, max_tokens=4).edges(n, m)
        assert tokens.relation.tolist() == [int(o) + 3 for o in tokens.offset[:, 0]]
        full = Full(m, n).edges(n, m)
        assert full.relation.tolist() == [int(o) + m - 1 for o in full.offset[:, 0]]
        assert full.relation.max() < Full(m, n).relations == n + m - 1
    assert AllTokens(max_tokens=4).relations == 7 and AllTokens(causal=True, max_tokens=4).relations == 4


@pytest.mark.parametrize(
    "rule", [AllTokens(), AllTokens(causal=True), AllTokens(max_tokens=3), Window(1), Window(2, 0)]
)
def test_a_batch_is_its_graphs_one_by_one(rule: Any) -> None:
    """Ragged graphs in one call, an empty one among them, against a call for each."""
    sizes, others = [2, 0, 3, 1], [1, 2, 3, 3]
    batch = torch.repeat_interleave(torch.arange(4), torch.tensor(sizes))
    other = torch.repeat_interleave(torch.arange(4), torch.tensor(others))
    layer = MessagePassing(rule, QKSoftmax(4, 2)).double()
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.randn(9, 4, dtype=torch.float64)
    parts: list[Tensor] = [layer(x[batch == g]) for g in (0, 2, 3)]
    torch.testing.assert_close(layer(x, batch=batch), torch.cat(parts))
    parts = [layer(x[batch == g], source=y[other == g]) for g in (0, 2, 3)]
    both = layer(x, source=Tokens(y, batch=other), batch=batch)
    torch.testing.assert_close(both, torch.cat(parts))
    q, k, v = x.unflatten(1, (2, 2)).transpose(0, 1), *(y.unflatten(1, (2, 2)).transpose(0, 1) for _ in range(2))
    parts = [attend(q[:, batch == g], k[:, other == g], v[:, other == g], rule) for g in (0, 2, 3)]
    torch.testing.assert_close(attend(q, k, v, rule, batch=(other, batch)), torch.cat(parts, 1))


def test_a_batch_of_graphs_is_its_graphs_one_by_one() -> None:
    layer = MessagePassing(Graph(self_loops="add"), SharedKernel(3, 2, normalise="symmetric")).double()
    first, second = torch.tensor([[0, 1], [1, 1]]), torch.tensor([[0, 2, 2], [1, 0, 1]])
    x = torch.randn(5, 3, dtype=torch.float64)
    joined = torch.cat([first, second + 2], 1)
    batch = torch.tensor([0, 0, 1, 1, 1])
    expected = torch.cat([layer(x[:2], first), layer(x[2:], second)])
    torch.testing.assert_close(layer(x, joined, batch=batch), expected)
    with pytest.raises(ValueError, match="inside the graphs of batch"):
        layer(x, torch.tensor([[0], [3]]), batch=batch)


def test_grids_of_one_size_given_when_built_or_called() -> None:
    x = torch.randn(2, 12, 3)
    built = MessagePassing(Grid((3, 4), 3), SharedKernel(3, 2))
    free = MessagePassing(Grid(kernel_size=(3, 3)), SharedKernel(3, 2))
    free.load_state_dict(built.state_dict())
    assert torch.equal(free(x, grid=(3, 4)), built(x))
    assert torch.equal(free(Tokens(x, grid=(3, 4))), built(Tokens(x, grid=(3, 4))))
    assert free(x, grid=(4, 3)).shape == built(x).shape and not torch.equal(free(x, grid=(4, 3)), built(x))
    for wrong, text in ((None, "expected grid= at the call"), ((2, 2, 3), "a grid of 2 axes")):
        with pytest.raises(ValueError, match=text):
            free(x, grid=wrong)
    with pytest.raises(ValueError, match=r"as .* was built with"):
        built(x, grid=(4, 3))


@pytest.mark.parametrize("n", [1, 4])
def test_compiled_rules_hold_what_they_list(n: int) -> None:
    """Those that give as many edges whatever their values: rows that are no pair are none of the other rule's."""
    x = torch.randn(n, 3)
    for rule in (
        AllTokens(causal=True) & Random(3, 5),
        AllTokens() - Random(3, 5),
        Window(2) - (Random(2, 0) & KNN(2)),
    ):
        layer = MessagePassing(rule, SharedKernel(3, 3, fixed=True))
        compiled = torch.compile(layer, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(x), layer(x))


@pytest.mark.parametrize("rule", [Window(2, 1), Random(2, 0) | Window(0), AllTokens() - Window(1)], ids=repr)
def test_compiled_without_sources(rule: Neighbours) -> None:
    layer, x = MessagePassing(rule, QKSoftmax(4, 2)), torch.randn(5, 4)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, source=x[:0]), layer(x, source=x[:0]))
