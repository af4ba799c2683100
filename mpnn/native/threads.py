"""Threads for compiled passes: those of torch's own OpenMP, which stand ready between two of torch's operations.

Threads of Python's wake slowly, and share a core with torch's, which spin for a while after each operation. They run
the jobs where torch has no OpenMP of GNU's interface, and after a fork, which the others do not survive.

A pass is a C function of one address. There stand int64 numbers: the next job, the next thread, how many jobs, how many
of them at a time, where the threads' space is, how many bytes each has, and from LEADING on what the pass reads.
"""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import Any

import torch

LEADING = 6
SERIAL = 1 << 16  # multiplications below which a second thread costs more than it saves
_EACH = 16  # times that a thread comes for jobs, or oftener
_pool: ThreadPoolExecutor | None = None


@cache
def _of_openmp() -> Any:
    """GOMP_parallel of the library that torch is linked with; None where there is none."""
    try:
        found = getattr(ctypes.CDLL(torch._C.__file__), "GOMP_parallel", None)
    except OSError:  # a system that does not open a library by its file
        return None
    if found is not None:
        found.restype = None
        found.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    return found


_parallel: Callable[[], Any] = _of_openmp


def run(function: Any, jobs: int, cost: int, space: int, numbers: list[int]) -> None:
    """The pass over all jobs; ``cost``: about how many multiplications that is; ``space``: bytes for each thread."""
    threads = 1 if cost < SERIAL else min(torch.get_num_threads(), jobs)
    held = torch.empty(threads * space, dtype=torch.uint8, device="cpu")  # whatever the default device
    step = -(-jobs // (_EACH * threads))
    block = array("q", [0, 0, jobs, step, held.data_ptr(), space, *numbers])
    address = block.buffer_info()[0]
    if threads < 2:
        function.ctypes(address)
    elif (parallel := _parallel()) is not None:
        parallel(function.address, address, threads, 0)
    else:
        _python_threads(function.ctypes, address, threads)


def _python_threads(function: Any, address: int, threads: int) -> None:
    global _pool
    pool = _pool
    if pool is None:
        pool = _pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="mpnn")
    others: list[Future] = []
    try:
        for _ in range(threads - 1):
            others.append(pool.submit(function, address))
        function(address)
    finally:  # whatever was raised: what they read and write is freed after this
        begun = [other for other in others if not other.cancel()]  # one that never began has nothing left to do
        _ended(begun)
    for other in begun:
        other.result()


def _ended(futures: list[Future]) -> None:
    """Wait until none of them runs; an interrupt in the meantime is raised then."""
    try:
        wait(futures)
    except BaseException:
        _ended(futures)
        raise


def _forget() -> None:
    global _pool, _parallel
    _pool, _parallel = None, lambda: None  # the threads stayed with the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
