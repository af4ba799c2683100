"""What is printed of a result: a head, a line for each case and mode, the floors that are missed, the exponents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.results import Record

MODES = {"forward": "fwd", "train": "fwd+bwd"}


def seconds(value: float) -> str:
    """Three digits and a unit.

    >>> seconds(0.01234), seconds(2.5e-6)
    ('12.3 ms', '2.5 µs')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def size(count: float) -> str:
    """Three digits and a unit.

    >>> size(3 * 2**20), size(1200)
    ('3 MiB', '1.17 KiB')
    """
    for unit, one in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= one:
            return f"{count / one:.3g} {unit}"
    return f"{count / 2**10:.3g} KiB"


def head(result: Record) -> list[str]:
    """Command line, device and versions."""
    about = result["about"]
    versions = ", ".join(f"{name} {v}" for name, v in about["versions"].items())
    return [
        f"command: {result['command']}",
        f"machine: {about['machine']}, {about['device']}, {about['threads']} threads, {about['capability']}",
        f"versions: Python {about['python']}, {versions}, commit {about['commit']}",
    ]


def lines(entry: Record) -> list[str]:
    """What a case found, one line a mode."""
    name = f"{entry['key']:24s}"
    if "left_out" in entry:
        return [f"{name} left out: {entry['left_out']}"]
    if not entry["gate"]["green"]:
        gate = entry["gate"]
        return [f"{name} RED GATE: {gate['words']} (tolerance {gate['tolerance']:.0e}); no speed behind a red gate"]
    return [f"{name} {line(entry, mode)}" for mode in entry["modes"]]


def line(entry: Record, mode: str) -> str:
    """Kernel, seconds, ratios or overhead, roof, memory, floors, and how quiet the rounds were."""
    found = entry["modes"][mode]
    parts = [
        f"{MODES[mode]:7s} {entry['kernel']:12s} {seconds(found['seconds']['mpnn']['median']):>8s}",
        *against(entry, found),
    ]
    if "roof_fraction" in found:
        parts.append(f"{found['roof_fraction']:.0%} of the roof")
    memory = (entry["memory"] or {}).get("mpnn", {}).get(mode)
    if memory is not None:
        parts.append(f"peak {size(memory['peak'])}, above {size(memory['above'])}")
    parts += [floor(name, judged) for name, judged in found["floors"].items()]
    parts.append(f"first call {seconds(entry['first']['mpnn'][mode])}")
    if entry.get("hurried"):
        parts.append("HURRIED: the time of the run was used up")
    if found["disturbed"]:
        parts.append(f"NOISY: others disturbed {found['disturbed']} of {found['rounds']} rounds")
    return "  ".join(parts)


def against(entry: Record, found: Record) -> list[str]:
    """The ratios, or for dispatch the seconds above the bare calls."""
    if entry["workload"] == "dispatch":
        above = found["overhead"]
        spread = ", ".join(f"{above[k] * 1e6:.1f}" for k in ("low", "high"))
        return [f"{above['median'] * 1e6:+.1f} µs [{spread}] above {found['best']['peer']}"]
    names = [n for n in ("customary", "best") if n in found]
    if len(names) == 2 and found["best"]["peer"] == found["customary"]["peer"]:
        names = ["customary"]
    made = []
    for name in names:
        peer = found[name]["peer"]
        once = f" (one call of {seconds(found['seconds'][peer]['median'])})" if peer in found["once"] else ""
        made.append(f"{ratio(found[name])} {name} {peer}{once}")
    return made


def ratio(found: Mapping[str, float]) -> str:
    """×median [quartiles]."""
    return f"×{found['median']:.3g} [{found['low']:.3g}, {found['high']:.3g}]"


def value(name: str, number: float) -> str:
    """A number as its floor counts it."""
    if name == "overhead":
        return f"{number * 1e6:.1f} µs"
    return size(number) if name == "memory" else f"×{number:.3g}"


def floor(name: str, judged: Mapping[str, Any]) -> str:
    """Whether a floor is met."""
    sign = "≤" if name in ("overhead", "memory") else "≥"
    return f"{'ok' if judged['met'] else 'MISSED'}: {name} {sign} {value(name, judged['floor'])}"


def miss(found: tuple[Record, str, str]) -> str:
    """A floor that is missed."""
    entry, mode, name = found
    judged = entry["modes"][mode]["floors"][name]
    return f"{entry['key']} {MODES[mode]}: {value(name, judged['value'])}, floor {name} {value(name, judged['floor'])}"


def exponent(found: Mapping[str, Any]) -> str:
    """How a side scales along a series."""
    memory = "" if found["memory"] is None else f", memory above ∝ {found['axis']}^{found['memory']:.2f}"
    time = "?" if found["time"] is None else f"{found['time']:.2f}"
    name = f"{found['series']:8s} {MODES[found['mode']]:7s} {found['side']:28s}"
    return f"{name} time ∝ {found['axis']}^{time}{memory}"
