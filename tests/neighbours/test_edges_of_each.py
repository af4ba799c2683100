"""edges() of every neighbourhood against a loop over targets and sources, whole and in slices of targets."""

from __future__ import annotations

import copy
import itertools
import pickle

import pytest
import torch

from helpers.calls import fixed_targets
from helpers.cases import PLACES
from helpers.oracle_pairs import pairs_of
from mpnn import Tokens
from mpnn.neighbours import Edges, Full, Graph, Grid

LISTED = [p for p, place in PLACES.items() if "edge_index" not in place.call]
each = pytest.mark.parametrize("name", LISTED)


def made(name: str, rows: slice | None = None) -> tuple[Edges, int]:
    """The edges of a case, and how many targets it has."""
    place = PLACES[name]
    n = place.targets or fixed_targets(place) or place.sources
    batch = place.batch or (None, None)
    source = Tokens(torch.ones(place.sources, 1), batch=batch[0], grid=place.call.get("grid"))
    target = Tokens(torch.ones(n, 1), batch=batch[1])
    return place.make().edges(n, place.sources, rows=rows, tokens=(source, target)), n


@each
def test_edges_are_those_of_the_loop(name: str) -> None:
    edges, n = made(name)
    place = PLACES[name]
    rule = place.make()
    pairs = pairs_of(rule, n, place.sources, batch=place.batch, grid=place.call.get("grid"))
    ends = list(zip(edges.target.tolist(), edges.source.tolist(), strict=True))
    expected = [(p.target, p.source) for p in pairs]
    if "own" in name:
        ends, expected = sorted(ends), sorted(expected)
    assert ends == expected
    if edges.offset is not None:
        assert edges.offset.tolist() == [list(p.offset) for p in pairs]
    relation = [0] * len(edges) if edges.relation is None else edges.relation.tolist()
    if rule.relations > 1:
        assert relation == [p.relation for p in pairs]
    assert all(0 <= r < rule.relations for r in relation) and edges.valid is None
    if isinstance(rule, Graph):
        assert edges.index is not None and edges.index.tolist() == [p.row for p in pairs]


@each
def test_slices_of_targets_make_the_whole(name: str) -> None:
    whole, n = made(name)
    order = torch.argsort(whole.target, stable=True)
    for cuts in ([0, n], [0, 1, n], list(range(n + 1)), [0, n, n]):
        slices = list(itertools.pairwise(cuts))
        parts = [made(name, slice(a, b))[0] for a, b in slices]
        if "own" in name:  # a person's own may return more than it was asked for
            continue
        for (a, b), part in zip(slices, parts, strict=True):
            assert all(a <= t < b for t in part.target.tolist())
        for field in ("source", "target", "relation", "offset", "index"):
            t = getattr(whole, field)
            assert t is None or torch.equal(torch.cat([getattr(p, field) for p in parts]), t[order]), field


@pytest.mark.parametrize("name", PLACES)
def test_rules_are_modules_without_parameters(name: str) -> None:
    rule = PLACES[name].make()
    assert not list(rule.parameters()) and not rule.state_dict()
    twin = PLACES[name].make()
    for other in (copy.deepcopy(rule), pickle.loads(pickle.dumps(rule)), twin):
        by_identity = "own" in name or any(isinstance(m, Graph) for m in rule.modules())
        assert (other == rule) is (not by_identity)
        assert by_identity or hash(other) == hash(rule)
        assert repr(other) == repr(rule)
    assert rule == rule and len({rule, rule}) == 1
    kinds = {k: t.dtype for k, t in rule.named_buffers()}
    rule.double().to(torch.bfloat16).half()
    assert {k: t.dtype for k, t in rule.named_buffers()} == kinds
    assert all(t.device.type == "meta" for t in rule.to("meta").buffers())


def test_rules_of_other_numbers_differ() -> None:
    rules = [PLACES[name].make() for name in LISTED if "own" not in name and not isinstance(PLACES[name].make(), Graph)]
    distinct = {repr(r) for r in rules}
    assert len(set(rules)) == len(distinct)
    assert Full(3) != Full(3, 3) and Grid(4, 3) != Grid((4, 4), 3)


@pytest.mark.parametrize("name", [p for p in PLACES if PLACES[p].make().pairs is not None])
def test_pairs_are_counted(name: str) -> None:
    rule, place = PLACES[name].make(), PLACES[name]
    batch = place.batch
    n = place.targets or fixed_targets(place) or place.sources
    places = {p.place for p in pairs_of(rule, n, place.sources, batch=batch, grid=place.call.get("grid"))}
    assert len(places) <= rule.pairs  # with a border of zeros, or few tokens, some are unused
    if isinstance(rule, Graph | Full):
        assert len(places) == rule.pairs
