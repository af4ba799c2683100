"""Random: distinct sources, uniformly drawn, the same everywhere and always."""

from __future__ import annotations

import pytest
import torch

from mpnn import MessagePassing, Tokens
from mpnn.neighbours import AllTokens, Random
from mpnn.weights import QKSoftmax


@pytest.mark.parametrize(("degree", "sources"), [(1, 1), (3, 10), (10, 10), (12, 10), (9, 10), (4, 0)])
def test_distinct_sources(degree: int, sources: int) -> None:
    edges = Random(degree, seed=5).edges(40, sources)
    count = min(degree, sources)
    assert torch.equal(edges.target, torch.arange(40).repeat_interleave(count))
    rows = edges.source.view(40, count)
    assert (rows[:, 1:] > rows[:, :-1]).all() and (rows >= 0).all() and (rows < sources).all()


def test_every_subset_is_as_likely() -> None:
    """Of 6 sources 3: 20 subsets, 10,000 times each; the largest of 20 deviations stays under 5 of its sigmas."""
    rows = Random(3, seed=0).edges(200_000, 6).source.view(-1, 3)
    subset = (rows * torch.tensor([36, 6, 1])).sum(1)
    count = torch.unique(subset, return_counts=True)[1]
    assert len(count) == 20
    assert (count - 10_000).abs().max() < 5 * (10_000 * 0.95) ** 0.5


def test_targets_and_seeds_are_independent() -> None:
    """Pairs of neighbouring targets, and of neighbouring seeds, agree as often as chance has it: 1 in 8."""
    for one, two in (
        (Random(1, seed=0).edges(80_000, 8).source[:-1], Random(1, seed=0).edges(80_000, 8).source[1:]),
        (Random(1, seed=0).edges(80_000, 8).source, Random(1, seed=1).edges(80_000, 8).source),
    ):
        share = (one == two).double().mean().item()
        assert abs(share - 1 / 8) < 5 * (7 / 64 / 80_000) ** 0.5


def test_the_same_always() -> None:
    """These very numbers, in any process, whatever the random state; none of it is used."""
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    rule = Random(2, seed=0)
    assert rule.edges(3, 5).source.tolist() == [0, 2, 1, 4, 0, 4]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(rule.edges(9, 100, rows=slice(4, 7)).source, rule.edges(9, 100).source[8:14])
    assert Random(2, seed=2**40 + 3).edges(3, 5).source.tolist() == Random(2, seed=3).edges(3, 5).source.tolist()
    assert Random(2, seed=1).edges(9, 100).source.tolist() != rule.edges(9, 100).source.tolist()


def test_a_batch_is_its_graphs_one_by_one() -> None:
    sizes, others = [3, 0, 1, 7, 2], [2, 1, 0, 6, 4]
    x, y = torch.randn(13, 4), torch.randn(13, 4)
    batch, other = (torch.repeat_interleave(torch.arange(5), torch.tensor(t)) for t in (sizes, others))
    layer = MessagePassing(Random(3, seed=2), QKSoftmax(4, 2))
    torch.testing.assert_close(layer(x, batch=batch), torch.cat([layer(x[batch == g]) for g in range(5)]))
    parts = [layer(x[batch == g], source=y[other == g]) for g in range(5)]
    torch.testing.assert_close(layer(x, source=Tokens(y, batch=other), batch=batch), torch.cat(parts))


def test_sparse_attention_is_masked_attention() -> None:
    rule = Random(3, seed=7)
    layer, x = MessagePassing(rule, QKSoftmax(4, 2)), torch.randn(2, 20, 4)
    edges = rule.edges(20, 20)
    mask = torch.zeros(20, 20, dtype=torch.bool)
    mask[edges.target, edges.source] = True
    torch.testing.assert_close(layer(x), MessagePassing(AllTokens(), layer.weight)(x, pair_mask=mask))
    fast = torch.compile(layer, fullgraph=True, dynamic=True, backend="eager")
    for n in (20, 2):
        torch.testing.assert_close(fast(x[:, :n]), layer(x[:, :n]))
