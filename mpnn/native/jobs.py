"""Jobs: the rows of a graph cut into pieces of about as many edges, and run by as many threads as torch uses.

How rows are cut depends on the graph alone, so that results are the same to the last bit for every number of threads.
The threads are Python's: compiled code lets go of the interpreter's lock, and unlike an OpenMP runtime of its own they
survive a fork and calls from several threads.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from mpnn.memo import outside
from mpnn.sparse.csr import Csr

PRODUCT, SUM, KINKED = 0, 1, 2  # kinds of scores, see ``mpnn.native.forward``
BLOCK = 64  # edges whose scores are held at once
LEAST, MOST = 512, 8192  # edges of a job
SERIAL = 1 << 17  # multiplications below which a second thread costs more than it saves
_pool: ThreadPoolExecutor | None = None


class Jobs(NamedTuple):
    """``items`` int64 (jobs, 5): first row, end row, first edge, end edge, slot (-1 for whole rows) · ``long`` int64
    (rows, 3): a row that was cut, its first slot, its end slot · ``slots``: how many."""

    items: Tensor
    long: Tensor
    slots: int


def jobs_of(csr: Csr) -> Jobs:
    """The jobs of these rows, made once."""
    if "jobs" not in csr.cache:
        with outside():
            csr.cache["jobs"] = _cut(csr.offsets)
    return csr.cache["jobs"]


def _cut(start: Tensor) -> Jobs:
    rows = start.shape[0] - 1
    if rows == 0:
        return Jobs(start.new_empty(0, 5), start.new_empty(0, 3), 0)
    each = min(MOST, max(LEAST, int(start[-1]) // 64))
    degree = start.diff()
    long = degree > 2 * each
    group = (start[:-1] + torch.arange(rows)) // each  # an empty row costs about an edge
    first = torch.ones(rows, dtype=torch.bool)
    first[1:] = (group[1:] != group[:-1]) | long[1:] | long[:-1]
    begin = first.nonzero().squeeze(-1)
    end = torch.cat([begin[1:], begin.new_tensor([rows])])
    pieces = torch.where(long[begin], -(-degree[begin] // each), 1)
    owner = torch.repeat_interleave(pieces)
    number = torch.arange(len(owner)) - (pieces.cumsum(0) - pieces)[owner]
    begin, end, cut = begin[owner], end[owner], long[begin][owner]
    low = start[begin] + number * each
    slot = torch.where(cut, cut.cumsum(0) - 1, -1)
    items = torch.stack([begin, end, low, torch.minimum(low + each, start[end]), slot], 1)
    row = long.nonzero().squeeze(-1)
    stop = (-(-degree[row] // each)).cumsum(0)
    ends = torch.stack([row, torch.nn.functional.pad(stop, (1, -1)) if len(row) else stop, stop], 1)
    return Jobs(items.contiguous(), ends.contiguous(), int(cut.sum()))


def run(work: Callable[[int, int], None], jobs: int, cost: int) -> None:
    """``work(first, end)`` over all jobs; ``cost``: about how many multiplications that is."""
    threads = min(torch.get_num_threads(), jobs)
    if threads < 2 or cost < SERIAL:
        work(0, jobs)
        return
    step = -(-jobs // (8 * threads))
    numbers = itertools.count()  # each thread takes the next few jobs

    def drain() -> None:
        for number in numbers:
            if number * step >= jobs:
                return
            work(number * step, min(jobs, (number + 1) * step))

    global _pool
    pool = _pool
    if pool is None:
        pool = _pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="mpnn")
    others = [pool.submit(drain) for _ in range(threads - 1)]
    drain()
    for other in others:
        if not other.cancel():  # one that never began has nothing left to do
            other.result()


def _forget() -> None:
    global _pool
    _pool = None  # its threads stayed with the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
