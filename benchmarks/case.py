"""What a workload is made of: sides that compute the same thing, how much work that is, and what is asked of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

FORWARD, TRAIN = "forward", "train"  # train: forward and backward with every input and weight requiring grad


def same(x: Tensor) -> Tensor:
    """A layout that is the common one already."""
    return x


@dataclass
class Side:
    """One implementation on the tensors of a case.

    ``forward``: the call · ``leaves``: the tensors whose gradients are wanted, by a name that all sides share ·
    ``view``: its output in the common layout · ``views``: gradients in the common layout, by the leaf's name; a
    packed leaf becomes a dict of several · ``step``: what training times instead of forward and backward, such as an
    optimiser's step · ``given``: what else it reads (edges, matrices), for the account of memory · ``compiled``: made
    by a compiler, so that a fresh process would compile it again · ``trains``: False where it has no backward ·
    ``same``: False where it does the work in parts, so that its values are no gate.
    """

    name: str
    forward: Callable[[], Tensor]
    leaves: Mapping[str, Tensor]
    view: Callable[[Tensor], Tensor] = same
    views: Mapping[str, Callable[[Tensor], Tensor | dict[str, Tensor]]] = field(default_factory=dict)
    step: Callable[[], Any] | None = None
    given: Sequence[Tensor] = ()
    compiled: bool = False
    trains: bool = True
    same: bool = True


@dataclass(frozen=True)
class Work:
    """The least that a computation must do: operations, bytes read or written in order, rows gathered.

    ``gathers``: (bytes gathered, bytes of the table that they are gathered from).
    """

    flops: float = 0.0
    streamed: float = 0.0
    gathers: tuple[tuple[float, float], ...] = ()

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.streamed + other.streamed, self.gathers + other.gathers)

    def times(self, factor: float) -> Work:
        """The work of doing it so often."""
        return Work(self.flops * factor, self.streamed * factor, tuple((b * factor, t) for b, t in self.gathers))


class LeftOut(Exception):
    """Raised by a case that cannot be measured here, with the reason."""


@dataclass
class Case:
    """Ours and its peers, the customary one first, on the same tensors."""

    ours: Side
    peers: Sequence[Side]
    work: Work
    train_work: Work
    kernel: str
    tolerance: float = 2e-5  # of the reference's largest entry
    note: str = ""


# A floor: (mode, against) → the least ratio; against is "customary", "best", or "overhead" with seconds as the most.
Floors = Mapping[tuple[str, str], float]


@dataclass
class Entry:
    """A case that is made when its turn comes.

    ``key``: its name, as ``W1/128x784x256`` · ``size``: N, E and the like, for tables and plots ·
    ``scope``: "smoke" (also in the smoke set), "bench", or "scale" (only there) · ``series``: the name of the scaling
    series that it belongs to, and the key of ``size`` along which that runs.
    """

    key: str
    title: str
    make: Callable[[], Case]
    size: Mapping[str, int]
    floors: Floors = field(default_factory=dict)
    scope: str = "bench"
    series: tuple[str, str] | None = None
    threads: int | None = None  # None: those of the run

    @property
    def workload(self) -> str:
        return self.key.partition("/")[0]
