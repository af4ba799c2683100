"""One case from the gate to its record: equality, rounds, ratios, roof, floors, memory."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.case import FORWARD, TRAIN, Case, Entry, Side
from benchmarks.equality import Gate, compare, forward, train, upstream
from benchmarks.machine import Others
from benchmarks.memory import Server
from benchmarks.roofs import Roofs
from benchmarks.timing import Spread, Timing, interleave, seconds_of


@dataclasses.dataclass(frozen=True)
class Settings:
    """How carefully to measure: ``limit`` seconds a call for a peer to be timed in rounds, ``budget`` seconds a mode."""

    rounds: int = 9
    budget: float = 5.0
    limit: float = 2.0
    threads: int = 2
    training: bool = True


def record(entry: Entry, roofs: Roofs | None, memory: Server | None, settings: Settings) -> dict[str, Any]:
    """Everything that is known about a case, as plain values. A case with a red gate has no timings."""
    torch.set_num_threads(entry.threads or settings.threads)
    try:
        case = entry.make()
        trained = settings.training and case.ours.trains
        gate = compare(case, training=trained)
        made: dict[str, Any] = {
            "key": entry.key, "workload": entry.workload, "title": entry.title, "size": dict(entry.size), "kernel": case.kernel,
            "note": case.note, "threads": torch.get_num_threads(), "series": None if entry.series is None else list(entry.series),
            "gate": {"green": gate.green, "worst": gate.worst, "tolerance": gate.tolerance, "words": gate.words(), "errors": gate.errors},
            "first": gate.first, "modes": {}, "memory": None,
        }  # fmt: skip
        if gate.green:
            for mode in (FORWARD, TRAIN) if trained else (FORWARD,):
                made["modes"][mode] = _mode(entry, case, gate, mode, roofs, settings)
            names = [s.name for s in (case.ours, *case.peers) if _small(s, gate, settings)]
            modes = list(made["modes"])
            del case
            gc.collect()
            if memory is not None:
                made["memory"] = _memory(memory.ask(entry.key, names, modes))
        return made
    finally:
        torch.set_num_threads(settings.threads)
        gc.collect()


def _small(side: Side, gate: Gate, settings: Settings) -> bool:
    """Whether another two calls of a side in a fresh process are worth their time."""
    return not side.compiled and max(gate.first[side.name].values()) <= 2 * settings.limit


def _mode(entry: Entry, case: Case, gate: Gate, mode: str, roofs: Roofs | None, settings: Settings) -> dict[str, Any]:
    sides = [s for s in (case.ours, *case.peers) if mode == FORWARD or s.trains]
    calls = {s.name: _call(s, mode) for s in sides}
    once: dict[str, float] = {}
    for side in sides:
        first = gate.first[side.name][mode]
        if first > settings.limit:
            again = side.compiled or side is case.ours or first < 5 * settings.limit
            first = min(first, seconds_of(calls[side.name])) if again else first
        if first > settings.limit:
            once[side.name] = first
    ours = case.ours.name
    timed = {name: call for name, call in calls.items() if name not in once}
    timing = interleave(timed, settings.rounds, budget=settings.budget, others=Others()) if timed else Timing({})
    for name, seconds in once.items():
        timing.seconds[name] = [seconds]
    peers = [s.name for s in sides if s is not case.ours]
    made: dict[str, Any] = {
        "seconds": {name: dataclasses.asdict(Spread.of(found)) for name, found in timing.seconds.items()},
        "rounds": max((len(timing.seconds[n]) for n in timed), default=0), "repetitions": timing.repetitions,
        "discarded": timing.discarded, "disturbed": timing.disturbed, "once": sorted(once),
    }  # fmt: skip
    values: dict[str, float] = {}
    if peers:
        for against, peer in (("customary", peers[0]), ("best", timing.best(peers))):
            ratio = _ratio(timing, peer, ours, once)
            made[against] = {"peer": peer, **dataclasses.asdict(ratio)}
            values[against] = ratio.median
        if not once:
            above = timing.above(ours, timing.best(peers))
            made["overhead"] = dataclasses.asdict(above)
            values["overhead"] = above.median
    work = case.work if mode == FORWARD else case.train_work
    if roofs is not None and roofs.seconds(work) > 0:
        made["roof_seconds"] = roofs.seconds(work)
        made["roof_fraction"] = made["roof_seconds"] / timing.median(ours)
    made["floors"] = {
        against: {"floor": floor, "value": values[against], "met": met(against, values[against], floor)}
        for (asked, against), floor in entry.floors.items()
        if asked == mode and against in values
    }
    return made


def met(against: str, value: float, floor: float) -> bool:
    """A ratio is a floor, an overhead a ceiling."""
    return value <= floor if against == "overhead" else value >= floor


def _call(side: Side, mode: str) -> Callable[[], Any]:
    call = forward(side)
    return call if mode == FORWARD else train(side, upstream(side, call()))


def _ratio(timing: Timing, peer: str, ours: str, once: dict[str, float]) -> Spread:
    if ours in once or peer in once:
        return Spread.of([timing.median(peer) / timing.median(ours)])
    return timing.ratio(peer, ours)


def _memory(found: Any) -> dict[str, Any] | None:
    if found is None:
        return None
    return {name: {mode: dataclasses.asdict(m) for mode, m in modes.items()} for name, modes in found.items()}
