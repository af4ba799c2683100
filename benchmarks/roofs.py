"""The roofs of the machine, measured at the start of a run, and how near a case comes to its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.case import Work
from benchmarks.machine import caches
from benchmarks.timing import seconds_of

ROW = 256  # bytes of a gathered row
BAG = 64  # rows summed to one, so that reading is all there is
TABLES = {
    2: 2**20,
    3: 32 * 2**20,
}  # bytes of a table that lies in the cache of a level, where the machine does not tell


@dataclass(frozen=True)
class Roofs:
    """What the machine can do: FLOP/s, bytes/s in order, bytes/s of gathered rows by the size of their table."""

    flops: float
    read: float
    gather: dict[int, float]

    def seconds(self, work: Work) -> float:
        """The least time for this work: operations, and reading, whichever is longer."""
        reading = work.streamed / self.read + sum(b / self.gather_at(table) for b, table in work.gathers)
        return max(work.flops / self.flops, reading)

    def gather_at(self, table: float) -> float:
        """The rate of the smallest calibrated table that is no smaller; of the largest beyond it."""
        sizes = sorted(self.gather)
        return self.gather[next((s for s in sizes if s >= table), sizes[-1])]

    def words(self) -> str:
        """One line."""
        gathers = ", ".join(f"{b / 1e9:.0f} of {s / 2**20:.0f} MiB" for s, b in sorted(self.gather.items()))
        return f"roofs: FMA {self.flops / 1e9:.0f} GFLOP/s, read {self.read / 1e9:.1f} GB/s, gather GB/s: {gathers}"


def fastest(call: Callable[[], Any], seconds: float = 0.3) -> float:
    """The least seconds a call, over some tenths of a second; a roof is the best that was seen."""
    call()
    best, begun = float("inf"), time.perf_counter()
    while time.perf_counter() - begun < seconds:
        best = min(best, seconds_of(call))
    return best


def tables() -> list[int]:
    """Bytes of tables for the gather: half of each core's L2, a share of L3, 32 MiB more in between, beyond all."""
    found = caches()
    level2 = found.get(2, 2 * TABLES[2]) // 2
    level3 = min(found.get(3, TABLES[3]), 64 * 2**20) // 2  # a shared L3 is never all ours
    return sorted({level2, level3, 128 * 2**20, 1024 * 2**20})


def calibrate(*, seconds: float = 0.3, largest: int = 1024 * 2**20) -> Roofs:
    """Measure: a GEMM, a sum, and sums of gathered rows."""
    n = 2048
    a, b, c = (torch.ones(n, n) for _ in range(3))
    flops = 2 * n**3 / fastest(lambda: torch.mm(a, b, out=c), seconds)
    row = torch.ones(min(largest, 256 * 2**20) // 4)
    read = row.numel() * 4 / fastest(row.sum, seconds)
    del row
    generator = torch.Generator().manual_seed(3)
    gather = {}
    for size in (s for s in tables() if s <= largest):
        table = torch.ones(size // ROW, ROW // 4)
        count = max(BAG * 64, min(1 << 20, 4 * table.shape[0]) // BAG * BAG)
        index = torch.randint(table.shape[0], (count // BAG, BAG), generator=generator)
        gather[size] = count * ROW / fastest(lambda i=index, t=table: F.embedding_bag(i, t, mode="sum"), seconds)
        del table
    return Roofs(flops, read, gather)
