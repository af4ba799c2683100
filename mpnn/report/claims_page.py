"""The page of an experiment."""

from __future__ import annotations

from pathlib import Path

from mpnn.data.errors import require
from mpnn.experiments.claims import Outcome
from mpnn.experiments.claims.chart import Chart, HeatMap, Lines
from mpnn.report.charts import draw
from mpnn.report.compare_page import about_machine
from mpnn.report.page import page
from mpnn.report.parts import Code, Picture, Section, Sheet, Text

SIGNS = {"above": ">", "below": "<"}
ANSWERS = {True: "yes", False: "no", None: "open"}


def claims_page(result: Outcome) -> Path:
    """Write ``index.html`` into the folder of a finished experiment: verdict, table, pictures, how it was run."""
    sections = [_verdict(result), _results(result), _parts(result), _configuration(result), about_machine(result.about)]
    return page(result.folder, f"Experiment: {result.claim.name}", sections, footer=result.about["machine"])


def caption(result: Outcome) -> str:
    """How much was run."""
    steps = result.config["steps"]
    seeds = f"{result.config['seeds']} seed{'s' if result.config['seeds'] != 1 else ''}"
    trained = "" if steps is None else f"{steps:,} steps, "
    return f"{trained}{seeds}{', quick: too short to decide' if result.config['quick'] else ''}"


def effort(result: Outcome) -> str:
    """How long it took, of the processor and, where one call made all parts, by the clock."""
    about, plural = result.about, "" if result.about.get("workers") == 1 else "s"
    if about.get("parts_run") != result.parts:  # it was stopped and went on: no clock saw all of it
        return f"{result.cpu:.0f} s of one core"
    return (
        f"{about['wall_seconds']:.0f} s with {about['workers']} worker{plural}, {result.cpu:.0f} s of one core in all"
    )


def _verdict(result: Outcome) -> Section:
    found = result.verdict
    rows = [
        (check.says, ANSWERS[check.holds], *check.numbers(), f"{SIGNS[check.side]} {check.write(check.bound)}")
        for check in found.checks
    ]
    said = f"Verdict: {found.word}{f', as {found.note}' if found.note else ''}."
    return Section(
        "Verdict",
        [
            Text(result.claim.says),
            Text(said),
            Sheet(f"A claim {found.rule}", ("what is measured", "holds", "mean", "interval", "bound"), rows),
        ],
    )


def _results(result: Outcome) -> Section:
    shown, note = result.claim.table(result.records), result.note
    charts = result.claim.charts(result.records)
    spread = "; ± is half the width of the 95 % t interval over the seeds" if result.config["seeds"] > 1 else ""
    return Section(
        "Results",
        [
            Sheet(caption(result) + spread, shown.head, shown.rows),
            *([Text(note)] if note else []),
            *(Picture(draw([chart], width=6.4), f"{chart.title}: {_told(chart)}") for chart in charts),
        ],
    )


def _told(chart: Chart) -> str:
    """What is seen in a chart, in words."""
    if isinstance(chart, Lines):
        return "; ".join(f"{line.name} from {line.y[0]:.3g} to {line.y[-1]:.3g}" for line in chart.lines if line.y)
    if isinstance(chart, HeatMap):
        texts = chart.texts or [[f"{value:.3g}" for value in row] for row in chart.values]
        return "; ".join(f"{name} {', '.join(filter(None, row))}" for name, row in zip(chart.y, texts, strict=True))
    return "; ".join(f"{name} {sum(values) / len(values):.3g}" for name, values in chart.rows if values)


def _parts(result: Outcome) -> Section:
    """Every part with what is a number or a word of it."""
    plain = [{k: v for k, v in one.items() if not isinstance(v, list | dict)} for one in result.records]
    columns = list({name: None for one in plain for name in one})
    rows = [[_written(one.get(name)) for name in columns] for one in plain]
    return Section("Every part", [Sheet(effort(result), columns, rows)])


def _written(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _configuration(result: Outcome) -> Section:
    yaml = require("yaml", purpose="writing the configuration")
    command = result.about.get("command", f"mpnn experiment {result.claim.name}")
    file = yaml.safe_dump(result.config, sort_keys=False, allow_unicode=True)
    return Section("Configuration", [Text("The command, and what it stands for:"), Code(command), Code(file)])
