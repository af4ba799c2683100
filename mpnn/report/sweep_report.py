"""What the command line shows of a sweep, and the files that it leaves: a table, a heat map, a page."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from mpnn.experiments.sweep_result import AXES, Cell, Sweep, wilson
from mpnn.report.compare_page import about_run
from mpnn.report.heat import heat_map
from mpnn.report.page import page
from mpnn.report.parts import Picture, Section, Sheet, Text
from mpnn.report.style import save
from mpnn.report.table import amount

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("test accuracy", "95 % interval", "parameters", "ms a step")
UNRANKED = (
    "A first look, too short to rank: from one seed, or after so few steps, the order of the accuracies says nothing."
)


def show_sweep(result: Sweep) -> None:
    """Print the table and what was refused, and write `heatmap.png` and `index.html` beside the results."""
    from rich.console import Console

    if not result.cells:
        return
    console = Console()
    console.print(sweep_table(result))
    if not result.ranks:
        console.print(UNRANKED, highlight=False, soft_wrap=True)
    for one in result.refused:
        console.print(f"refused  {one.place}: {one.reason}", highlight=False, soft_wrap=True, markup=False)
    save(heat_map(result), result.folder / "heatmap.png")
    sweep_page(result)
    console.print(
        f"\nWritten to {result.folder}: index.html, heatmap.png, results.json, results.csv, config.yaml",
        highlight=False,
        soft_wrap=True,
    )


def sweep_table(result: Sweep) -> Table:
    """A row for each trained cell, the best of each data set first, if it ranks."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    made = Table(title=title(result), caption=caption(result), box=box.SIMPLE_HEAD)
    made.title_justify = made.caption_justify = "left"
    several = len(result.config["dataset"]) > 1
    made.add_column("combination", overflow="fold")
    for name in COLUMNS:
        made.add_column("\n".join(name.rsplit(" ", 1)), justify="right", no_wrap=True)
    for one in _sorted(result):
        made.add_row(escape(str(one.place) if several else one.place.rule), *_numbers(one))
    return made


def title(result: Sweep) -> str:
    """What was crossed with what."""
    config = result.config
    counts = [(len(config["neighbours"]), "neighbourhood"), (len(config["weight"]), "weight")]
    counts.append((len(config["positions"]), "position"))
    crossed = " × ".join(f"{count} {name}{'' if count == 1 else 's'}" for count, name in counts)
    refused = f"; {len(result.refused)} of {_cells(result)} combinations refused" if result.refused else ""
    return f"{crossed} on {', '.join(config['dataset'])}{refused}"


def caption(result: Sweep) -> str:
    """How it was trained, and which interval that is."""
    config = result.config
    plural = "" if config["seeds"] == 1 else "s"
    state = "" if result.complete else ", not all finished"
    interval = (
        "Student's t over the seeds, n − 1 degrees of freedom"
        if config["seeds"] > 1
        else "none for one seed: --seeds 2 or more"
    )
    first = max(result.cells, key=lambda one: one.mean)
    best, samples = first.mean, result.data[first.place.dataset]["test"]
    low, high = wilson(best, samples)
    return (
        f"{config['steps']:,} steps, {config['seeds']} seed{plural}{state}, accuracy after the last step; interval: "
        f"{interval}. The test set alone ({samples:,} samples) leaves {100 * best:.1f} % open between {100 * low:.1f} "
        f"and {100 * high:.1f} (Wilson, 95 %)."
    )


def sweep_page(result: Sweep) -> Path:
    """Write ``index.html`` into the folder of a sweep."""
    best = [_sorted(result, name)[0] for name in result.config["dataset"] if _sorted(result, name)]
    told = "; ".join(f"{one.place} {100 * one.mean:.1f} %" for one in _sorted(result))
    rows = [
        (str(one.place), run.seed, f"{100 * run.accuracy:.1f} %", f"{run.train_loss:.3g}", f"{run.seconds:.1f}")
        for one in result.cells
        for run in one.runs
    ]
    sections = [
        Section(
            "Result",
            [
                *((Text(_told(one)) for one in best) if result.ranks else [Text(UNRANKED)]),
                Picture(
                    heat_map(result),
                    f"Heat map of the mean test accuracy: {told}",
                    ("Below a mean, the half width of its interval. " if result.config["seeds"] > 1 else "")
                    + "Hatched: refused by the rules. Dotted: not run yet. "
                    + ("Framed: the best of a data set." if result.ranks else ""),
                ),
                Sheet(caption(result), (*AXES, *COLUMNS, "FLOPs a sample", "kernels"), _rows(result)),
            ],
        )
    ]
    if result.refused:
        reasons = [(str(one.place), one.reason) for one in result.refused]
        sections.append(
            Section("Refused", [Sheet("Combinations that the rules refuse", ("combination", "reason"), reasons)])
        )
    columns = ("combination", "seed", "test accuracy", "training loss, nats", "seconds")
    sections.append(Section("Every run", [Sheet("Each cell from each seed", columns, rows)]))
    return page(
        result.folder,
        f"Sweep: {title(result)}",
        [*sections, *about_run(result.config, result.about)],
        footer=result.about["machine"],
    )


def _cells(result: Sweep) -> int:
    return math.prod(len(result.config[axis]) for axis in ("neighbours", "weight", "positions", "dataset"))


def _told(best: Cell) -> str:
    low, high = best.interval
    between = "" if math.isnan(low) else f", between {100 * low:.1f} and {100 * high:.1f} %"
    return (
        f"The highest mean accuracy on {best.place.dataset}, {100 * best.mean:.1f} %{between}, has {best.place.rule}."
    )


def _sorted(result: Sweep, dataset: str | None = None) -> list[Cell]:
    """The cells by data set, the best first; in the order of the rules where nothing can be said of the best."""
    order = result.config["dataset"]
    cells = [one for one in result.cells if dataset in (None, one.place.dataset)]
    return sorted(cells, key=lambda one: (order.index(one.place.dataset), -one.mean if result.ranks else 0))


def _numbers(one: Cell) -> tuple[str, ...]:
    """What was measured of a cell, in the order of `COLUMNS`."""
    low, high = one.interval
    interval = "–" if math.isnan(low) else f"{100 * low:.1f} – {100 * high:.1f}"
    speed = statistics.median(run.seconds_a_step for run in one.runs)
    return f"{100 * one.mean:.1f} %", interval, f"{one.parameters:,}", f"{1e3 * speed:.1f}"


def _rows(result: Sweep) -> list[tuple[str, ...]]:
    return [
        (*asdict(one.place).values(), *_numbers(one), amount(one.flops), ", ".join(dict.fromkeys(one.kernels.values())))
        for one in _sorted(result)
    ]
