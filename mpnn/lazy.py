"""Lazy: a package whose public names are loaded where they are first read."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class Lazy(ModuleType):
    """A package that loads torch with the first name that needs it, so that ``mpnn --help`` need not wait for it."""

    _homes: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        if name in self._homes:
            value = getattr(import_module(f"{self.__name__}.{self._homes[name]}"), name)
        elif not name.startswith("_") and find_spec(f"{self.__name__}.{name}"):
            value = import_module(f"{self.__name__}.{name}")
        else:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # importing mpnn/attend.py would put the module over the function of its name
        if not (name in self._homes and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._homes})


def lazy(package: str, homes: Mapping[str, str]) -> None:
    """Let a package load its names from these modules of its own: ``{"MessagePassing": "message_passing"}``."""
    module: Any = sys.modules[package]
    module.__dict__["_homes"] = homes
    module.__class__ = Lazy
