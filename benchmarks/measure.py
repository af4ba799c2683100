"""One case from the gate to its record: equality, rounds, ratios, roof, floors, memory."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from benchmarks.case import FORWARD, TRAIN, Case, Entry, LeftOut, Side
from benchmarks.equality import Gate, compare, forward, train
from benchmarks.memory import Server
from benchmarks.roofs import Roofs
from benchmarks.timing import Spread, Timing, interleave, seconds_of

OURS, OWN = "mpnn", 30.0  # our own calls have rounds up to this many seconds
AGAIN = 2.0  # seconds
CEILINGS = ("overhead", "memory")  # floors that are the most, not the least


@dataclass(frozen=True)
class Settings:
    """How carefully: who takes more than ``limit`` seconds a call has no rounds; a mode takes ``budget`` seconds.

    ``hurried``: the time of the run is used up, which the record of a case says.
    """

    rounds: int = 9
    budget: float = 4.0
    limit: float = 2.0
    threads: int = 2
    compiled: bool = True  # whether peers that a compiler makes take part
    hurried: bool = False
    span: float = 1.0  # how long a round is

    def hurry(self) -> Settings:
        """The least that gives a median: three short rounds, no compiler, one call of a peer that takes a fifth of a
        second."""
        limit = min(self.limit, 0.2)
        return replace(self, rounds=3, budget=0.0, span=0.25, limit=limit, compiled=False, hurried=True)


class Watch:
    """Seconds by what they went into."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        """What ends here."""
        now = time.perf_counter()
        self.spent[name] = self.spent.get(name, 0.0) + now - self.last
        self.last = now


def met(against: str, value: float, floor: float) -> bool:
    """A ratio is a floor; an overhead and a memory are ceilings."""
    return value <= floor if against in CEILINGS else value >= floor


def record(entry: Entry, roofs: Roofs | None, memory: Server | None, settings: Settings) -> dict[str, Any]:
    """Everything that is known about a case, as plain values. A case with a red gate has no timings."""
    torch.set_num_threads(entry.threads or settings.threads)
    watch = Watch()
    made: dict[str, Any] = {
        "key": entry.key, "workload": entry.workload, "title": entry.title, "size": dict(entry.size),
        "threads": torch.get_num_threads(), "series": entry.series, "modes": {}, "memory": None,
        "spent": watch.spent, "hurried": settings.hurried,
    }  # fmt: skip
    try:
        case = entry.make()
        case.peers = [p for p in case.peers if settings.compiled or not p.compiled]
        if entry.series is not None:
            case.peers = case.peers[:1]  # how it scales is asked of ours, and of what people write
        watch.lap("making")
        gate = compare(case)
        watch.lap("gate")
        made |= {"kernel": case.kernel, "note": case.note, "gate": gate.plain(), "first": gate.first}
        if not gate.green:
            return made
        for mode in modes(case.ours):
            made["modes"][mode] = _mode(entry, case, gate, mode, roofs, settings)
        watch.lap("rounds")
        names = [s.name for s in (case.ours, *case.peers) if s is case.ours or _small(s, gate, settings)]
        del case, gate
        if memory is not None:
            gc.collect()  # this process need not hold the tensors while a fresh one makes its own
            made["memory"] = memory.ask(entry.key, names, list(made["modes"]), torch.get_num_threads())
            for mode, found in made["modes"].items():
                own = (made["memory"] or {}).get("mpnn", {}).get(mode)
                _judge(entry, mode, {} if own is None else {"memory": own["peak"]}, found)
            watch.lap("memory")
        return made
    except LeftOut as reason:
        return made | {"left_out": str(reason)}
    finally:
        torch.set_num_threads(settings.threads)
        gc.collect()


def modes(side: Side) -> tuple[str, ...]:
    """What is timed: a whole step where there is one, and forward only where nothing trains."""
    return (TRAIN,) if side.step is not None else (FORWARD, TRAIN) if side.trains else (FORWARD,)


def _small(side: Side, gate: Gate, settings: Settings) -> bool:
    """Whether the calls of a peer in a fresh process, two a mode, are worth their time."""
    return not side.compiled and max(gate.first[side.name].values()) <= settings.limit / 2


def _judge(entry: Entry, mode: str, values: dict[str, float], found: dict[str, Any]) -> None:
    """Hold what was found against the floors of the case."""
    for (asked, against), floor in entry.floors.items():
        if asked == mode and against in values:
            value = values[against]
            found["floors"][against] = {"floor": floor, "value": value, "met": met(against, value, floor)}


def _mode(entry: Entry, case: Case, gate: Gate, mode: str, roofs: Roofs | None, settings: Settings) -> dict[str, Any]:
    sides = [s for s in (case.ours, *case.peers) if mode == FORWARD or s.trains]
    ours, peers = case.ours.name, [s.name for s in sides if s is not case.ours]
    calls = {s.name: forward(s) if mode == FORWARD else train(s, gate.gradients[s.name]) for s in sides}
    once = {s.name: t for s in sides if (t := _slow(s, gate.first[s.name][mode], calls[s.name], settings)) is not None}
    timed = {name: call for name, call in calls.items() if name not in once}
    rounds = settings.rounds if entry.series is None else min(3, settings.rounds)
    span = settings.span if entry.series is None else settings.span / 2  # the ratios of a series are not judged
    timing = interleave(timed, rounds, budget=settings.budget, span=span) if timed else Timing({})
    timing.seconds |= {name: [seconds] for name, seconds in once.items()}
    found: dict[str, Any] = {
        "seconds": {name: asdict(Spread.of(timing.seconds[name])) for name in calls},
        "rounds": max((len(timing.seconds[n]) for n in timed), default=0), "repetitions": timing.repetitions,
        "discarded": timing.discarded, "disturbed": timing.disturbed, "once": sorted(once), "floors": {},
    }  # fmt: skip
    values: dict[str, float] = {}
    for against, peer in (("customary", peers[0]), ("best", timing.best(peers))) if peers else ():
        ratio = _ratio(timing, peer, ours, once)
        found[against] = {"peer": peer, **asdict(ratio)}
        values[against] = ratio.median
    if peers and not once:
        above = timing.above(ours, timing.best(peers))
        found["overhead"] = asdict(above)
        values["overhead"] = above.median
    roof = 0.0 if roofs is None else roofs.seconds(case.work if mode == FORWARD else case.train_work)
    if roof > 0:
        found |= {"roof_seconds": roof, "roof_fraction": roof / timing.median(ours)}
    _judge(entry, mode, values, found)
    return found


def _slow(side: Side, first: float, call: Callable[[], Any], settings: Settings) -> float | None:
    """Seconds of one call where it is too slow for rounds. The first one was cold, so a second one is made where it
    takes less than ``AGAIN``, or where the first compiled or was no whole step."""
    limit = max(settings.limit, OWN) if side.name == OURS else settings.limit
    if first <= limit:
        return None
    if side.step is not None:
        least = seconds_of(call)
    else:
        least = min(first, seconds_of(call)) if side.compiled or first < AGAIN else first
    return least if least > limit else None


def _ratio(timing: Timing, peer: str, ours: str, once: dict[str, float]) -> Spread:
    if ours in once or peer in once:
        return Spread.of([timing.median(peer) / timing.median(ours)])
    return timing.ratio(peer, ours)
