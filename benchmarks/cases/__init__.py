"""The workloads: one file each, in the order in which they run."""

from __future__ import annotations

from benchmarks.case import Entry
from benchmarks.cases import dispatch, w01_linear, w02_conv

MODULES = (dispatch, w01_linear, w02_conv)


def entries() -> list[Entry]:
    """Every case of every workload, none of them made yet."""
    return [entry for module in MODULES for entry in module.entries()]


def entry(key: str) -> Entry:
    """A case by its key.

    Raises:
        KeyError: for an unknown one.
    """
    return {e.key: e for e in entries()}[key]
