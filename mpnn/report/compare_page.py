"""The page of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpnn.data.errors import require
from mpnn.experiments import Comparison
from mpnn.report.page import page
from mpnn.report.parts import Code, Picture, Section, Sheet, Text
from mpnn.report.pictures import accuracies, curves
from mpnn.report.style import NAMES, called
from mpnn.report.table import accuracy, amount, caption, kernels, title
from mpnn.report.trained_maps import trained_maps


def compare_page(result: Comparison) -> Path:
    """Write ``index.html`` into the folder of a comparison: its tables, curves, maps, configuration and machine."""
    sections = [
        _outcome(result),
        _curves(result),
        *trained_maps(result),
        _runs(result),
        *about_run(result.config, result.about),
    ]
    return page(result.folder, f"Comparison on {title(result)}", sections, footer=result.about["machine"])


def _outcome(result: Comparison) -> Section:
    best = max(result.contestants, key=lambda one: one.mean)
    columns = ("model", "parameters", "test accuracy", "FLOPs a sample", "ms a step", "kernels", "who sends × how much")
    rows = [
        (NAMES[one.model], f"{one.parameters:,}", accuracy(one), amount(one.flops), f"{one.seconds_a_step * 1e3:.1f}",
         kernels(one), one.rule)
        for one in result.contestants
    ]  # fmt: skip
    told = ", ".join(f"{NAMES[one.model]} {100 * one.mean:.1f} %" for one in result.contestants)
    return Section(
        "Result",
        [
            Text(f"The highest mean accuracy is that of {called(best.model)}: {accuracy(best)}."),
            Sheet(f"{caption(result)}; the spread is the standard deviation over the seeds", columns, rows),
            Picture(
                accuracies(result), f"Test accuracy of each model: {told}", "A point for each seed, the mean as a bar."
            ),
        ],
    )


def _curves(result: Comparison) -> Section:
    ends = ", ".join(f"{NAMES[one.model]} {one.runs[0].curve.train_loss[-1]:.2g}" for one in result.contestants)
    alt = f"Training loss and test accuracy against the step; the loss ends at {ends}"
    return Section(
        "Learning curves", [Picture(curves(result), alt, "The mean over the seeds, and the range between them.")]
    )


def _runs(result: Comparison) -> Section:
    columns = ("model", "seed", "test accuracy", "training loss, nats", "ms a step", "seconds")
    rows = [
        (NAMES[run.model], str(run.seed), f"{100 * run.accuracy:.1f} %", f"{run.train_loss:.3g}",
         f"{1e3 * run.seconds_a_step:.1f}", f"{run.seconds:.1f}")
        for one in result.contestants
        for run in one.runs
    ]  # fmt: skip
    return Section("Every run", [Sheet("Each model from each seed", columns, rows)])


def about_run(config: Mapping[str, Any], about: Mapping[str, Any]) -> list[Section]:
    """The configuration as a file that repeats the run, and on what it ran."""
    yaml = require("yaml", purpose="writing the configuration")
    file = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
    return [
        Section(
            "Configuration",
            [Text("The command, and the same as a file for --config:"), Code(about["command"]), Code(file)],
        ),
        about_machine(about),
    ]


def about_machine(about: Mapping[str, Any]) -> Section:
    """On what a run was made."""
    versions = [("Python", about["python"]), *about["versions"].items()]
    return Section("Machine", [Text(about["machine"]), Sheet("Versions", ("library", "version"), versions)])
