"""The outcome of a comparison as data: what the tables and pictures are made from, and its files."""

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
from mpnn.training import Curve


@dataclass(frozen=True)
class Trained:
    """One model trained from one seed."""

    model: str
    seed: int
    accuracy: float
    train_loss: float
    seconds_a_step: float
    seconds: float
    curve: Curve


@dataclass(frozen=True)
class Contestant:
    """One model of a comparison, its cost, and its runs so far.

    `flops` is for the forward pass of one sample, a multiplication and an addition counting as two. `kernels` has the
    kernel of each message-passing layer, by the layer's name.
    """

    model: str
    rule: str
    recipe: dict[str, Any]
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
    def sd(self) -> float:
        """Over the seeds, with n - 1; NaN for one seed, which says nothing about the spread."""
        return statistics.stdev(self.accuracies) if len(self.runs) > 1 else math.nan

    @property
    def seconds_a_step(self) -> float:
        return statistics.median(run.seconds_a_step for run in self.runs)


@dataclass(frozen=True)
class Comparison:
    """What was compared, on what, and how it went."""

    folder: Path
    config: dict[str, Any]
    data: dict[str, Any]
    about: dict[str, Any]
    contestants: list[Contestant]
    complete: bool

    def as_dict(self) -> dict[str, Any]:
        models = []
        for one in self.contestants:
            summary = {"accuracy_mean": one.mean, "accuracy_sd": None if math.isnan(one.sd) else one.sd}
            record = asdict(one)
            runs = record.pop("runs")
            models.append({**record, **summary, "seconds_a_step": one.seconds_a_step, "runs": runs})
        return {
            "complete": self.complete,
            "config": self.config,
            "about": self.about,
            "data": self.data,
            "models": models,
        }

    def save(self) -> None:
        """Write `results.json` (everything) and `results.csv` (a row for each model and seed)."""
        write_text(self.folder / "results.json", json.dumps(self.as_dict(), indent=1, ensure_ascii=False) + "\n")
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(["model", "seed", "accuracy", "train_loss", "seconds_a_step", "parameters", "flops", "kernels"])
        for one in self.contestants:
            kernels = " ".join(one.kernels.values())
            for run in one.runs:
                measured = [run.accuracy, run.train_loss, run.seconds_a_step]
                writer.writerow([run.model, run.seed, *measured, one.parameters, one.flops, kernels])
        write_text(self.folder / "results.csv", table.getvalue())

    @classmethod
    def read(cls, folder: str | Path) -> Comparison:
        """Read a comparison from the folder that `save` wrote to."""
        folder = Path(folder)
        file = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        contestants = []
        for model in file["models"]:
            runs = [Trained(**{**run, "curve": Curve(**run["curve"])}) for run in model["runs"]]
            fields = ("model", "rule", "recipe", "parameters", "flops", "kernels")
            contestants.append(Contestant(**{field: model[field] for field in fields}, runs=runs))
        return cls(folder, file["config"], file["data"], file["about"], contestants, file["complete"])
