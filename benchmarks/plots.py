"""The pictures of a result: ratio bars, and time and memory against N and E."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import results
from benchmarks.results import Record
from mpnn.report.style import INK, PALE, figure, save, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORWARD, TRAIN, BEST, FLOOR = "#56B4E9", "#0072B2", "#E69F00", "#D55E00"  # of Okabe and Ito
OTHERS = ("#7F7F7F", "#E69F00", "#009E73", "#CC79A7")
MARKS = ("o", "s", "^", "D", "v")


def draw(result: Record, folder: Path, stem: str) -> list[tuple[str, str]]:
    """Write the pictures that the result has numbers for; (file name, title) of each."""
    made = []
    shown = [
        e
        for e in results.measured(result["entries"])
        if e["series"] is None and any("customary" in m for m in e["modes"].values())
    ]
    shown = [e for e in shown if e["workload"] != "dispatch"]
    if shown:
        made.append((f"{stem}-ratios.png", "How many times faster than the customary peer, and than the best one"))
        ratios(shown, folder / made[-1][0])
    names = list(dict.fromkeys(e["series"][0] for e in results.measured(result["entries"]) if e["series"] is not None))
    for what, title in (("time", "Time against size"), ("memory", "Memory above inputs and outputs against size")):
        points = {
            n: [e for e in results.measured(result["entries"]) if e["series"] is not None and e["series"][0] == n]
            for n in names
        }
        points = {
            n: found
            for n, found in points.items()
            if any(v > 0 for _, v in results.points_of(found, "mpnn", "train", what))
        }
        if points:
            made.append((f"{stem}-{what}.png", title))
            scaling(points, what, folder / made[-1][0])
    return made


def ratios(entries: Sequence[Record], path: Path) -> None:
    """A row a case: bars for the customary peer, points for the best one, ticks for the floors."""
    drawn = figure(8.5, 0.8 + 0.3 * len(entries))
    axes = drawn.subplots()
    lowest, highest = 0.5, 2.0
    for place, entry in enumerate(entries):
        for mode, colour, shift in (("forward", FORWARD, -0.19), ("train", TRAIN, 0.19)):
            found = entry["modes"].get(mode)
            if found is None or "customary" not in found:
                continue
            y, ratio, best = place + shift, found["customary"]["median"], found["best"]["median"]
            axes.barh(y, ratio - 1, 0.34, left=1, color=colour)
            if found["best"]["peer"] != found["customary"]["peer"]:
                axes.plot(best, y, "o", color=BEST, markeredgecolor=INK, markeredgewidth=0.5, markersize=4.5)
            for name, judged in found["floors"].items():
                if name in ("customary", "best"):
                    axes.plot([judged["floor"]] * 2, [y - 0.19, y + 0.19], color=FLOOR, linewidth=1.4)
                    lowest, highest = min(lowest, judged["floor"]), max(highest, judged["floor"])
            lowest, highest = min(lowest, ratio, best), max(highest, ratio, best)
    axes.set_xscale("log")
    axes.set_xlim(lowest / 1.3, highest * 1.3)
    ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if lowest / 1.3 <= t <= highest * 1.3]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    tidy(axes)
    axes.set_yticks(range(len(entries)), [e["key"] for e in entries])
    axes.set_ylim(len(entries) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_xlabel("times faster: seconds of the peer by ours, median over rounds", color=INK)
    _legend(axes)
    save(drawn, path)


def _legend(axes: Axes) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    signs = [
        Patch(color=FORWARD, label="customary peer, forward"),
        Patch(color=TRAIN, label="customary peer, forward + backward"),
        Line2D(
            [], [], marker="o", linestyle="", color=BEST, markeredgecolor=INK, label="best peer, where it is another"
        ),
        Line2D([], [], color=FLOOR, label="floor"),
    ]
    axes.legend(handles=signs, loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=2, frameon=False, fontsize=9)


def _sizes(axes: Axes, sizes: Sequence[int]) -> None:
    """The sizes that were run as ticks along the bottom, plain numbers up the side."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xticks(sizes, [f"{n / 1e3:.3g}k" if n >= 1000 else f"{n}" for n in sizes])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(LogLocator(subs=()))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def scaling(series: dict[str, Sequence[Record]], what: str, path: Path) -> None:
    """A panel a series, forward + backward, log-log, the fitted exponents in the legends."""
    columns = min(4, len(series))
    rows = math.ceil(len(series) / columns)
    drawn = figure(3.4 * columns, 3.0 * rows)
    grid = drawn.subplots(rows, columns, squeeze=False).flatten()
    for axes, (name, points) in zip(grid, series.items(), strict=False):
        sides = list(dict.fromkeys(s for p in points for s in p["modes"].get("train", {}).get("seconds", {})))
        for i, side in enumerate(sides):
            found = results.points_of(points, side, "train", what)
            found = [(n, v) for n, v in found if v > 0]
            if not found:
                continue
            fit = results.slope(found) if len(found) >= 5 else None
            axis = points[0]["series"][1]
            label = side if fit is None else f"{side}, {axis}^{fit:.2f}"
            colour = TRAIN if side == "mpnn" else OTHERS[(i - 1) % len(OTHERS)]
            scaled = [v * 1e3 for _, v in found] if what == "time" else [v / 2**20 for _, v in found]
            axes.plot(
                [n for n, _ in found],
                scaled,
                marker=MARKS[i % len(MARKS)],
                color=colour,
                label=label,
                markersize=4,
                linewidth=1.3,
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        tidy(axes)
        _sizes(axes, [p["size"][points[0]["series"][1]] for p in points])
        axes.set_title(f"{name}: {points[0]['title'].split(',')[0]}", fontsize=9, color=INK)
        axes.set_xlabel(points[0]["series"][1], fontsize=9, color=INK)
        axes.set_ylabel("ms, fwd + bwd" if what == "time" else "MiB above, fwd + bwd", fontsize=9, color=INK)
        axes.grid(True, which="both", color=PALE, linewidth=0.4)
        axes.legend(fontsize=7, frameon=False)
    for axes in grid[len(series) :]:
        axes.set_visible(False)
    save(drawn, path)
