"""Mistakes of a person, told apart from faults of the program."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType


class UsageError(ValueError):
    """What was asked for cannot be done: the text says what to do, and the command line prints the text alone."""


def one_of(value: str, known: Iterable[str], what: str) -> str:
    """The value, if it is one of the known ones.

    Raises:
        UsageError: lists the known ones, the nearest first.

    >>> one_of("cnn", ["mlp", "cnn"], "model")
    'cnn'
    >>> one_of("cn", ["mlp", "cnn"], "model")
    Traceback (most recent call last):
    mpnn.data.errors.UsageError: unknown model 'cn': did you mean 'cnn'? Known: mlp, cnn
    """
    known = list(known)
    if value in known:
        return value
    near = difflib.get_close_matches(str(value).lower(), known, n=1)
    guess = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(f"unknown {what} {value!r}: {guess}Known: {', '.join(known)}")


def require(module: str, *, purpose: str, install: str = "'mpnn[train]'") -> ModuleType:
    """Import an optional library, or say what brings it.

    Raises:
        UsageError: the library is not installed.

    >>> require("json", purpose="writing results").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # Only the library itself: a library that is there and lacks something of its own is a different fault.
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise UsageError(
            f"{purpose} needs {module.partition('.')[0]}, which is not installed; pip install {install}"
        ) from None
