"""Laws of what expressions leave out: a rule that stands for another meets its pairs, and no others."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from mpnn import MessagePassing, Tokens, attend
from mpnn.neighbours import KNN, AllTokens, Blocks, Full, Global, Graph, Grid, Neighbours, Random, Union, Window
from mpnn.neighbours.base import OPERATORS
from mpnn.positions import ALiBi
from mpnn.weights import EdgeLearned, QKSoftmax, SharedKernel

N = 7
GRAPH = Graph(torch.tensor([[0, 0, 5, 2, 6], [3, 3, 5, 4, 0]]), N)
RULES: list[Neighbours] = [
    Window(2, 1),
    Window(1, 0),
    Window(1, 0, dilation=2),
    Window(6),
    AllTokens(),
    AllTokens(causal=True),
    Full(N),
    Blocks(3),
    Global(2),
    Random(2, 0),
    KNN(2),
    Grid(N, 3, border="reflect"),
    GRAPH,
    GRAPH - Window(0),
    Window(1, 0) | GRAPH,
]
PLACES = Tokens(torch.randn(N, 1), coordinates=torch.tensor([[0.0], [1], [1], [3], [4], [4], [9]]))
BATCH = torch.tensor([0, 0, 0, 1, 1, 1, 1])


def ends(rule: Neighbours) -> set[tuple[int, int]]:
    found = rule.edges(N, N, tokens=PLACES)
    return set(zip(found.target.tolist(), found.source.tolist(), strict=True))


@pytest.mark.parametrize("a", RULES, ids=repr)
def test_what_is_within_another_is_part_of_it(a: Neighbours) -> None:
    for b in RULES:
        assert not a.within(b) or ends(a) <= ends(b)
        if a == b or b.complete:
            assert a.within(b)


@pytest.mark.parametrize("sign", OPERATORS)
@pytest.mark.parametrize("a", RULES, ids=repr)
def test_parts_and_simpler_rules_meet_the_same_pairs(a: Neighbours, sign: str) -> None:
    for b, third in itertools.product(RULES, (None, GRAPH)):
        rule = OPERATORS[sign](a, b)
        rule = rule if third is None else third | rule
        assert ends(rule.alone()) == ends(rule)
        if isinstance(rule, Union):
            parts = [ends(part) for part in rule.parts()]
            assert set().union(*parts) == ends(rule) and sum(map(len, parts)) == len(ends(rule))


SIMPLER: list[tuple[Neighbours, type]] = [
    (GRAPH | AllTokens(), AllTokens),
    (AllTokens(causal=True) | (Window(2) | AllTokens()), AllTokens),
    (Window(2) | Window(1, dilation=2) | Window(1), Window),
    (Window(2) & AllTokens(), Window),
    (AllTokens() & Random(2, 0), Random),
    (KNN(2) | KNN(2), KNN),
    (Full(N) | GRAPH, Full),
]


@pytest.mark.parametrize(("rule", "kind"), SIMPLER, ids=repr)
def test_attention_runs_as_the_simpler_rule(rule: Neighbours, kind: type) -> None:
    assert type(rule.alone()) is kind
    layer, plain = (MessagePassing(r, QKSoftmax(4, 2, score_bias=ALiBi(2))) for r in (rule, rule.alone()))
    plain.load_state_dict(layer.state_dict())
    x, given = torch.randn(N, 4), {"coordinates": PLACES.coordinates} if rule.reads_tokens else {}
    mask = torch.arange(N) != 2
    for more in ({}, {"mask": mask}, {"mask": mask, "pair_mask": torch.rand(2, N, N) < 0.7}):
        torch.testing.assert_close(layer(x, **given, **more), plain(x, **given, **more), rtol=0, atol=0)
        (y, edges), (z, others) = (r(x, **given, **more, return_weights=True) for r in (layer, plain))
        assert torch.equal(edges.source, others.source) and torch.equal(edges.weight, others.weight)
        assert edges.index is None and torch.equal(y, z)
    plans = [r.plan(x, **given) for r in (layer, plain)]
    assert plans[0].kernel == plans[1].kernel and plans[0].edges == plans[1].edges
    assert f"(its pairs are those of {kind.__name__})" in str(plans[0])
    with pytest.raises(ValueError, match=f"one rule, {kind.__name__}, which runs alone"):
        attend(*torch.randn(3, 1, N, 2), rule, kernel="merge", **given)


def test_a_batch_sees_the_same() -> None:
    q = torch.randn(1, N, 2)
    inside = Graph(torch.tensor([[0, 5], [1, 4]]), N)
    torch.testing.assert_close(
        attend(q, q, q, inside | AllTokens(), batch=BATCH), attend(q, q, q, AllTokens(), batch=BATCH)
    )


def test_whoever_reads_relations_keeps_the_expression() -> None:
    x = torch.randn(N, 2)
    rule = Window(1) | Window(2)
    assert type(rule.alone()) is Window
    found: list[Any] = []
    network = EdgeLearned(2, 2, lambda p: found.append(p.relation) or p.x_source, heads=2)  # type: ignore[func-returns-value]
    MessagePassing(rule, network)(x)
    assert int(torch.cat(found).max()) == rule.relations - 1
    assert MessagePassing(rule, SharedKernel(2, 2)).plan(x).spec.expression is None
    q = torch.randn(1, N, 2)
    kinds: list[Any] = []
    attend(q, q, q, rule, score=lambda s, p: kinds.append(p.relation) or s)  # type: ignore[func-returns-value]
    assert int(torch.cat(kinds).max()) == rule.relations - 1


def test_a_changed_rule_is_within_no_longer() -> None:
    q, rule = torch.randn(1, N, 2), Window(4) | Window(1)
    before = attend(q, q, q, rule)
    rule.right.left = 6  # type: ignore[union-attr]
    rule.right.relations = 8  # type: ignore[union-attr]
    torch.testing.assert_close(attend(q, q, q, rule), attend(q, q, q, Window(6, 4)))
    assert not torch.allclose(before, attend(q, q, q, rule))
