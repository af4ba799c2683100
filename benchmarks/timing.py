"""Interleaved rounds: every side in every round, disturbed rounds discarded, ratios by round."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.machine import Others

LEAST = 0.02  # seconds that one side runs in a round, at least
SPAN = 0.4  # seconds of a round, at least: the kernel's account of processor time has ticks of 10 ms
SHARE = 0.05  # of a core: a round in which others took more is discarded
TRIES = 3  # rounds tried for each round wanted
TURNS = 4  # in a round, at most: a machine whose speed drifts is then the same for all sides


@dataclass
class Timing:
    """Seconds a call, by side and round.

    ``discarded``: rounds that others disturbed and that were repeated · ``disturbed``: how many of the rounds kept are
    disturbed nevertheless, since every try was used up.
    """

    seconds: dict[str, list[float]]
    repetitions: dict[str, int] = field(default_factory=dict)
    discarded: int = 0
    disturbed: int = 0

    def median(self, name: str) -> float:
        """The median over rounds."""
        return statistics.median(self.seconds[name])

    def best(self, names: list[str]) -> str:
        """The side with the smallest median."""
        return min(names, key=self.median)

    def ratio(self, peer: str, ours: str) -> Spread:
        """How many times faster ours is: peer's seconds by ours, round by round."""
        pairs = zip(self.seconds[peer], self.seconds[ours], strict=True)
        return Spread.of([a / b for a, b in pairs])

    def above(self, ours: str, peer: str) -> Spread:
        """Seconds a call that ours takes above a peer's."""
        return Spread.of([a - b for a, b in zip(self.seconds[ours], self.seconds[peer], strict=True)])


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: list[float]) -> Spread:
        if len(values) < 2:
            return Spread(values[0], values[0], values[0])
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return Spread(middle, low, high)


def settle() -> None:
    """Wait for a GPU that this process uses: calls return before it has done their work."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def seconds_of(call: Callable[[], Any]) -> float:
    """One call."""
    settle()
    start = time.perf_counter()
    call()
    settle()
    return time.perf_counter() - start


def repetitions(call: Callable[[], Any], least: float) -> int:
    """How often to call so that it takes ``least`` seconds, told from an eighth of that; warms up on the way."""
    number, spent = 1, seconds_of(call)
    if spent < 5 * least:  # the first one may have been cold
        spent = min(spent, seconds_of(call))
    while spent < least / 8:
        number = max(2 * number, int(number * least / 6 / max(spent, 1e-9)) + 1 if number > 1 else 2)
        start = time.perf_counter()
        for _ in range(number):
            call()
        settle()
        spent = time.perf_counter() - start
    return max(1, math.ceil(number * least / spent - 0.01))


def interleave(
    calls: Mapping[str, Callable[[], Any]],
    rounds: int,
    *,
    budget: float = 10.0,
    span: float = 1.0,
    others: Others | None = None,
) -> Timing:
    """Time the calls in turn, each round in another order, ``rounds`` times or, where calls are slow, as often as
    ``budget`` seconds allow, three at least.

    ``span``: how long a round is, in parts of ``SPAN``.
    """
    others = Others() if others is None else others
    least = max(LEAST, span * SPAN / len(calls))
    number = {name: repetitions(call, least) for name, call in calls.items()}
    kept: list[dict[str, float]] = []
    spoilt: list[tuple[float, dict[str, float]]] = []
    names = list(calls)
    collecting = gc.isenabled()
    gc.disable()
    begun = time.perf_counter()
    try:
        for tried in range(TRIES * rounds):
            done, spent = len(kept) + len(spoilt), time.perf_counter() - begun
            if len(kept) >= rounds or (done >= 3 and spent > budget and (len(kept) >= 3 or spent > TRIES * budget)):
                break
            start = tried % len(names)
            before = others.read()
            found = _round(calls, number, names[start:] + names[:start])
            after = others.read()
            share, allowed = others.share(before, after), others.allowed(after[0] - before[0], SHARE)
            if share <= allowed:
                kept.append(found)
            else:
                spoilt.append((share, found))
    finally:
        if collecting:
            gc.enable()
    # where the tries are used up, the least disturbed rounds stand in, and the count of them is told
    wanted = min(rounds, max(3, len(kept)))
    added = [found for _, found in sorted(spoilt, key=lambda pair: pair[0])[: max(0, wanted - len(kept))]]
    used = kept + added
    seconds = {name: [found[name] for found in used] for name in names}
    return Timing(seconds, number, discarded=len(spoilt) - len(added), disturbed=len(added))


def _round(calls: Mapping[str, Callable[[], Any]], number: Mapping[str, int], order: list[str]) -> dict[str, float]:
    """Seconds a call of each side, whose calls are spread over the turns of the round."""
    turns = min(TURNS, max(number.values()))
    spent = dict.fromkeys(order, 0.0)
    for turn in range(turns):
        for name in order:
            call, share = calls[name], number[name] * (turn + 1) // turns - number[name] * turn // turns
            start = time.perf_counter()
            for _ in range(share):
                call()
            settle()
            spent[name] += time.perf_counter() - start
    return {name: spent[name] / number[name] for name in order}
