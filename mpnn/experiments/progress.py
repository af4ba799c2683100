"""One bar over all the runs of an experiment, on the terminal's error stream so that results can be piped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from mpnn.data.errors import require

Advance = Callable[[int, float | None], None]


@contextmanager
def waiting(text: str, *, show: bool = True) -> Iterator[None]:
    """A sign that something goes on that has no steps to count."""
    require("rich", purpose="showing progress")
    from rich.console import Console

    console = Console(stderr=True, quiet=not show)
    with console.status(text) if console.is_terminal else nullcontext():
        yield


class Progress:
    """Shows how far the runs are; a line stays for each finished one. Silent when `show` is off.

    Args:
        total: steps over all runs.
    """

    def __init__(self, total: int, *, show: bool = True) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars
        from rich.table import Column

        self.console = Console(stderr=True, quiet=not show)
        # What has no room is the name, which is cut; on a wide terminal the bar stays where it is.
        named = Column(ratio=1, no_wrap=True, overflow="ellipsis", max_width=60)
        self.bars = Bars(
            TextColumn("{task.description}", table_column=named, markup=False),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            expand=True,
            transient=True,
            # A file or a pipe gets the lines of the finished runs and no bar.
            disable=not self.console.is_terminal,
        )
        self.task = self.bars.add_task("starting", total=total)
        self.done = 0

    def __enter__(self) -> Progress:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    @contextmanager
    def run(self, label: str, steps: int) -> Iterator[Advance]:
        """The steps of one run; the function is called with the number of steps done and the last accuracy."""
        shown = 0.0

        def advance(step: int, accuracy: float | None) -> None:
            nonlocal shown
            if (now := time.monotonic()) - shown > 0.1:
                shown = now
                self.show(step, label if accuracy is None else f"{accuracy:.1%} {label}")

        yield advance
        self.skip(steps)

    def show(self, steps: int, label: str) -> None:
        """How far the runs are that are not finished: the sum of their steps, and their names."""
        self.bars.update(self.task, completed=self.done + steps, **({"description": label} if label else {}))

    def skip(self, steps: int) -> None:
        """Count the steps of a finished run, or of one that need not be done."""
        self.done += steps
        self.bars.update(self.task, completed=self.done)

    def say(self, line: str) -> None:
        """A line that stays."""
        self.bars.console.print(line, highlight=False)
