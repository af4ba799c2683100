"""Result files, and what is printed of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mpnn.data.files import write_text

FOLDER = Path(__file__).parent / "results"
MODES = {"forward": "fwd", "train": "fwd+bwd"}


def write(path: str | Path, result: Mapping[str, Any]) -> None:
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


def time_words(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def bytes_words(count: float) -> str:
    """MiB with three digits."""
    return f"{count / 2**20:.3g} MiB"


def head(result: Mapping[str, Any]) -> list[str]:
    """Device, versions, command line and roofs."""
    about = result["about"]
    versions = ", ".join(f"{name} {v}" for name, v in about["versions"].items())
    return [
        f"command: {result['command']}",
        f"machine: {about['machine']}, {about['threads']} threads, {about['capability']}",
        f"versions: Python {about['python']}, {versions}, commit {about['commit']}",
    ]


def lines(entry: Mapping[str, Any]) -> list[str]:
    """What a case found, one line a mode."""
    name = f"{entry['key']:24s}"
    if not entry["gate"]["green"]:
        return [f"{name} RED: {entry['gate']['words']} (tolerance {entry['gate']['tolerance']:.0e}); no speed"]
    return [f"{name} {mode_line(entry, mode)}" for mode in entry["modes"]]


def mode_line(entry: Mapping[str, Any], mode: str) -> str:
    """Seconds, both ratios, floors, roof, memory, and how quiet the rounds were."""
    found = entry["modes"][mode]
    ours = next(iter(found["seconds"]))
    parts = [
        f"{MODES[mode]:7s} {entry['kernel']:12s} {time_words(found['seconds']['mpnn' if 'mpnn' in found['seconds'] else ours]['median']):>8s}"
    ]
    if entry["workload"] == "dispatch":
        above = found["overhead"]
        parts.append(
            f"{above['median'] * 1e6:+.1f} µs [{above['low'] * 1e6:.1f}, {above['high'] * 1e6:.1f}] above {found['best']['peer']}"
        )
    else:
        same = "best" in found and found["best"]["peer"] == found["customary"]["peer"]
        for against in ("customary",) if same else ("customary", "best"):
            if against in found:
                parts.append(
                    f"{ratio_words(found[against])} {against} {found[against]['peer']}"
                    + _once(found, found[against]["peer"])
                )
    if "roof_fraction" in found:
        parts.append(f"roof {found['roof_fraction']:.0%}")
    memory = (entry["memory"] or {}).get("mpnn", {}).get(mode)
    if memory is not None:
        parts.append(f"peak {bytes_words(memory['peak'])}, above {bytes_words(memory['above'])}")
    parts += [floor_words(against, floor) for against, floor in found["floors"].items()]
    if found["disturbed"]:
        parts.append(f"NOISY: {found['disturbed']} of {found['rounds']} rounds disturbed")
    return "  ".join(parts)


def _once(found: Mapping[str, Any], peer: str) -> str:
    return (
        f" (one call of {time_words(found['seconds'][peer]['median'])}, too slow for rounds)"
        if peer in found["once"]
        else ""
    )


def ratio_words(ratio: Mapping[str, float]) -> str:
    """×median [quartiles]."""
    return f"×{ratio['median']:.3g} [{ratio['low']:.3g}, {ratio['high']:.3g}]"


def floor_words(against: str, floor: Mapping[str, Any]) -> str:
    """Whether a floor is met."""
    asked = f"{against} ≤ {floor['floor'] * 1e6:.0f} µs" if against == "overhead" else f"{against} ≥ {floor['floor']:g}"
    return f"{'ok' if floor['met'] else 'MISSED'}: {asked}"


def missed(entries: Sequence[Mapping[str, Any]], slack: float = 1.0) -> list[str]:
    """The floors that are missed, each loosened by a factor; red gates too."""
    from benchmarks.measure import met

    found = []
    for entry in entries:
        if not entry["gate"]["green"]:
            found.append(f"{entry['key']}: red gate, {entry['gate']['words']}")
        for mode, made in entry["modes"].items():
            for against, floor in made["floors"].items():
                asked = floor["floor"] * slack if against == "overhead" else floor["floor"] / slack
                if not met(against, floor["value"], asked):
                    value = f"{floor['value'] * 1e6:.1f} µs" if against == "overhead" else f"×{floor['value']:.3g}"
                    found.append(
                        f"{entry['key']} {MODES[mode]}: {value}, {floor_words(against, floor | {'floor': asked, 'met': False})}"
                    )
    return found


def exponents(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Scaling exponents by least squares in log-log, of time and of memory above inputs and outputs, by series, side and
    mode; of five sizes at least."""
    series: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        if entry["series"] is not None and entry["gate"]["green"]:
            series.setdefault(entry["series"][0], []).append(entry)
    made = []
    for name, points in series.items():
        axis = points[0]["series"][1]
        for mode in MODES:
            for side in {s: None for p in points for s in p["modes"].get(mode, {}).get("seconds", {})}:
                at = [
                    (p["size"][axis], p["modes"][mode]["seconds"][side]["median"])
                    for p in points
                    if side in p["modes"].get(mode, {}).get("seconds", {})
                ]
                use = [
                    (p["size"][axis], m["above"])
                    for p in points
                    if (m := (p["memory"] or {}).get(side, {}).get(mode)) is not None
                ]
                if len(at) >= 5:
                    made.append({"series": name, "axis": axis, "mode": mode, "side": side, "sizes": [n for n, _ in at],
                                 "time": slope(at), "memory": slope(use) if len(use) >= 5 else None})  # fmt: skip
    return made


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """The least-squares exponent p of y = c · x^p; None where some y is no positive number."""
    if any(y <= 0 for _, y in points):
        return None
    xs, ys = ([math.log(v) for v in column] for column in zip(*points, strict=True))
    mx, my = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True)) / sum((x - mx) ** 2 for x in xs)
