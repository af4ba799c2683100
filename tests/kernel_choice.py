"""Which kernels a call may run on, so that a test holds for each of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from mpnn import use_kernels
from mpnn.plan import BY_NAME, NAMES


def able(layer: Any, *arguments: Any, **given: Any) -> list[str]:
    """The kernels that can run this call of a layer, by its plan; the reference is always one of them."""
    spec = layer.plan(*arguments, **given).spec
    names = [name for name in NAMES if not BY_NAME[name].unsupported(spec)]
    assert "reference" in names
    return names


def on_each(run: Callable[[], Any]) -> Iterator[tuple[str, Any]]:
    """(kernel, result) of a function on each kernel that can run all the calls inside."""
    names = []
    for name in NAMES:
        try:
            with use_kernels(name):
                result = run()
        except ValueError as refusal:
            if not re.match(f"expected a kernel that can run .*, got {name} \\(", str(refusal)):
                raise
            continue
        names.append(name)
        yield name, result
    assert "reference" in names
