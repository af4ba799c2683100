"""The table that a comparison ends with."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from mpnn.experiments import Comparison, Contestant

if TYPE_CHECKING:
    from rich.table import Table


def table(result: Comparison) -> Table:
    """A row for each model: what it is, what it costs, how well it does.

    The spread is the standard deviation over the seeds; FLOPs are for the forward pass of one sample.
    """
    from rich import box
    from rich.table import Table

    # Narrow enough for 80 columns: the sentences about the models stand below.
    made = Table(title=title(result), caption=caption(result), box=box.SIMPLE_HEAD)
    made.title_justify = made.caption_justify = "left"
    made.add_column("model", no_wrap=True)
    for column in ("parameters", "test accuracy", "FLOPs a\nsample", "ms a\nstep"):
        made.add_column(column, justify="right", no_wrap=True)
    made.add_column("kernel of each layer")
    for one in result.contestants:
        made.add_row(
            one.model,
            f"{one.parameters:,}",
            accuracy(one),
            amount(one.flops),
            f"{one.seconds_a_step * 1e3:.1f}",
            kernels(one),
        )
    return made


def title(result: Comparison) -> str:
    """What was compared on what."""
    config, data = result.config, result.data
    shuffled = ", positions shuffled" if config["shuffle_positions"] else ""
    return f"{config['dataset']}{shuffled}: {data['train']:,} training and {data['test']:,} test samples"


def caption(result: Comparison) -> str:
    """How it was trained, and whether that is all."""
    seeds = {len(one.runs) for one in result.contestants}
    done = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else f"{min(seeds, default=0)}"
    state = "" if result.complete else f" of {result.config['seeds']}, not all finished"
    plural = "" if done == "1" else "s"
    return f"{result.config['steps']:,} steps, {done} seed{plural}{state}; accuracy after the last step, mean ± sd"


def accuracy(one: Contestant) -> str:
    """`93.1 ± 0.4 %`; one seed has no spread."""
    spread = "" if math.isnan(one.sd) else f" ± {100 * one.sd:.1f}"
    return f"{100 * one.mean:.1f}{spread} %"


def amount(number: float) -> str:
    """Three figures and a unit.

    >>> amount(1234), amount(56_700_000), amount(12)
    ('1.23 k', '56.7 M', '12')
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def rules(result: Comparison) -> str:
    """A line for each model: which neighbours and which weight it is."""
    return "\n".join(f"{one.model:<12} {one.rule}" for one in result.contestants)


def kernels(one: Contestant) -> str:
    """The kernels in the order of the layers, repeated ones counted."""
    counted = [(name, len(list(group))) for name, group in itertools.groupby(one.kernels.values())]
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in counted)
