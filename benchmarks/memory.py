"""Peak memory of one call, counted by the kernel's account of the pages of a fresh process.

Pages count whatever allocated them: torch, MKL, oneDNN, a compiled kernel. The allocator is told to map every block of
64 KiB or more by itself and to give it back at once, so that a page in use is a page counted. The processes are forked
from a server that has imported everything and computed nothing, since threads do not survive a fork.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.case import FORWARD, TRAIN, Side
from benchmarks.equality import forward, train, upstream

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
MAP_FROM = 1 << 16
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8  # of mallopt


@dataclass(frozen=True)
class Memory:
    """Bytes. ``peak``: all that the call needs, inputs included · ``above``: without inputs, outputs and gradients."""

    peak: int
    above: int


def supported() -> bool:
    """Whether this system tells the peak of a process and lets it be set back."""
    return sys.platform == "linux" and CLEAR.exists()


def _pages(field: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def exact_allocator() -> None:
    """Let pages follow the tensors: large blocks are mapped, and unmapped when freed."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, MAP_FROM)
        libc.mallopt(M_ARENA_MAX, 1)


def peak_of(call: Callable[[], Any]) -> tuple[int, Any]:
    """Bytes by which the process grew at most during the call, and what the call gave."""
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    CLEAR.write_text("5")  # sets the peak back to what is in use now
    before = _pages("VmRSS")
    result = call()
    return max(0, _pages("VmHWM") - before), result


def size(tensors: Any) -> int:
    """Bytes of the storages of some tensors, each storage once; sparse matrices by their parts."""
    parts: list[Tensor] = []
    for t in tensors:
        if t.layout == torch.strided:
            parts.append(t)
        elif t.layout == torch.sparse_csr:
            parts += [t.crow_indices(), t.col_indices(), t.values()]
        else:
            parts += [t._indices(), t._values()]
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in parts}
    return sum(storages.values())


def measure(
    side: Side, modes: Sequence[str], peak_of: Callable[[Callable[[], Any]], tuple[int, Any]] = peak_of
) -> dict[str, Memory]:
    """The memory of one call of each mode; a call before them makes what is made once. ``peak_of`` counts it."""
    trains = TRAIN in modes and side.trains
    inputs = [*side.leaves.values(), *side.given]
    y = forward(side)()
    gradient = upstream(side, y) if trains else y
    del y
    if trains:
        train(side, gradient)()
    found = {}
    for mode in (m for m in modes if m == FORWARD or trains):
        held, outputs = list(inputs), 0
        grown, result = peak_of(forward(side) if mode == FORWARD else train(side, gradient))
        if mode == TRAIN:
            held.append(gradient)
        if side.step is not None and mode == TRAIN:
            held += [p.grad for p in side.leaves.values() if p.grad is not None]  # they stay from the first call
        else:
            outputs = size(result if isinstance(result, tuple) else (result,))
            outputs += size((gradient,)) if mode == TRAIN else 0  # the output that the gradient belongs to
        del result
        found[mode] = Memory(size(held) + grown, max(0, grown - outputs))
    return found


def child(key: str, names: list[str], modes: list[str], threads: int) -> dict[str, dict[str, dict[str, int]]]:
    """In a fresh process: the memory of some sides of a case, by name and mode."""
    from benchmarks.cases import entry

    exact_allocator()
    gc.freeze()  # what the server imported is no garbage, and looking through it takes longer than most calls
    torch.set_num_threads(threads)
    case = entry(key).make()
    sides = [s for s in (case.ours, *case.peers) if s.name in names]
    return {s.name: {mode: asdict(found) for mode, found in measure(s, modes).items()} for s in sides}


# imported before the fork, where they are installed: PyG alone takes two seconds
IMPORTED = [
    "benchmarks.memory", "benchmarks.cases", "torch._dynamo", "torch_geometric.nn", "mpnn.native.forward",
    "mpnn.native.by_target", "mpnn.native.by_source", "mpnn.native.long_jobs",
]  # fmt: skip


class Server:
    """Fresh processes, one a measurement, forked from one that has imported everything."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(IMPORTED)

    def ask(
        self, key: str, names: list[str], modes: list[str], threads: int
    ) -> dict[str, dict[str, dict[str, int]]] | None:
        """The memory of these sides of a case; None where the process was killed, as for want of memory."""
        with ProcessPoolExecutor(1, mp_context=self.context) as pool:
            try:
                return pool.submit(child, key, names, modes, threads).result()
            except BrokenProcessPool:
                return None
