"""transformers, where it is installed."""

from __future__ import annotations

import importlib
from typing import Any


def library(module: str = "modeling_utils") -> Any:
    """A module of transformers; where it is missing the error names the extra that brings it."""
    try:
        importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise ModuleNotFoundError(
            "mpnn.interop.transformers needs transformers, which is not installed: pip install 'mpnn[hf]'",
            name="transformers",
        ) from None
    return importlib.import_module(f"transformers.{module}")
