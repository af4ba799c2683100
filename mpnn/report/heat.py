"""The heat map of a sweep: mean accuracy by rule, refused cells hatched."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

import torch

from mpnn.experiments.sweep_result import Sweep, t_half
from mpnn.report.style import INK, ON_COLOUR, PALE, SERIES, colour_bar, colours, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def heat_map(result: Sweep) -> Figure:
    """Draw the mean test accuracy of each cell: neighbours downwards, weights to the right, a panel for each code.

    Below a mean stands the half width of its 95 % t interval over the seeds, where there are two or more; the best of
    a data set has a frame, if the sweep is one that ranks; refused cells are hatched, those not run yet are dotted.
    """
    from matplotlib.colors import Normalize

    config = result.config
    rows, columns = config["neighbours"], config["weight"]
    panels = [(dataset, position) for dataset in config["dataset"] for position in config["positions"]]
    across = min(len(panels), len(config["positions"]) if len(config["positions"]) <= 3 else 3)
    down = -(-len(panels) // across)
    labels = [textwrap.fill(text, 30, break_long_words=False) for text in rows]
    left = 0.075 * max(len(line) for text in labels for line in text.split("\n"))
    width = max(0.95, 0.085 * max(len(line) for text in columns for line in textwrap.wrap(text, 16)))
    # A single cell needs room for the title and the bar of colours too.
    wide, high = left + 1.0 + across * (0.2 + width * len(columns)), 0.9 + down * (0.75 + 0.52 * len(rows))
    drawn = figure(max(4.2, wide), max(2.6, high))
    means = [100 * one.mean for one in result.cells]
    low, top = min(means, default=0.0), max(means, default=1.0)
    # One number has no range: half a point on either side stands for it.
    norm = Normalize(low, top) if top - low > 1e-6 else Normalize(low - 0.5, top + 0.5)
    axes = drawn.subplots(down, across, squeeze=False, sharey=True)
    drawn.suptitle("test accuracy, %: mean over the seeds", fontsize=11, color=INK, x=0.01, ha="left")
    for one, (dataset, position) in zip(axes.flat, panels, strict=False):
        _panel(one, result, dataset, position, norm)
        one.set_xticks(range(len(columns)), [textwrap.fill(text, 16) for text in columns], fontsize=8, color=INK)
        one.set_yticks(range(len(rows)), labels, fontsize=8, color=INK)
        one.tick_params(length=0)
        code = "no code" if position == "none" else position
        one.set_title(f"{dataset}, {code}" if len(config["dataset"]) > 1 else code, fontsize=9, color=INK)
    for one in list(axes.flat)[len(panels) :]:
        one.set_axis_off()
    colour_bar(drawn, list(axes.flat), norm, "mean accuracy, %")
    return drawn


def _panel(axes: Axes, result: Sweep, dataset: str, position: str, norm: Any) -> None:
    from matplotlib.patches import Rectangle

    config = result.config
    here = {
        (c.place.neighbours, c.place.weight): c
        for c in result.cells
        if c.place.dataset == dataset and c.place.position == position
    }
    refused = {
        (one.place.neighbours, one.place.weight)
        for one in result.refused
        if one.place.dataset == dataset and one.place.position == position
    }
    best = max((c.mean for c in result.cells if c.place.dataset == dataset), default=0.0)
    values = torch.full((len(config["neighbours"]), len(config["weight"])), torch.nan)
    for row, neighbours in enumerate(config["neighbours"]):
        for column, weight in enumerate(config["weight"]):
            place = Rectangle((column - 0.5, row - 0.5), 1, 1, linewidth=0)
            if (neighbours, weight) in refused:
                place.set(facecolor="none", edgecolor=PALE, hatch="////")
                axes.add_patch(place)
                axes.text(column, row, "refused", ha="center", va="center", fontsize=8, color=INK)
                continue
            cell = here.get((neighbours, weight))
            if cell is None:
                place.set(facecolor="none", edgecolor=PALE, hatch="..")
                axes.add_patch(place)
                axes.text(column, row, "not run", ha="center", va="center", fontsize=8, color=INK, style="italic")
                continue
            values[row, column] = 100 * cell.mean
            half = t_half(cell.accuracies)
            spread = "" if math.isnan(half) else f"\n± {100 * half:.1f}"
            shade = norm(100 * cell.mean)
            colour = "#FFFFFF" if shade < 0.5 else ON_COLOUR
            axes.text(column, row, f"{100 * cell.mean:.1f}{spread}", ha="center", va="center", fontsize=8, color=colour)
            if result.ranks and cell.mean == best:
                place.set(fill=False, edgecolor=SERIES[1], linewidth=2.5, zorder=3)
                axes.add_patch(place)
    axes.imshow(values.numpy(), cmap=colours(norm, empty="none"), norm=norm, aspect="auto", interpolation="nearest")
    for side in axes.spines.values():
        side.set_color(PALE)
