"""Sweeps: any grid of neighbours × weights × positions × data sets × seeds, the same block everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import nn

from mpnn.data import SOURCES, Dataset, UsageError, load
from mpnn.data.errors import require
from mpnn.experiments.about import about
from mpnn.experiments.expressions import split
from mpnn.experiments.folder import RunFolder, folder_name
from mpnn.experiments.measure import Cost, cost
from mpnn.experiments.progress import Progress, waiting
from mpnn.experiments.recipe import Recipe, within
from mpnn.experiments.result import Trained
from mpnn.experiments.sweep_job import SweepJob
from mpnn.experiments.sweep_result import YOUNG, Cell, Place, Refused, Sweep
from mpnn.experiments.sweep_rules import build
from mpnn.training import Curve, Settings, fit, seeded

# Small batches: on few cores a step costs as its samples do, and many small steps learn more than few large ones.
SETTINGS = Settings(3e-3, "adamw", weight_decay=0.05, schedule="cosine", warmup=0.1, batch_size=32, clip=1.0)
LOOKS = 8  # at the test set, evenly spread over a run


class Stopped(KeyboardInterrupt):
    """Ctrl-C; `result` has what was finished by then."""

    def __init__(self, result: Sweep) -> None:
        super().__init__("stopped")
        self.result = result


def sweep(
    dataset: Annotated[str | Sequence[str], f"the data, as digits,mnist1d: {', '.join(SOURCES)}"] = ("digits",),
    *,
    neighbours: Annotated[str | Sequence[str], "who sends: rules with commas between"] = (
        "Window(2)",
        "Grid(grid, 3)",
        "AllTokens(max_tokens=tokens)",
    ),
    weight: Annotated[str | Sequence[str], "how much: weights, with options by name"] = ("SharedKernel", "QKSoftmax"),
    positions: Annotated[
        str | Sequence[str],
        "codes: none, sinusoidal, learned, rotary, alibi, relative, laplacian, random-walk, or calls",
    ] = (
        "none",
        "sinusoidal",
    ),
    seeds: Annotated[int | None, "runs of each cell, from the seeds 0, 1, … (default: 2; with --quick 1)"] = None,
    steps: Annotated[int | None, "training steps of each run (default: 500; with --quick 100)"] = None,
    channels: Annotated[int, "width of the tokens"] = 32,
    depth: Annotated[int, "blocks, one after the other"] = 2,
    heads: Annotated[int, "heads of the weights that have them"] = 4,
    budget: Annotated[int | None, "widen or narrow each cell to at most this many parameters"] = None,
    quick: Annotated[bool, "a first look, too short to rank: one seed, 100 steps"] = False,
    name: Annotated[str | None, "the run's name; a run of that name goes on (default: made of the options)"] = None,
    folder: Annotated[str | Path, "where the runs are kept"] = "runs",
    restart: Annotated[bool, "throw away what a run of that name has finished"] = False,
    threads: Annotated[int | None, "CPU threads of torch (default on the command line: 1)"] = None,
    quiet: Annotated[bool, "no bar and no line for each finished run"] = False,
) -> Sweep:
    """Train the same block with each combination of rules, and list those that the rules refuse with the reason.

    Each finished run is written to `folder/name` at once; called again with the same arguments, it reads what is there
    and does the rest.

    Raises:
        UsageError: an expression that cannot be read, a name or an option that is not known, a number out of range, no
            combination that is allowed, a folder that belongs to another sweep.
        Stopped: Ctrl-C, with the sweep of what is finished.

    >>> sweep(neighbours="Windo(2)")
    Traceback (most recent call last):
    mpnn.data.errors.UsageError: unknown name in neighbours 'Windo': did you mean 'Window'? Known: Full, Grid, ...
    """
    names = dataset.split(",") if isinstance(dataset, str) else dataset
    job = SweepJob(
        neighbours=tuple(split(neighbours, "neighbours")),
        weight=tuple(split(weight, "weight")),
        positions=tuple(split(_dashed(positions), "positions")),
        dataset=tuple(dict.fromkeys(one.strip() for one in names)),
        seeds=seeds if seeds is not None else (1 if quick else 2),
        steps=steps if steps is not None else (YOUNG if quick else 500),
        channels=channels,
        depth=depth,
        heads=heads,
        budget=budget,
    )
    if threads is not None and threads < 1:
        raise UsageError(f"threads: expected at least 1, got {threads}")
    name = folder_name(name if name is not None else job.name())
    require("lightning", purpose="training")
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        with waiting("loading the libraries and the data, trying the combinations", show=not quiet):
            data = {one: load(one) for one in job.dataset}
            tried = [_try(job, place, data[place.dataset]) for place in job.places()]
        if all(isinstance(one, Refused) for one in tried):
            reasons = "\n".join(f"  {one.place}: {one.reason}" for one in tried if isinstance(one, Refused))
            raise UsageError(f"every combination is refused:\n{reasons}")
        return _run(job, data, tried, RunFolder(Path(folder) / name, job.config(), restart=restart), show=not quiet)
    finally:
        torch.set_num_threads(before)


def _dashed(positions: str | Sequence[str]) -> list[str]:
    """`random-walk`, which in an expression would be a difference, as the name that it has there."""
    return [
        one.replace("random-walk", "random_walk") for one in ([positions] if isinstance(positions, str) else positions)
    ]


def _recipe(job: SweepJob, place: Place) -> Recipe:
    def model(data: Dataset, width: int) -> nn.Module:
        return build(place.neighbours, place.weight, place.position, data, width, job.depth, job.heads)

    # Widths that every head divides in halves, which rotary codes need.
    return Recipe(str(place), model, job.channels, SETTINGS, multiple=2 * job.heads)


def _try(job: SweepJob, place: Place, data: Dataset) -> Refused | tuple[Place, Recipe, Cost]:
    """The recipe and the cost of a cell, measured on a model that is then thrown away; or why there is none."""
    found = _recipe(job, place)
    with torch.random.fork_rng(devices=[]):
        try:
            if job.budget is not None:
                found = within(found, data, job.budget, str(place))
            return place, found, cost(found.model(data), data.x_train[: found.settings.batch_size])
        except (TypeError, ValueError, IndexError) as reason:  # what the rules raise at their doors
            return Refused(place, str(reason))


def _run(
    job: SweepJob,
    data: dict[str, Dataset],
    tried: Sequence[Refused | tuple[Place, Recipe, Cost]],
    store: RunFolder,
    *,
    show: bool,
) -> Sweep:
    allowed = [(number, *one) for number, one in enumerate(tried) if not isinstance(one, Refused)]
    refused = [one for one in tried if isinstance(one, Refused)]
    records: dict[int, list[dict[str, Any]]] = {number: [] for number, *_ in allowed}
    from rich.markup import escape  # brackets of a rule are no markup

    try:
        with Progress(job.steps * job.seeds * len(allowed), show=show) as bars:
            for one in refused:
                bars.say(escape(f"refused  {one.place}: {one.reason}"))
            finished = sum(
                store.finished(f"{one[0]}-{seed}") is not None for one in allowed for seed in range(job.seeds)
            )
            if finished:
                bars.say(f"{finished} of {len(allowed) * job.seeds} runs are read from {store.path}")
            # Seed by seed, so that a sweep that is stopped has seen every cell.
            for seed in range(job.seeds):
                for number, place, found, price in allowed:
                    record, how = store.finished(f"{number}-{seed}"), "  read"
                    if record is None:
                        how = ""
                        record = {
                            "place": asdict(place),
                            "recipe": found.as_dict(),
                            "cost": asdict(price),
                            "seed": seed,
                        }
                        record["run"] = _train(job, data[place.dataset], place, found, seed, bars)
                        store.finish(f"{number}-{seed}", record)
                    else:
                        store.check(f"runs of {place}", record["recipe"], found.as_dict())
                        bars.skip(job.steps)
                    records[number].append(record)
                    run = record["run"]
                    bars.say(escape(f"seed {seed}  {run['accuracy']:6.1%}  {run['seconds']:5.1f} s{how}  {place}"))
    except KeyboardInterrupt:
        raise Stopped(_result(job, data, allowed, refused, store, records)) from None
    return _result(job, data, allowed, refused, store, records)


def _train(job: SweepJob, data: Dataset, place: Place, found: Recipe, seed: int, bars: Progress) -> dict[str, Any]:
    with seeded(seed), bars.run(f"{place}, seed {seed}", job.steps) as advance:
        model, looks = found.model(data), min(LOOKS, job.steps)
        outcome = fit(model, data, found.settings, steps=job.steps, seed=seed, evaluations=looks, advance=advance)
    return outcome.as_dict()


def _result(
    job: SweepJob,
    data: dict[str, Dataset],
    allowed: Sequence[tuple[int, Place, Recipe, Cost]],
    refused: list[Refused],
    store: RunFolder,
    records: dict[int, list[dict[str, Any]]],
) -> Sweep:
    """What is finished, written to the folder."""
    cells = []
    for number, place, found, price in allowed:
        runs = [
            Trained(str(place), one["seed"], **{**one["run"], "curve": Curve(**one["run"]["curve"])})
            for one in records[number]
        ]
        if runs:
            cells.append(Cell(place, found.width, **asdict(price), runs=runs))
    complete = all(len(found) == job.seeds for found in records.values())
    described = {name: one.as_dict() for name, one in data.items()}
    made = {"command": job.command(), **about()}
    result = Sweep(store.path, job.config(), described, made, cells, refused, complete)
    if cells:
        result.save()
    return result
