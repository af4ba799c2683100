"""What a kernel is, and what it gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from mpnn.call import Call
from mpnn.spec import Spec

__all__ = ["Call", "Kernel"]


class Kernel(Protocol):
    """A kernel module: its name, why it cannot run a call (in words), and the run."""

    name: str

    def unsupported(self, spec: Spec) -> list[str]: ...

    def run(self, call: Call, reference: Callable[[Call], Tensor]) -> Tensor: ...
