"""The pictures of a comparison: learning curves, and accuracies with their spread."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mpnn.experiments import Comparison, Contestant
from mpnn.experiments.recipes import PUBLISHED
from mpnn.report.style import COLOURS, DASHES, INK, NAMES, figure, tidy
from mpnn.report.table import title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def curves(result: Comparison) -> Figure:
    """Training loss and test accuracy against the step: the mean over the seeds, and the range between them."""
    drawn = figure(9.5, 3.9)
    from matplotlib.ticker import LogLocator

    drawn.suptitle(title(result), fontsize=11, color=INK, x=0.01, ha="left")
    left, right = drawn.subplots(1, 2)
    for one in result.contestants:
        _curve(left, one, "train_loss")
        _curve(right, one, "test_accuracy", 100)
    left.set_yscale("log")
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter("{x:g}")
    left.tick_params(axis="y", which="minor", left=False)
    left.set_ylabel("training loss, nats", color=INK)
    right.set_ylabel("test accuracy, %", color=INK)
    right.set_ylim(0, 100)
    for axes in (left, right):
        tidy(axes)
        axes.set_xlabel("step", color=INK)
        axes.set_xlim(0, None)
    handles, labels = left.get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9, handlelength=3)
    return drawn


def _curve(axes: Axes, one: Contestant, field: str, scale: float = 1) -> None:
    steps = one.runs[0].curve.steps
    values = [[scale * value for value in getattr(run.curve, field)] for run in one.runs]
    columns = list(zip(*values, strict=True))
    style: dict[str, Any] = {"color": COLOURS[one.model], "linestyle": DASHES[one.model], "linewidth": 1.8}
    axes.plot(steps, [sum(column) / len(column) for column in columns], label=NAMES[one.model], **style)
    if len(values) > 1:
        low, high = [min(column) for column in columns], [max(column) for column in columns]
        axes.fill_between(steps, low, high, color=COLOURS[one.model], alpha=0.15, linewidth=0)


def accuracies(result: Comparison) -> Figure:
    """The accuracy of each model: a point for each seed, the mean and the standard deviation over them."""
    drawn = figure(7, 0.9 + 0.55 * len(result.contestants))
    axes = drawn.subplots()
    for row, one in enumerate(result.contestants):
        _row(axes, row, one)
    axes.set_yticks(range(len(result.contestants)), [NAMES[one.model] for one in result.contestants])
    axes.set_ylim(len(result.contestants) - 0.5, -0.5)
    chance = 100 / result.data["classes"]
    axes.axvline(chance, color=INK, linewidth=0.8, linestyle=":")
    axes.text(chance + 0.8, 0.5, "chance", fontsize=8, color=INK, va="center")
    axes.set_xlim(0, 108)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("test accuracy, %", color=INK)
    _published(axes, result)
    axes.set_title(title(result), fontsize=11, color=INK, loc="left")
    tidy(axes)
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0, labelsize=10)
    return drawn


def _published(axes: Axes, result: Comparison) -> None:
    """The published figures, where the protocol is the published one."""
    config = result.config
    if not config["published"]:
        return
    figures = PUBLISHED[config["dataset"]][config["shuffle_positions"]]
    rows = [(figures[one.model], row) for row, one in enumerate(result.contestants) if one.model in figures]
    values, heights = [value for value, _ in rows], [row - 0.36 for _, row in rows]
    axes.scatter(values, heights, marker="v", s=22, color=INK, linewidths=0, zorder=3, label="published figure")
    axes.set_xlabel("test accuracy, %   (▼ published)", color=INK)


def _row(axes: Axes, row: int, one: Contestant) -> None:
    mean, colour = 100 * one.mean, COLOURS[one.model]
    axes.barh(row, mean, height=0.5, color=colour, alpha=0.35, linewidth=0)
    axes.plot([100 * value for value in one.accuracies], [row] * len(one.runs), "o", color=colour, markersize=3.5)
    spread = 0.0
    if not math.isnan(one.sd):
        spread = 100 * one.sd
        axes.errorbar(mean, row, xerr=spread, color=INK, capsize=3, linewidth=1.2)
    beyond = max([mean + spread, *(100 * value for value in one.accuracies)])
    axes.text(beyond + 1.2, row, f"{mean:.1f}", va="center", fontsize=9, color=INK)
