"""The rounds of a timing, by a clock that only work moves. No test depends on how fast anything is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import measure as measuring
from benchmarks import timing
from benchmarks.case import FORWARD, TRAIN, Side


class Clock:
    """A clock that only work moves, and others who disturb the rounds that they are told to."""

    known, tick = True, 0.01

    def __init__(self, disturbed: Callable[[int], bool] = lambda n: False) -> None:
        self.now, self.round, self.disturbed = 0.0, -1, disturbed

    def perf_counter(self) -> float:
        return self.now

    def work(self, seconds: float) -> Callable[[], None]:
        def call() -> None:
            self.now += seconds

        return call

    def read(self) -> tuple[float, float, float]:
        return self.now, 0.0, 0.0

    def share(self, before: tuple, after: tuple) -> float:
        self.round += 1
        return 0.5 + self.round / 1000 if self.disturbed(self.round) else 0.0

    def allowed(self, seconds: float, share: float) -> float:
        return share


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=made.perf_counter))
    return made


def test_ratios_are_those_of_the_work(clock: Clock) -> None:
    calls = {"ours": clock.work(0.002), "slower": clock.work(0.006), "faster": clock.work(0.001)}
    found = timing.interleave(calls, 5, others=clock)
    assert [len(s) for s in found.seconds.values()] == [5, 5, 5]
    assert found.ratio("slower", "ours").median == pytest.approx(3.0)
    assert found.ratio("faster", "ours").median == pytest.approx(0.5)
    assert found.above("ours", "faster").median == pytest.approx(0.001)
    assert found.best(["slower", "faster"]) == "faster"
    assert (found.discarded, found.disturbed) == (0, 0)


def test_a_machine_that_slows_down_does_so_for_all_sides(clock: Clock) -> None:
    def drifting(seconds: float) -> Callable[[], None]:
        return lambda: clock.work(seconds * (1 + 0.3 * clock.now))()

    found = timing.interleave({"ours": drifting(0.001), "peer": drifting(0.001)}, 5, others=clock)
    ratio = found.ratio("peer", "ours")
    assert 0.97 < ratio.low <= ratio.high < 1.03


def test_each_side_runs_long_enough_in_a_round(clock: Clock) -> None:
    found = timing.interleave({"a": clock.work(1e-4), "b": clock.work(0.05)}, 3, others=clock)
    assert found.repetitions["a"] * 1e-4 >= 0.99 * timing.SPAN / 2
    assert found.repetitions["b"] * 0.05 >= 0.99 * timing.SPAN / 2
    for name in ("a", "b"):
        assert timing.LEAST <= timing.SPAN / 2 and found.repetitions[name] >= 1


def test_disturbed_rounds_are_repeated(clock: Clock) -> None:
    clock.disturbed = lambda n: n in (0, 2)
    found = timing.interleave({"a": clock.work(0.01)}, 4, others=clock)
    assert (len(found.seconds["a"]), found.discarded, found.disturbed) == (4, 2, 0)


def test_tries_are_bounded_and_the_rest_is_told(clock: Clock) -> None:
    clock.disturbed = lambda n: n != 5
    found = timing.interleave({"a": clock.work(0.01)}, 4, others=clock)
    assert clock.round + 1 == timing.TRIES * 4
    assert found.disturbed == 2, "three rounds at least: one quiet, two of the disturbed ones"
    assert found.discarded == timing.TRIES * 4 - 3


def test_slow_calls_get_three_rounds(clock: Clock) -> None:
    found = timing.interleave({"a": clock.work(5.0)}, 9, budget=4.0, others=clock)
    assert len(found.seconds["a"]) == 3


def test_the_order_turns(clock: Clock) -> None:
    order: list[str] = []
    calls = {name: (lambda n=name: (order.append(n), clock.work(1.0)())[0]) for name in ("a", "b")}
    timing.interleave(calls, 2, others=clock)
    assert order[-4:] == ["a", "b", "b", "a"]


def test_a_spread_is_median_and_quartiles() -> None:
    assert timing.Spread.of([5.0, 1.0, 2.0, 3.0, 4.0]) == timing.Spread(3.0, 2.0, 4.0)
    assert timing.Spread.of([7.0]) == timing.Spread(7.0, 7.0, 7.0)


def test_others_are_counted_in_cores() -> None:
    from benchmarks.machine import Others

    others = Others()
    if not others.known:
        pytest.skip("needs /proc/stat")
    assert others.share((0.0, 10.0, 1.0), (2.0, 14.0, 4.0)) == pytest.approx(0.5)  # 4 s in all, 3 ours, over 2 s
    assert others.share((0.0, 0.0, 0.0), (1.0, 1.0, 1.5)) == 0.0
    assert others.allowed(10.0, 0.05) == 0.05
    assert others.allowed(0.1, 0.05) == pytest.approx(2 * others.tick / 0.1)


def test_a_round_of_a_series_is_half_as_long(clock: Clock) -> None:
    found = timing.interleave({"a": clock.work(0.01)}, 3, span=0.5, others=clock)
    assert found.repetitions["a"] * 0.01 == pytest.approx(timing.SPAN / 2)


def test_repetitions_do_not_follow_a_first_call_that_made_something(clock: Clock) -> None:
    first = [0.5]
    call = lambda: clock.work(first.pop() if first else 1e-3)()  # noqa: E731
    assert timing.repetitions(call, 0.2) * 1e-3 >= 0.19


def slow(clock: Clock, seconds: float, **given: Any) -> tuple[Side, Callable[[], None]]:
    side = Side("peer", lambda: torch.zeros(1), {})
    return dataclasses.replace(side, **given), clock.work(seconds)


def test_a_slow_peer_has_one_call(clock: Clock) -> None:
    careful = measuring.Settings(limit=0.5)
    side, call = slow(clock, 0.7)
    assert measuring._slow(side, 0.4, call, careful) is None and clock.now == 0
    assert measuring._slow(side, 1.0, call, careful) == pytest.approx(0.7), "the first call was cold"
    assert measuring._slow(side, 3.0, call, careful) == 3.0, "no second call"
    side, call = slow(clock, 0.3)
    assert measuring._slow(side, 1.0, call, careful) is None, "only the first call was slow"
    side, call = slow(clock, 4.0, step=lambda: None)
    assert measuring._slow(side, 3.0, call, careful) == pytest.approx(4.0), "a step is more than its gradients"
    side, call = slow(clock, 4.0, name="mpnn")
    assert measuring._slow(side, 5.0, call, careful) is None, "ours has rounds"


def test_a_step_is_timed_alone() -> None:
    side = Side("mpnn", lambda: torch.zeros(1), {})
    assert measuring.modes(side) == (FORWARD, TRAIN)
    assert measuring.modes(dataclasses.replace(side, trains=False)) == (FORWARD,)
    assert measuring.modes(dataclasses.replace(side, step=lambda: None)) == (TRAIN,)
