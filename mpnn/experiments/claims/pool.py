"""The parts of an experiment, one after the other in this process or several at once in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

import torch

from mpnn.data import UsageError
from mpnn.experiments.claims.base import Record, Setting, Size
from mpnn.experiments.progress import Advance, Progress

Run = Callable[[Setting, Size, Advance], Record]
Made = Generator[tuple[str, Record], None, None]
LOOK = 0.1  # seconds between two looks at how far the others are

# What a worker shares with the process that started it: steps done of each part, and whether all is to end.
_shared: dict[str, Any] = {}


def timed(run: Run, setting: Setting, size: Size, advance: Advance) -> Record:
    """A part's record: its setting, what was measured, and the seconds of the clock and of the processor."""
    started, used = time.perf_counter(), time.process_time()
    measured = run(setting, size, advance)
    took = {"part_seconds": time.perf_counter() - started, "part_cpu": time.process_time() - used}
    return {**setting, **measured, **{field: round(value, 2) for field, value in took.items()}}


def in_turn(run: Run, todo: Mapping[str, Setting], size: Size, bars: Progress) -> Made:
    """Each part's name and record, made here one after the other."""
    for name, setting in todo.items():
        with bars.run(name, size.steps or 1) as advance:
            record = timed(run, setting, size, advance)
        yield name, record


def at_once(run: Run, todo: Mapping[str, Setting], size: Size, bars: Progress, workers: int) -> Made:
    """Each part's name and record as they are finished, by processes of one thread that import the libraries once.

    A part draws its numbers from its own seed, so its record does not depend on how many work. Where the caller stops,
    by Ctrl-C or an error, the workers end at once; where this process is killed, they notice and end too.

    Raises:
        UsageError: a worker was ended by something else, as by the system where memory runs out.
    """
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks, without the threads
    steps, stop = context.RawArray("q", len(todo)), context.RawValue("b", 0)
    names, each = list(todo), size.steps or 1
    pool = ProcessPoolExecutor(min(workers, len(todo)), context, _start, (steps, stop))
    try:
        with _deaf():
            futures = {pool.submit(_part, run, todo[name], size, at): at for at, name in enumerate(names)}
        waiting = set(futures)
        while waiting:
            done, waiting = wait(waiting, LOOK, FIRST_COMPLETED)
            for future in sorted(done, key=lambda one: one.exception() is not None):  # what is finished is kept first
                yield names[futures[future]], future.result()
                bars.skip(each)
            running = [futures[future] for future in waiting if steps[futures[future]] > 0]
            bars.show(sum(min(steps[at], each) for at in running), " | ".join(names[at] for at in sorted(running)))
    except BrokenProcessPool as error:
        raise UsageError(
            "workers: one of them was ended from outside, as where memory runs out, or could not start, as from a "
            'program without `if __name__ == "__main__":`; what is finished is kept, and one worker does the rest alone'
        ) from error
    except BaseException:  # Ctrl-C among them: no worker goes on for a caller that has left
        stop.value = 1
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes that are started here never hear Ctrl-C, which a terminal sends to all: this one tells them to end."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows: there they hear it, and end with a traceback
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(steps: Any, stop: Any) -> None:
    """What a worker does once."""
    torch.set_num_threads(1)
    _shared["steps"] = steps
    threading.Thread(target=_leave, args=(stop,), daemon=True).start()


def _leave(stop: Any) -> None:
    """End this worker when it is told to, or when nobody waits for it: no file of its could be left half written."""
    parent = multiprocessing.parent_process()
    while not stop.value and (parent is None or parent.is_alive()):
        time.sleep(LOOK)
    os._exit(1)


def _part(run: Run, setting: Setting, size: Size, at: int) -> Record:
    """A part in a worker."""

    def advance(step: int, accuracy: float | None) -> None:
        _shared["steps"][at] = step

    return timed(run, setting, size, advance)
