"""Data efficiency: accuracy against the number of training samples, for four architectures of one size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch

from mpnn.data import Dataset, load
from mpnn.experiments.claims.base import Claim, Record, Setting, Size, column, gaps, known, share, where
from mpnn.experiments.claims.chart import Chart, Line, Lines, Table
from mpnn.experiments.claims.decide import Check, t_interval
from mpnn.experiments.measure import count_parameters
from mpnn.experiments.progress import Advance
from mpnn.experiments.recipe import Recipe, within
from mpnn.experiments.recipes import recipe
from mpnn.training import fit, seeded

DATASETS, MODELS = ("mnist1d", "mnist5k"), ("mlp", "cnn", "gnn", "transformer")
SIZES, BUDGET, BATCH = (100, 250, 600, 1500, 4000), 5000, 50
STRONG, WEAK = "cnn", "transformer"


@cache
def data(name: str) -> Dataset:
    """A dataset; images of 28×28 are read at half the resolution, which keeps four minutes four minutes."""
    found = load(name)
    if found.grid != (28, 28):
        return found
    x_train, x_test = (x.unflatten(1, (14, 2, 14, 2)).mean((2, 4)).flatten(1, 2) for x in (found.x_train, found.x_test))
    return replace(found, x_train=x_train, x_test=x_test, grid=(14, 14))


@cache
def sized(name: str, model: str) -> Recipe:
    """The recipe of a model, as wide as the budget allows."""
    return within(recipe(model, data(name)), data(name), BUDGET, model)


def parts(size: Size) -> list[Setting]:
    datasets, samples = (DATASETS[:1], SIZES[:2]) if size.quick else (DATASETS, SIZES)
    return [
        {"dataset": name, "samples": count, "model": model, "seed": seed}
        for seed in range(size.seeds)
        for name in datasets
        for count in samples
        for model in MODELS
    ]


def run(setting: Setting, size: Size, advance: Advance) -> Record:
    """One training on the first samples of an order drawn from the seed, the same for all architectures."""
    assert size.steps is not None
    whole = data(setting["dataset"])
    order = torch.randperm(len(whole.x_train), generator=torch.Generator().manual_seed(setting["seed"]))
    some = order[: setting["samples"]]
    few = replace(whole, x_train=whole.x_train[some], y_train=whole.y_train[some])
    found = sized(setting["dataset"], setting["model"])
    settings = replace(found.settings, batch_size=BATCH)
    with seeded(setting["seed"]):
        model = found.model(few)
        outcome = fit(model, few, settings, steps=size.steps, seed=setting["seed"], evaluations=1, advance=advance)
    return {"accuracy": outcome.accuracy, "train_loss": outcome.train_loss, "parameters": count_parameters(model)}


def checks(records: Sequence[Record]) -> list[Check]:
    found = []
    for name in known(records, "dataset"):
        counts = known(where(records, dataset=name), "samples")
        first, last = (
            gaps(
                records,
                "accuracy",
                {"dataset": name, "samples": count, "model": STRONG},
                {"dataset": name, "samples": count, "model": WEAK},
            )
            for count in (counts[0], counts[-1])
        )
        closed = [a - b for a, b in zip(first, last, strict=True)]
        says = f"{name}: lead of the CNN over the Transformer"
        found += [
            Check(f"{says} at {counts[0]} samples", t_interval(first), "above", 0.0, "+.1%"),
            Check(f"{says}, lost from {counts[0]} to {counts[-1]} samples", t_interval(closed), "above", 0.0, "+.1%"),
        ]
    return found


def table(records: Sequence[Record]) -> Table:
    rows = []
    counts = known(records, "samples")
    for name in known(records, "dataset"):
        for model in known(records, "model"):
            cells = [share(column(records, "accuracy", dataset=name, model=model, samples=count)) for count in counts]
            parameters = where(records, dataset=name, model=model)[0]["parameters"]
            rows.append([f"{name}, {model}", f"{parameters:,}", *cells])
    return Table(["dataset, model", "parameters", *(f"{count:,} samples" for count in counts)], rows)


def charts(records: Sequence[Record]) -> list[Chart]:
    made: list[Chart] = []
    for name in known(records, "dataset"):
        lines = []
        for model in known(records, "model"):
            counts = known(records, "samples")
            columns = [
                [100 * v for v in column(records, "accuracy", dataset=name, model=model, samples=n)] for n in counts
            ]
            mean = [sum(values) / len(values) for values in columns]
            lines.append(Line(model, counts, mean, [min(v) for v in columns], [max(v) for v in columns]))
        made.append(Lines(name, "training samples", "test accuracy, %", lines, True, levels=((10.0, "chance"),)))
    return made


CLAIM = Claim(
    "data-efficiency",
    "With few samples the strong bias (CNN) is ahead of the weak one (Transformer), and with more the lead shrinks.",
    Size(3, 300),
    Size(1, 3, quick=True),
    parts,
    run,
    checks,
    table,
    charts,
    needs=("lightning", "mnist1d", "mlxtend"),
)
