"""The cost of n²: time and memory of attention against the length, by how it is done and who is heard."""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from mpnn import attend
from mpnn.data.errors import require
from mpnn.experiments.claims.base import Claim, Record, Setting, Size, known, where
from mpnn.experiments.claims.chart import Chart, Line, Lines, Table
from mpnn.experiments.claims.decide import Check, t_interval
from mpnn.experiments.claims.practise import drawn
from mpnn.experiments.progress import Advance
from mpnn.neighbours import AllTokens, Blocks, Graph, Window

HEADS, CHANNELS, DEGREE = 4, 16, 16
LENGTHS, QUICK, LIMIT = (512, 1024, 2048, 4096, 8192), (128, 256, 512), 2**29
FITTED = 3  # the longest lengths, where what does not grow no longer counts

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def written_out(n: int, generator: torch.Generator) -> Attention:
    return lambda q, k, v: (q @ k.mT / math.sqrt(CHANNELS)).softmax(-1) @ v


def fused(n: int, generator: torch.Generator) -> Attention:
    return lambda q, k, v: attend(q, k, v, AllTokens())


def windowed(n: int, generator: torch.Generator) -> Attention:
    return lambda q, k, v: attend(q, k, v, Window(32))


def blocks(n: int, generator: torch.Generator) -> Attention:
    return lambda q, k, v: attend(q, k, v, Blocks(64))


def sparse(n: int, generator: torch.Generator) -> Attention:
    source = torch.randint(n, (n * DEGREE,), generator=generator)
    graph = Graph(torch.stack([source, torch.arange(n).repeat_interleave(DEGREE)]), n)
    return lambda q, k, v: attend(q, k, v, graph)


WAYS: dict[str, Callable[[int, torch.Generator], Attention]] = {
    "written out": written_out,
    "fused": fused,
    "window of 65": windowed,
    "blocks of 64": blocks,
    f"graph of degree {DEGREE}": sparse,
}
SQUARE_TIME, SQUARE_MEMORY = ("written out", "fused"), ("written out",)


@contextmanager
def silent() -> Iterator[None]:
    """Nothing on the error stream: the profiler of torch 2.13 writes a line there when it starts and stops."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def peak(call: Callable[[], object]) -> int:
    """Bytes of tensors that torch held at most during a call, beyond those from before, by its profiler."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with silent(), torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        call()
    kineto = profile.profiler.kineto_results
    events = sorted((e.start_ns(), e.nbytes()) for e in kineto.events() if e.name() == "[memory]")
    held = top = 0
    for _, change in events:
        held += change
        top = max(top, held)
    return top


def parts(size: Size) -> list[Setting]:
    lengths = QUICK if size.quick else LENGTHS
    return [
        {"way": way, "length": length, "seed": seed} for seed in range(size.seeds) for way in WAYS for length in lengths
    ]


def run(setting: Setting, size: Size, advance: Advance) -> Record:
    """The shortest of a few forwards in processor time: whatever else the machine does only adds to it."""
    n = setting["length"]
    if setting["way"] == "written out" and 2 * 4 * HEADS * n * n > LIMIT:  # scores and their softmax at once
        return {"fits": False}
    with drawn(setting["seed"]) as generator, torch.no_grad():
        q, k, v = (torch.randn(1, HEADS, n, CHANNELS, generator=generator) for _ in range(3))
        call = WAYS[setting["way"]](n, generator)
        call(q, k, v)  # what is made once is made now
        seconds: list[float] = []
        while len(seconds) < 3 or (sum(seconds) < 0.2 and len(seconds) < 50):
            started = time.process_time()
            call(q, k, v)
            seconds.append(time.process_time() - started)
        return {"fits": True, "seconds": min(seconds), "bytes": peak(lambda: call(q, k, v))}


def exponents(records: Sequence[Record], way: str, field: str) -> list[float]:
    """The exponent p of field ∝ lengthᵖ, by least squares of the logarithms over the longest lengths, for each seed."""
    stats = require("scipy.stats", purpose="fitting exponents")
    found = []
    for seed in known(records, "seed"):
        rows = sorted(
            (one["length"], one[field]) for one in where(records, way=way, seed=seed) if one["fits"] and one[field] > 0
        )[-FITTED:]
        if len(rows) == FITTED:
            x, y = zip(*rows, strict=True)
            found.append(float(stats.linregress([math.log(n) for n in x], [math.log(m) for m in y]).slope))
    return found


def fits_until(records: Sequence[Record], way: str) -> float:
    """The length at which the fitted memory reaches 16 GiB."""
    rows = [one for one in where(records, way=way) if one["fits"]]
    last = max(rows, key=lambda one: one["length"])
    slope = statistics.fmean(exponents(records, way, "bytes"))
    return float(last["length"] * (2**34 / last["bytes"]) ** (1 / slope))


def checks(records: Sequence[Record]) -> list[Check]:
    found = []
    for way in WAYS:
        for field, square in (("seconds", SQUARE_TIME), ("bytes", SQUARE_MEMORY)):
            side, bound = ("above", 1.6) if way in square else ("below", 1.4)
            says = f"{way}: exponent of the {'time' if field == 'seconds' else 'memory'}"
            found.append(Check(says, t_interval(exponents(records, way, field)), side, bound, ".2f"))
    return found


def table(records: Sequence[Record]) -> Table:
    rows = []
    for way in WAYS:
        fitting = [one for one in where(records, way=way) if one["fits"]]
        longest = max(one["length"] for one in fitting)
        last = [one for one in fitting if one["length"] == longest]
        cells = [f"{statistics.fmean(exponents(records, way, field)):.2f}" for field in ("seconds", "bytes")]
        milliseconds = 1e3 * statistics.median(one["seconds"] for one in last)
        size = f"{last[0]['bytes'] / 2**20:.1f}"
        rows.append([way, *cells, f"{longest:,}", f"{milliseconds:.1f}", size, f"{fits_until(records, way):,.0f}"])
    head = ["attention", "exponent: time", "memory", "longest", "ms", "MiB"]
    return Table([*head, "16 GiB at, fitted"], rows)


def charts(records: Sequence[Record]) -> list[Chart]:
    def lines(field: str, scale: float) -> list[Line]:
        made = []
        for way in WAYS:
            fitting = [one for one in where(records, way=way) if one["fits"]]
            lengths = sorted({one["length"] for one in fitting})
            columns = [[scale * one[field] for one in fitting if one["length"] == n] for n in lengths]
            made.append(Line(way, lengths, [statistics.median(values) for values in columns]))
        return made

    return [
        Lines("Time of a forward", "length", "ms of processor time", lines("seconds", 1e3), True, True),
        Lines("Memory beyond the inputs", "length", "MiB", lines("bytes", 2**-20), True, True),
    ]


CLAIM = Claim(
    "cost",
    "Attention among all tokens takes time that grows with the square of the length, written out also memory; fused it "
    "takes memory that grows with the length, and among few neighbours time does too.",
    Size(3, None),
    Size(1, None, quick=True),
    parts,
    run,
    checks,
    table,
    charts,
    alone=True,
)
