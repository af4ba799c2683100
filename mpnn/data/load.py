"""Load a dataset by its name."""

from __future__ import annotations

import os
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch

from mpnn.data.dataset import Dataset
from mpnn.data.errors import UsageError, one_of
from mpnn.data.files import data_folder, replacing
from mpnn.data.sources import SOURCES, Arrays, Source

FORMAT = 1  # of the kept files: a higher number leaves the older ones unread
PARTS = ("x_train", "y_train", "x_test", "y_test")


def load(name: str, *, folder: str | Path | None = None) -> Dataset:
    """A dataset by its name, made or read once and then kept in `folder`.

    Args:
        name: one of `mpnn.data.SOURCES`.
        folder: where made data is kept; by default `$MPNN_DATA`, else the user's cache folder.

    Raises:
        UsageError: an unknown name, a library that is not installed, or a download that fails.

    >>> load("digit")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    mpnn.data.errors.UsageError: unknown dataset 'digit': did you mean 'digits'? Known: mnist1d, mnist5k, digits, ...
    """
    arrays = as_made(name, folder=folder)
    source = SOURCES[name]
    x_train, y_train, x_test, y_test = (torch.from_numpy(arrays[part]) for part in PARTS)
    grid, channels = tuple(x_train.shape[1:-1]), x_train.shape[-1]
    x_train, x_test = (x.reshape(len(x), -1, channels) for x in (x_train, x_test))
    if source.standardise:
        # Per channel and by the training samples alone: nothing of the test set is known before the test.
        mean, sd = x_train.mean((0, 1)), x_train.std((0, 1))
        x_train, x_test = (x_train - mean) / sd, (x_test - mean) / sd
    return Dataset(name, x_train, y_train, x_test, y_test, grid, source.classes)


def as_made(name: str, *, folder: str | Path | None = None) -> Arrays:
    """The arrays of a dataset as its source has them, `(S, *grid, C)`, not standardised; kept as in `load`.

    Raises:
        UsageError: as `load`.
    """
    source = SOURCES[one_of(name, SOURCES, "dataset")]
    return _cached(name, source, Path(folder) if folder is not None else data_folder())


def _cached(name: str, source: Source, folder: Path) -> Arrays:
    try:
        kept = folder / f"{name}-{version(source.library)}-{FORMAT}.npz"
    except PackageNotFoundError:
        return _typed(source.make(folder))  # says which library is missing
    if kept.exists():
        try:
            with open(kept, "rb") as file, np.load(file) as parts:
                return dict(parts)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise UsageError(f"cannot read {kept} ({error}); delete it, and it will be made again") from error
    arrays = _typed(source.make(folder))
    # A folder that cannot be written to costs time at each start, not the run.
    if os.access(next(place for place in (folder, *folder.parents) if place.exists()), os.W_OK):
        with replacing(kept) as new:
            np.savez(new, **arrays)  # type: ignore[arg-type]
    return arrays


def _typed(arrays: Arrays) -> Arrays:
    return {part: arrays[part].astype(np.float32 if part.startswith("x") else np.int64) for part in PARTS}
