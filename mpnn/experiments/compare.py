"""The main job: train the architectures on the same samples and say how they differ."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch

from mpnn import use_kernels
from mpnn.data import SOURCES, Dataset, UsageError, load
from mpnn.data.errors import require
from mpnn.experiments.about import about
from mpnn.experiments.folder import RunFolder, folder_name
from mpnn.experiments.job import Job
from mpnn.experiments.measure import Cost, cost
from mpnn.experiments.progress import Progress, waiting
from mpnn.experiments.recipe import Recipe, within
from mpnn.experiments.recipes import MODELS, recipe
from mpnn.experiments.result import Comparison, Contestant, Trained
from mpnn.training import Curve, fit, save_checkpoint, seeded


class Interrupted(KeyboardInterrupt):
    """Ctrl-C; `result` has what an experiment had finished by then."""

    def __init__(self, result: Any) -> None:
        super().__init__("stopped")
        self.result = result


def compare(
    dataset: Annotated[str, f"the data: {', '.join(SOURCES)}"] = "mnist1d",
    *,
    models: Annotated[str | Sequence[str], f"what to train, as mlp,cnn; known: {', '.join(MODELS)}"] = MODELS,
    steps: Annotated[int | None, "training steps of each run (default: 1500; with --published 6000)"] = None,
    seeds: Annotated[int | None, "runs of each model, from the seeds 0, 1, … (default: 2; with --published 5)"] = None,
    budget: Annotated[int | None, "widen or narrow each model to at most this many parameters"] = None,
    shuffle_positions: Annotated[bool, "permute the inputs, all samples alike: neighbours are no longer near"] = False,
    published: Annotated[bool, "train by the protocol that mnist1d was published with"] = False,
    kernel: Annotated[str | None, "force a kernel in every layer, such as reference (default: the plan's)"] = None,
    name: Annotated[str | None, "the run's name; a run of that name goes on (default: made of the options)"] = None,
    folder: Annotated[str | Path, "where the runs are kept"] = "runs",
    restart: Annotated[bool, "throw away what a run of that name has finished"] = False,
    threads: Annotated[int | None, "CPU threads of torch (default on the command line: 1)"] = None,
    quiet: Annotated[bool, "no bar and no line for each finished run"] = False,
) -> Comparison:
    """Train the architectures on one dataset, with the same samples, split and seeds, and compare them.

    Each finished run is written to `folder/name` at once; called again with the same arguments, it reads what is there
    and does the rest.

    Raises:
        UsageError: a name that is not known, a number out of range, a library that is missing, a folder that belongs to
            another comparison.
        Interrupted: Ctrl-C, with the comparison of what is finished.
    """
    names = [model.strip() for model in models.split(",")] if isinstance(models, str) else list(models)
    job = Job(
        dataset=dataset,
        models=tuple(names),
        steps=steps if steps is not None else (6000 if published else 1500),
        seeds=seeds if seeds is not None else (5 if published else 2),
        budget=budget,
        shuffle_positions=shuffle_positions,
        published=published,
        kernel=kernel,
    )
    if threads is not None and threads < 1:
        raise UsageError(f"threads: expected at least 1, got {threads}")
    name = folder_name(name if name is not None else job.name())
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        with use_kernels(kernel) if kernel is not None else nullcontext():
            with waiting("loading the libraries and the data", show=not quiet):
                data, recipes, costs = _prepared(job)
            store = RunFolder(Path(folder) / name, job.config(), restart=restart)
            return _run(job, data, recipes, costs, store, show=not quiet)
    finally:
        torch.set_num_threads(before)


def _prepared(job: Job) -> tuple[Dataset, dict[str, Recipe], dict[str, Cost]]:
    require("lightning", purpose="training")
    data = load(job.dataset)
    recipes = {model: recipe(model, data, published=job.published) for model in job.models}
    if job.budget is not None:
        recipes = {model: within(found, data, job.budget, model) for model, found in recipes.items()}
    if job.shuffle_positions:
        data = data.shuffle_positions()
    return data, recipes, {model: _cost(job, data, found) for model, found in recipes.items()}


def _cost(job: Job, data: Dataset, found: Recipe) -> Cost:
    """What a model costs, measured on one that is then thrown away."""
    with torch.random.fork_rng(devices=[]):
        try:
            return cost(found.model(data), data.x_train[: found.settings.batch_size])
        except ValueError as reason:
            # Only a kernel that was asked for can be wrong here, and the text says for what.
            if job.kernel is None:
                raise
            raise UsageError(f"kernel: {reason}") from reason


def _run(
    job: Job, data: Dataset, recipes: dict[str, Recipe], costs: dict[str, Cost], store: RunFolder, *, show: bool
) -> Comparison:
    records: dict[str, list[dict[str, Any]]] = {model: [] for model in job.models}
    try:
        with Progress(job.steps * job.seeds * len(job.models), show=show) as bars:
            # Seed by seed, so that a run that is stopped has seen every model.
            runs = list(itertools.product(range(job.seeds), job.models))
            finished = sum(store.finished(f"{model}-{seed}") is not None for seed, model in runs)
            if finished:
                bars.say(f"{finished} of {len(runs)} runs are read from {store.path}")
            for seed, model in runs:
                key = f"{model}-{seed}"
                record, how = store.finished(key), "  read"
                if record is None:
                    how = ""
                    record = _train(job, data, model, seed, recipes[model], store, bars)
                    record["cost"] = asdict(costs[model])
                    store.finish(key, record)
                else:
                    store.check(f"runs of {model}", record["recipe"], recipes[model].as_dict())
                    bars.skip(job.steps)
                records[model].append(record)
                run = record["run"]
                bars.say(f"{model:<12} seed {seed}  test accuracy {run['accuracy']:6.1%}  {run['seconds']:6.1f} s{how}")
    except KeyboardInterrupt:
        raise Interrupted(_result(job, data, recipes, store, records)) from None
    return _result(job, data, recipes, store, records)


def _train(
    job: Job, data: Dataset, model: str, seed: int, found: Recipe, store: RunFolder, bars: Progress
) -> dict[str, Any]:
    with seeded(seed), bars.run(f"{model}, seed {seed}", job.steps) as advance:
        trained = found.model(data)
        outcome = fit(trained, data, found.settings, steps=job.steps, seed=seed, advance=advance)
    save_checkpoint(store.path / "models" / f"{model}-{seed}.pt", trained, {"config": job.config(), "seed": seed})
    return {"recipe": found.as_dict(), "run": outcome.as_dict(), "seed": seed}


def _result(
    job: Job,
    data: Dataset,
    recipes: dict[str, Recipe],
    store: RunFolder,
    records: dict[str, list[dict[str, Any]]],
) -> Comparison:
    """What is finished, written to the folder."""
    contestants = []
    for model, found in records.items():
        runs = [Trained(model, one["seed"], **{**one["run"], "curve": Curve(**one["run"]["curve"])}) for one in found]
        if runs:
            recipe = recipes[model]
            contestants.append(Contestant(model, recipe.rule, recipe.as_dict(), **found[0]["cost"], runs=runs))
    complete = all(len(found) == job.seeds for found in records.values())
    result = Comparison(
        store.path, job.config(), data.as_dict(), {"command": job.command(), **about()}, contestants, complete
    )
    if contestants:
        result.save()
    return result
