"""Cases of the benchmarks that compute next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from benchmarks import tensors
from benchmarks.case import FORWARD, TRAIN, Case, Entry, Side, Work


def case(ours: Callable[[Tensor], Tensor], theirs: Callable[[Tensor], Tensor], **given: Any) -> Case:
    x = tensors.normal(4, 3)
    sides = [Side(name, lambda f=f: f(x), {"x": x}) for name, f in (("mpnn", ours), ("peer", theirs))]
    return Case(sides[0], sides[1:], Work(flops=100.0), Work(flops=300.0), "linear", **given)


def entry_of(key: str = "W0/ok", **given: Any) -> Entry:
    floors = {(FORWARD, "customary"): 1e-9, (TRAIN, "best"): 1e9}
    return Entry(key, "a layer", lambda: case(lambda x: 2 * x, lambda x: x + x), {"N": 4}, floors, "smoke", **given)
