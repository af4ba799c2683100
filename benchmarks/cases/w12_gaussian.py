"""W12: sums weighted by a Gaussian of the distance, over all pairs. ``AllTokens`` × ``EdgeLearned`` beside the dense
matrix where that fits, and beside pykeops where it and a C++ compiler are installed."""

from __future__ import annotations

import os
import shutil

from torch import Tensor

from benchmarks.case import Case, Entry, Side, Work
from benchmarks.machine import installed
from benchmarks.tensors import normal, seeded
from mpnn import MessagePassing
from mpnn.neighbours import AllTokens
from mpnn.weights import EdgeLearned

CHANNELS, AXES = 16, 3
DENSE = 20_000  # points whose matrix, and what its backward keeps, fit into a few GiB
MAPPED = 20_000  # points up to which a backward takes seconds, of pykeops too


def gaussian(pairs: object) -> Tensor:
    """exp(-|p_j - p_i|² / 2): (..., E, 1)."""
    return (-0.5 * pairs.offset.square().sum(-1, keepdim=True)).exp()  # type: ignore[attr-defined]


def make(length: int) -> Case:
    """One head on 16 channels, points in space."""
    seeded()
    layer = MessagePassing(AllTokens(), EdgeLearned(CHANNELS, CHANNELS, gaussian, heads=1, value=False, bias=False))
    x, p = normal(length, CHANNELS), normal(length, AXES, seed=2)
    leaves = {"x": x, "coordinates": p}

    def dense() -> Tensor:
        square = p.square().sum(-1)
        return (p @ p.t() - 0.5 * (square[:, None] + square)).exp() @ x

    sides = [Side("dense matrix", dense, leaves)] if length <= DENSE else []
    if installed("pykeops") is not None and shutil.which(os.environ.get("CXX", "g++")) is not None:
        sides.append(Side("pykeops", lambda: lazy(x, p), leaves, trains=length <= MAPPED))
    work = Work(2.0 * length**2 * (CHANNELS + AXES), 8.0 * length * (CHANNELS + AXES))
    ours = Side("mpnn", lambda: layer(x, coordinates=p), leaves, trains=length <= MAPPED)
    case = Case(ours, sides, work, work.times(3), layer.plan(x, coordinates=p).kernel)
    case.tolerance = 1e-4  # |a - b|² by the binomial cancels
    if length > DENSE:
        case.note = f"the matrix would take {4 * length**2 / 2**30:.0f} GiB; forward only, a backward takes minutes"
    return case


def lazy(x: Tensor, p: Tensor) -> Tensor:
    """The same without the matrix. The first call of a formula compiles it: half a minute, once a machine."""
    import pykeops

    pykeops.set_verbose(False)
    from pykeops.torch import LazyTensor

    rows, columns = LazyTensor(p[:, None].contiguous()), LazyTensor(p[None].contiguous())
    return (-0.5 * ((rows - columns) ** 2).sum(-1)).exp() @ x


def entries() -> list[Entry]:
    return [
        Entry(f"W12/{n}", f"Gaussian sums over {n:,} points", lambda n=n: make(n), {"N": n, "C": CHANNELS}, scope=scope)
        for n, scope in ((1_000, "bench"), (10_000, "scale"), (100_000, "scale"))
    ]
