"""The outcome of a sweep as data, its intervals, and its files."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mpnn.data.files import write_text
from mpnn.experiments.result import Trained
from mpnn.training import Curve

AXES = ("dataset", "neighbours", "weight", "position")
YOUNG = 100  # steps of a first look, after which every network is still learning


@dataclass(frozen=True)
class Place:
    """One cell of the grid."""

    dataset: str
    neighbours: str
    weight: str
    position: str

    @property
    def rule(self) -> str:
        """The cell without its data set."""
        code = "" if self.position == "none" else f", {self.position}"
        return f"{self.neighbours} × {self.weight}{code}"

    def __str__(self) -> str:
        return f"{self.dataset}: {self.rule}"


@dataclass(frozen=True)
class Refused:
    """A cell that the rules refuse, and why, in their own words."""

    place: Place
    reason: str


@dataclass(frozen=True)
class Cell:
    """A cell that was trained, its cost, and its runs so far."""

    place: Place
    channels: int
    parameters: int
    flops: int
    kernels: dict[str, str]
    runs: list[Trained]

    @property
    def accuracies(self) -> list[float]:
        return [run.accuracy for run in self.runs]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)

    @property
    def interval(self) -> tuple[float, float]:
        return t_interval(self.accuracies)


@dataclass(frozen=True)
class Sweep:
    """What was asked for, on what, and how it went; `data` describes each data set by its name."""

    folder: Path
    config: dict[str, Any]
    data: dict[str, dict[str, Any]]
    about: dict[str, Any]
    cells: list[Cell]
    refused: list[Refused]
    complete: bool

    @property
    def ranks(self) -> bool:
        """Whether its accuracies can be ranked: not from one seed, and not while all are still learning."""
        return self.config["seeds"] > 1 and self.config["steps"] > YOUNG

    def as_dict(self) -> dict[str, Any]:
        cells = []
        for one in self.cells:
            record = asdict(one)
            low, high = one.interval
            summary = {"accuracy_mean": one.mean, "interval": None if math.isnan(low) else [low, high]}
            cells.append({**record.pop("place"), **record, **summary})
        return {
            "complete": self.complete,
            "config": self.config,
            "about": self.about,
            "data": self.data,
            "cells": cells,
            "refused": [{**asdict(one.place), "reason": one.reason} for one in self.refused],
        }

    def save(self) -> None:
        """Write `results.json` (everything) and `results.csv` (a row for each run, and for each refused cell)."""
        write_text(self.folder / "results.json", json.dumps(self.as_dict(), indent=1, ensure_ascii=False) + "\n")
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        measured = ("seed", "accuracy", "train_loss", "seconds_a_step", "parameters", "flops", "kernels", "refused")
        writer.writerow([*AXES, *measured])
        for one in self.cells:
            cost = [one.parameters, one.flops, " ".join(one.kernels.values())]
            for run in one.runs:
                numbers = [run.seed, run.accuracy, run.train_loss, run.seconds_a_step]
                writer.writerow([*asdict(one.place).values(), *numbers, *cost, ""])
        for refused in self.refused:
            writer.writerow([*asdict(refused.place).values(), *[""] * 7, refused.reason])
        write_text(self.folder / "results.csv", table.getvalue())

    @classmethod
    def read(cls, folder: str | Path) -> Sweep:
        """Read a sweep from the folder that `save` wrote to."""
        folder = Path(folder)
        file = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        cells = []
        for one in file["cells"]:
            runs = [Trained(**{**run, "curve": Curve(**run["curve"])}) for run in one["runs"]]
            fields = {name: one[name] for name in ("channels", "parameters", "flops", "kernels")}
            cells.append(Cell(Place(*(one[axis] for axis in AXES)), **fields, runs=runs))
        refused = [Refused(Place(*(one[axis] for axis in AXES)), one["reason"]) for one in file["refused"]]
        return cls(folder, file["config"], file["data"], file["about"], cells, refused, file["complete"])


def t_half(values: list[float], level: float = 0.95) -> float:
    """Half the width of Student's t interval of a mean over seeds, t·sd/√n; NaN for fewer than two values.

    >>> round(t_half([0.5, 0.6, 0.7]), 3)
    0.248
    """
    if len(values) < 2:
        return math.nan
    from mpnn.experiments.claims import decide

    found = decide.t_interval(values, level)
    return (found.high - found.low) / 2


def t_interval(values: list[float], level: float = 0.95) -> tuple[float, float]:
    """Student's t interval of the mean over the seeds, cut to 0 … 1, where shares are; NaN for fewer than two values.

    >>> [round(end, 3) for end in t_interval([0.5, 0.6, 0.7])]
    [0.352, 0.848]
    """
    mean, half = statistics.fmean(values), t_half(values, level)
    return _cut(mean - half), _cut(mean + half)


def _cut(share: float) -> float:
    return share if math.isnan(share) else min(1.0, max(0.0, share))


def wilson(share: float, samples: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of so many test samples: what the test set alone leaves open.

    >>> [round(end, 3) for end in wilson(0.9, 360)]
    [0.865, 0.927]
    """
    z = statistics.NormalDist().inv_cdf(0.975)
    middle = (share + z * z / (2 * samples)) / (1 + z * z / samples)
    half = z * math.sqrt(share * (1 - share) / samples + z * z / (4 * samples**2)) / (1 + z * z / samples)
    return middle - half, middle + half
