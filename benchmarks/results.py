"""Result files: how they are written and read, which floors they miss, how their series scale."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import CEILINGS, met
from mpnn.data.files import write_text

FOLDER = Path(__file__).parent / "results"
Record = Mapping[str, Any]


def write(path: str | Path, result: Record) -> None:
    """At once and atomically."""
    write_text(path, json.dumps(_plain(dict(result)), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read(path: str | Path) -> dict[str, Any]:
    """A result file.

    Raises:
        ValueError: where the file is none.
    """
    result = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(result, dict) or "entries" not in result:
        raise ValueError(f"expected a result file of benchmarks.run, got {path}")
    return result


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become words. Numbers keep six digits."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return value


def measured(entries: Sequence[Record]) -> list[Record]:
    """The cases that were run and have a green gate."""
    return [e for e in entries if e["modes"]]


def red(entries: Sequence[Record]) -> list[Record]:
    """The cases whose sides differ."""
    return [e for e in entries if "gate" in e and not e["gate"]["green"]]


def missed(entries: Sequence[Record], slack: float = 1.0, *, quiet: bool = False) -> list[tuple[Record, str, str]]:
    """(case, mode, against) of every floor that is missed, each loosened by the factor ``slack``; with ``quiet`` only
    where no round that counts was disturbed. A ceiling in seconds or bytes is loosened by its square: unlike a ratio
    it follows the speed of the machine, which on shared ones changes by a factor of two."""
    found = []
    for entry in measured(entries):
        for mode, made in entry["modes"].items():
            if quiet and made["disturbed"]:
                continue
            for against, floor in made["floors"].items():
                asked = floor["floor"] * slack**2 if against in CEILINGS else floor["floor"] / slack
                if not met(against, floor["value"], asked):
                    found.append((entry, mode, against))
    return found


def exponents(entries: Sequence[Record]) -> list[dict[str, Any]]:
    """Exponents of time and of memory above inputs and outputs, by series, side and mode, of five sizes at least."""
    series: dict[str, list[Record]] = {}
    for entry in measured(entries):
        if entry["series"] is not None:
            series.setdefault(entry["series"][0], []).append(entry)
    made = []
    for name, points in series.items():
        axis = points[0]["series"][1]
        for mode, side in dict.fromkeys((m, s) for p in points for m in p["modes"] for s in p["modes"][m]["seconds"]):
            time, memory = points_of(points, side, mode, "time"), points_of(points, side, mode, "memory")
            if len(time) >= 5:
                made.append({
                    "series": name, "axis": axis, "mode": mode, "side": side, "sizes": [n for n, _ in time],
                    "time": slope(time), "memory": slope(memory) if len(memory) >= 5 else None,
                })  # fmt: skip
    return made


def points_of(points: Sequence[Record], side: str, mode: str, what: str) -> list[tuple[float, float]]:
    """(size, seconds) or (size, bytes above inputs and outputs) of a side along a series."""
    found = []
    for p in points:
        size = p["size"][p["series"][1]]
        spread = p["modes"].get(mode, {}).get("seconds", {}).get(side)
        use = (p["memory"] or {}).get(side, {}).get(mode)
        if what == "time" and spread is not None:
            found.append((size, spread["median"]))
        if what == "memory" and use is not None:
            found.append((size, use["above"]))
    return found


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """The least-squares exponent p of y = c · x^p; None where some y is no positive number.

    >>> round(slope([(n, 3 * n**2) for n in (1, 2, 4, 8, 16)]), 6)
    2.0
    """
    if any(y <= 0 for _, y in points):
        return None
    xs, ys = ([math.log(v) for v in column] for column in zip(*points, strict=True))
    mx, my = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True)) / sum((x - mx) ** 2 for x in xs)
