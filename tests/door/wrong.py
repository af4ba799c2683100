"""A row of what cannot be made: what makes it, the error and what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpnn import MessagePassing

V, T, N = ValueError, TypeError, IndexError
Wrong = tuple[Callable[[], Any], type[Exception], str]


def joined(neighbours: Any, weight: Any, *call: Any, **options: Any) -> Any:
    layer = MessagePassing(neighbours, weight, **options)
    return layer(*call) if call else layer
