"""A test of many pairs of cases, as one test for each place: a loop over the rules that meet it, none left out.

A test of its own for each pair would take longer to report than to run.
"""

from __future__ import annotations

import functools
import inspect
import random
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch

Test = Callable[..., None]


def seeded(name: str) -> int:
    """Seed everything that draws, from a name: the same alone, in any order and in any worker."""
    value = zlib.crc32(name.encode())
    torch.manual_seed(value)
    np.random.seed(value)
    random.seed(value)
    return value


def over(pairs: Iterable[tuple[str, str]]) -> Callable[[Test], Test]:
    """``@over(product())``: the test takes ``place`` and ``rule``, and runs for each of these pairs.

    A ``seed`` that it takes is the one of its pair. A failure names its rule, and the other rules run nevertheless.
    """
    rules: dict[str, list[str]] = {}
    for place, rule in pairs:
        rules.setdefault(place, []).append(rule)

    def decorate(test: Test) -> Test:
        parameters = inspect.signature(test).parameters

        @functools.wraps(test)
        def every(place: str, **given: Any) -> None:
            failed: list[Exception] = []
            for rule in rules[place]:
                seed = seeded(f"{test.__module__} {test.__name__} {place} {rule}")
                if "seed" in parameters:
                    given["seed"] = seed
                try:
                    test(place=place, rule=rule, **given)
                except Exception as error:  # noqa: BLE001  told below, with its rule
                    error.add_note(f"{place} × {rule}")
                    failed.append(error)
            if failed:
                raise ExceptionGroup(f"{len(failed)} of {len(rules[place])} rules on {place}", failed)

        outside = [p for n, p in parameters.items() if n not in ("rule", "seed")]
        every.__signature__ = inspect.Signature(outside)  # type: ignore[attr-defined]
        del every.__wrapped__  # type: ignore[attr-defined]  # pytest would look for the fixtures of what it wraps
        return pytest.mark.parametrize("place", list(rules))(every)

    return decorate
