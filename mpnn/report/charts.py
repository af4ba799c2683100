"""Charts as data, drawn: lines, rows of points and heat maps, side by side."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mpnn.experiments.claims.chart import Chart, HeatMap, Lines, Rows
from mpnn.experiments.claims.decide import t_interval
from mpnn.report.style import COLOURS, DASHES, INK, NAMES, PALE, figure, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# For what is no architecture: the rest of the palette first, then its colours again.
OTHERS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
SIGNS = ("-", "--", "-.", ":", (0, (6, 1.5)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)))


def draw(charts: Sequence[Chart], title: str = "", *, width: float = 4.6, across: int = 3) -> Figure:
    """A figure with each chart in a panel of its own, `across` of them in a row.

    >>> from mpnn.experiments.claims.chart import Line
    >>> len(draw([Lines("a", "x", "y", [Line("b", [1, 2], [3, 4])])]).axes)
    1
    """
    columns = min(across, len(charts)) if len(charts) != 4 else 2
    rows = math.ceil(len(charts) / columns)
    heights = [max(_height(chart) for chart in charts[row * columns : (row + 1) * columns]) for row in range(rows)]
    drawn = figure(width * columns + 0.4, sum(heights) + 0.4)
    if title:
        wrapped = textwrap.fill(title, int(12 * drawn.get_figwidth()))  # a letter of this size is a twelfth of an inch
        drawn.suptitle(wrapped, fontsize=10, color=INK, x=0.01, ha="left")
    panels = drawn.subplots(rows, columns, squeeze=False, gridspec_kw={"height_ratios": heights}).flat
    for axes, chart in itertools.zip_longest(panels, charts):
        if chart is None:
            axes.set_axis_off()
            continue
        axes.set_title(chart.title, fontsize=10, color=INK, loc="left")
        if isinstance(chart, Lines):
            _lines(axes, chart)
        elif isinstance(chart, Rows):
            _rows(axes, chart)
        else:
            _heat_map(axes, chart)
    return drawn


def _height(chart: Chart) -> float:
    if isinstance(chart, Lines):
        return 3.6
    return 1.2 + 0.34 * len(chart.rows if isinstance(chart, Rows) else chart.y)


def _word(name: str) -> str:
    """The architecture that a name begins with, as "cnn" of "CNN, 4 layers"; else the name."""
    word = name.split(",")[0].split(" +")[0].lower()
    return "transformer" if word.startswith("attention") else word


def _styles(names: Sequence[str]) -> list[dict[str, Any]]:
    """An architecture keeps its colour; everything else takes the next one that none of them has."""
    words = [_word(name) for name in names]
    free = [colour for colour in OTHERS if colour not in {COLOURS[word] for word in words if word in COLOURS}]
    rest = itertools.cycle(zip(free, SIGNS, strict=False))
    return [
        {"color": COLOURS[word], "linestyle": DASHES[word]}
        if word in COLOURS
        else dict(zip(("color", "linestyle"), next(rest), strict=True))
        for word in words
    ]


def _lines(axes: Axes, chart: Lines) -> None:
    tidy(axes)
    if chart.log_x:
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted({x for line in chart.lines for x in line.x}))
        axes.xaxis.set_major_formatter("{x:g}")
    if chart.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    for line, style in zip(chart.lines, _styles([line.name for line in chart.lines]), strict=True):
        axes.plot(
            line.x, line.y, marker="o", markersize=3, linewidth=1.6, label=NAMES.get(line.name, line.name), **style
        )
        if line.low:
            axes.fill_between(line.x, line.low, line.high, color=style["color"], alpha=0.15, linewidth=0)
    for value, name in chart.levels:
        axes.axhline(value, color=INK, linewidth=0.8, linestyle=":")
        axes.annotate(
            name, (1, value), xycoords=("axes fraction", "data"), fontsize=8, color=INK, ha="right", va="bottom"
        )
    if chart.limits:
        axes.set_ylim(*chart.limits)
    axes.set_xlabel(chart.x_label, color=INK)
    axes.set_ylabel(chart.y_label, color=INK)
    axes.legend(frameon=False, fontsize=8, handlelength=2.6)


def _rows(axes: Axes, chart: Rows) -> None:
    tidy(axes)
    if chart.log:
        axes.set_xscale("log")
    # One colour for all that is no architecture: the names stand beside the rows.
    for row, (name, values) in enumerate(chart.rows):
        colour = COLOURS.get(_word(name), INK)
        axes.plot(values, [row] * len(values), "o", color=colour, markersize=4, alpha=0.6, clip_on=False)
        made = t_interval(values)
        if not chart.log and math.isfinite(made.low):
            axes.errorbar(made.mean, row, xerr=made.high - made.mean, color=INK, capsize=3, linewidth=1.1)
    places = [(value, row) for row, (name, _) in enumerate(chart.rows) if (value := chart.marks.get(name)) is not None]
    if places:
        x, y = zip(*places, strict=True)
        axes.plot(x, y, "D", color=OTHERS[1], markerfacecolor="none", markersize=7, label=chart.marked)
        # Above the panel, where no point is.
        axes.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), borderpad=0)
    axes.set_yticks(range(len(chart.rows)), [NAMES.get(name, name) for name, _ in chart.rows])
    axes.set_ylim(len(chart.rows) - 0.5, -0.5)
    for value, name in chart.levels:
        axes.axvline(value, color=INK, linewidth=0.8, linestyle=":")
        axes.annotate(name, (value, 1), xycoords=("data", "axes fraction"), fontsize=8, color=INK, ha="left", va="top")
    if chart.limits:
        axes.set_xlim(*chart.limits)
    axes.set_xlabel(chart.label, color=INK)
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)


def _heat_map(axes: Axes, chart: HeatMap) -> None:
    every = [value for row in chart.values for value in row]
    low, high = chart.limits or (min(every), max(every))
    axes.imshow(chart.values, aspect="auto", cmap="cividis", vmin=low, vmax=high)
    axes.set_xticks(range(len(chart.x)), chart.x)
    axes.set_yticks(range(len(chart.y)), chart.y)
    axes.set_xlabel(chart.x_label, color=INK)
    axes.set_ylabel(chart.y_label, color=INK)
    axes.tick_params(length=0, labelcolor=INK, labelsize=8)
    for side in axes.spines.values():
        side.set_color(PALE)
    for row, texts in enumerate(chart.texts):
        for place, text in enumerate(texts):
            dark = chart.values[row][place] < low + 0.6 * (high - low)
            axes.text(place, row, text, ha="center", va="center", fontsize=8, color="white" if dark else INK)
