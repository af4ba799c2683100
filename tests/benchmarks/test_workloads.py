"""The workloads: sides of every case that is small enough for a test agree."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks import graphs, run
from benchmarks.case import FORWARD, TRAIN, Case
from benchmarks.cases import dispatch, entries, w03_spmm, w05a_attend, w06_attention, w08_grid_attention
from benchmarks.equality import compare


@pytest.mark.parametrize("name", list(dispatch.MAKERS))
def test_the_bare_calls_are_the_layer(name: str) -> None:
    gate = compare(dispatch.make(name))
    assert gate.green, gate.words()


SMALL: dict[str, Callable[[], Case]] = {
    "W3": lambda: w03_spmm.make(graphs.Sample("small", graphs.uniform(40, 160), 40), 8),
    "W5a": lambda: w05a_attend.make(graphs.Sample("small", graphs.star(40, 160, cluster=10), 40)),
    "W5a small graphs": lambda: w05a_attend.make(graphs.Sample("G6", *graphs.complete(5))),
    "W6": lambda: w06_attention.make(48, False),
    "W9": lambda: w06_attention.make(48, True),
    "W8": lambda: w08_grid_attention.make(2, 2, 9),
}


@pytest.mark.parametrize("name", list(SMALL))
def test_small_cases_are_green(name: str) -> None:
    gate = compare(SMALL[name]())
    assert gate.green, gate.words()


KEYS = [
    "W1/128x784x256", "W4/G1", "W5b/TransformerConv-G1", "W5b/GATConv-G1", "W5b/GATv2Conv-G1", "W7/causal-256-1024",
    "W13/gcn-G1",
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_listed_cases_are_green(key: str) -> None:
    gate = compare({e.key: e for e in entries()}[key].make())
    assert gate.green, gate.words()


def test_entries_are_well_formed() -> None:
    found = entries()
    assert len({e.key for e in found}) == len(found)
    assert {e.scope for e in found} == {"smoke", "bench", "scale"}
    for entry in found:
        assert entry.title and all(n > 0 for n in entry.size.values())
        for (mode, against), floor in entry.floors.items():
            assert mode in (FORWARD, TRAIN) and against in ("customary", "best", "overhead", "memory") and floor > 0
        if entry.series is not None:
            assert entry.series[1] in entry.size
    counts: dict[str, int] = {}
    for entry in found:
        if entry.series is not None:
            counts[entry.series[0]] = counts.get(entry.series[0], 0) + 1
    assert counts and min(counts.values()) >= 5, "an exponent is fitted over five sizes at least"


def test_every_workload_is_in_the_default_run() -> None:
    here = run.select(run.arguments([]))
    assert {e.workload for e in here} == {e.workload for e in entries()} - {"W14"}
    counts = [e.series[0] for e in here if e.series is not None]
    assert counts and all(counts.count(name) == 5 for name in counts)
