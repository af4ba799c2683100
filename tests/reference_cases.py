"""Case lists: makers of layers beside their references, with the options that name them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mpnn.experiments.atlas_case import Case


class Cases(dict[str, Callable[[], Case]]):
    """Cases by what a person would call them: the maker's name and its options."""

    def add(self, make: Callable[..., Case], **options: Any) -> None:
        told = (f"{name}={getattr(value, '__name__', value)}" for name, value in options.items())
        name = " ".join([make.__name__, *told])
        assert name not in self, name
        self[name] = partial(make, **options)
