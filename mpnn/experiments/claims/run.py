"""`mpnn experiment`: run a claim's parts, keep each finished one, and decide."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import torch

from mpnn.data import UsageError
from mpnn.data.errors import one_of, require
from mpnn.experiments.about import about
from mpnn.experiments.claims.base import Claim, Record, Setting, Size
from mpnn.experiments.claims.listed import CLAIMS
from mpnn.experiments.claims.outcome import Outcome
from mpnn.experiments.claims.pool import at_once, in_turn
from mpnn.experiments.compare import Interrupted
from mpnn.experiments.folder import RunFolder, folder_name
from mpnn.experiments.progress import Progress, waiting


@dataclass(frozen=True)
class Listing:
    """The claims that there are."""

    claims: tuple[Claim, ...]


def experiment(
    claim: Annotated[str | None, "the claim to put to the test; without one, they are listed"] = None,
    /,
    *,
    seeds: Annotated[int | None, "runs of each setting, from the seeds 0, 1, … (default: the claim's)"] = None,
    steps: Annotated[int | None, "training steps of each run (default: the claim's)"] = None,
    workers: Annotated[int | None, "processes that run parts at once (default: the cores; with --quick 1)"] = None,
    quick: Annotated[bool, "seconds instead of minutes: a look at whether it works, too short to decide"] = False,
    name: Annotated[str | None, "the run's name; a run of that name goes on (default: made of the options)"] = None,
    folder: Annotated[str | Path, "where the runs are kept"] = "runs",
    restart: Annotated[bool, "throw away what a run of that name has finished"] = False,
    quiet: Annotated[bool, "no bar and no line for each finished part"] = False,
) -> Outcome | Listing:
    """Put a claim to the test: the verdict is decided from the numbers, by a rule that is printed with it.

    Each finished part is written to `folder/name` at once; called again with the same arguments, it reads what is there
    and does the rest. The records do not depend on `workers`. It is one, this process, where it is not given.

    Raises:
        UsageError: an unknown claim, a number out of range or without a meaning for the claim, as several workers for
            one that measures time, a library that is missing, a folder that belongs to another run.
        Interrupted: Ctrl-C, with the outcome so far.
    """
    if claim is None:
        return Listing(tuple(CLAIMS.values()))
    found = CLAIMS[one_of(claim, CLAIMS, "experiment")]
    size = sized(found, seeds, steps, quick=quick)
    for library in ("scipy", *found.needs):
        require(library, purpose=f"the experiment {found.name}")
    if workers is not None and workers < 1:
        raise UsageError(f"workers: expected at least 1, got {workers}")
    if found.alone and workers is not None and workers > 1:
        raise UsageError(
            f"workers: the parts of {found.name} run one after the other, as time or memory is measured or all is soon "
            f"done; leave it out or ask for 1, got {workers}"
        )
    config = {"experiment": found.name, **asdict(size)}
    store = RunFolder(Path(folder) / folder_name(name or default_name(found, size)), config, restart=restart)
    many = 1 if workers is None else workers
    with waiting("looking for the data", show=not quiet):
        found.prepare(size)
    with one_thread():
        return _run(found, size, config, store, many, show=not quiet)


@contextmanager
def one_thread() -> Iterator[None]:
    """As the workers have it, so that a record is the same to the last bit wherever it was made."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def sized(claim: Claim, seeds: int | None, steps: int | None, *, quick: bool) -> Size:
    """The claim's size with what was asked for in its place."""
    size = claim.quick if quick else claim.size
    for field, value in (("seeds", seeds), ("steps", steps)):
        if value is not None and value < 1:
            raise UsageError(f"{field}: expected at least 1, got {value}")
    if steps is not None and size.steps is None:
        raise UsageError(f"steps: {claim.name} trains nothing, so it has none; leave it out")
    return replace(size, seeds=size.seeds if seeds is None else seeds, steps=size.steps if steps is None else steps)


def default_name(claim: Claim, size: Size) -> str:
    """A name that says what differs from the default, so that two runs do not meet in one folder."""
    usual = claim.quick if size.quick else claim.size
    words = [claim.name] + (["quick"] if size.quick else [])
    words += [f"{size.steps}steps"] if size.steps != usual.steps else []
    words += [f"{size.seeds}seeds"] if size.seeds != usual.seeds else []
    return "-".join(words)


def command(claim: Claim, size: Size) -> str:
    """The command line that asks for it."""
    usual = claim.quick if size.quick else claim.size
    words = ["mpnn experiment", claim.name] + (["--quick"] if size.quick else [])
    words += [f"--steps {size.steps}"] if size.steps != usual.steps else []
    words += [f"--seeds {size.seeds}"] if size.seeds != usual.seeds else []
    return " ".join(words)


def key(setting: Setting) -> str:
    """The name of a part: its values, as a file can be called.

    >>> key({"model": "cnn", "codes": True, "seed": 0})
    'cnn-codes-seed0'
    """
    words = []
    for field, value in setting.items():
        if isinstance(value, bool):
            words.append(field if value else f"no{field}")
        else:
            words.append(f"{field}{value}" if isinstance(value, int | float) else str(value))
    return "-".join(words).replace(" ", "_").replace("/", "_")


def _run(claim: Claim, size: Size, config: dict[str, object], store: RunFolder, workers: int, *, show: bool) -> Outcome:
    parts = {key(setting): setting for setting in claim.parts(size)}
    each, started = size.steps or 1, time.perf_counter()
    found = {name: record for name in parts if (record := store.finished(name)) is not None}
    todo = {name: setting for name, setting in parts.items() if name not in found}
    workers = min(workers, max(1, len(todo)))

    def outcome() -> Outcome:
        # In the order of the parts, whichever was finished first.
        records = [found[name] for name in parts if name in found]
        done = sum(name in found for name in todo)
        run = {"workers": workers, "wall_seconds": round(time.perf_counter() - started, 1), "parts_run": done}
        made = Outcome(
            store.path, claim, config, {"command": command(claim, size), **about(), **run}, records, len(parts)
        )
        if not todo and (store.path / "results.json").exists():
            return replace(made, about=Outcome.read(store.path).about)  # of the run that made them
        if records:
            made.save()
        return made

    try:
        with Progress(each * len(parts), show=show) as bars:
            if found:
                bars.skip(each * len(found))
                bars.say(f"{len(found)} of {len(parts)} parts are read from {store.path}")
            made = in_turn(claim.run, todo, size, bars)
            if workers > 1:
                made = at_once(claim.run, todo, size, bars, workers)
            with closing(made):
                for name, record in made:
                    store.finish(name, record)
                    found[name] = record
                    bars.say(f"{name:<44} {_shown(parts[name], record)}  {record['part_seconds']:6.1f} s")
    except KeyboardInterrupt:
        raise Interrupted(outcome()) from None
    return outcome()


def _shown(setting: Setting, record: Record) -> str:
    """The first number that was measured."""
    found = ((k, v) for k, v in record.items() if k not in setting and isinstance(v, int | float))
    name, value = next(found)
    return f"{name} {value:.4g}"
