"""Extrapolation: train at one length, test at longer ones, with each positional code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mpnn.experiments.claims.base import Claim, Record, Setting, Size, column, known, share, where
from mpnn.experiments.claims.chart import Chart, Line, Lines, Table
from mpnn.experiments.claims.decide import Check, t_interval
from mpnn.experiments.claims.practise import Samples, accuracy, drawn, one_hot, practise
from mpnn.experiments.progress import Advance
from mpnn.models import Network, Transformer
from mpnn.neighbours import AllTokens
from mpnn.positions import ALiBi, Learned, Rotary, Sinusoidal
from mpnn.weights import QKSoftmax

LENGTH, TIMES = 16, (1, 2, 4, 8)
SYMBOLS, WIDTH, HEADS, DEPTH = 8, 32, 4, 2
KEPT = -0.05  # a loss of less than this is none


def previous(generator: torch.Generator, count: int, length: int) -> tuple[Tensor, Tensor]:
    """Which symbol came just before? The first token has itself."""
    x = torch.randint(SYMBOLS, (count, length), generator=generator)
    return x, torch.cat([x[:, :1], x[:, :-1]], 1)


def latest(generator: torch.Generator, count: int, length: int) -> tuple[Tensor, Tensor]:
    """Which of the symbols 0 and 1 came last? One of them stands at the start, and about every eighth token is one."""
    x = torch.randint(2, SYMBOLS, (count, length), generator=generator)
    marked = torch.rand(count, length, generator=generator) < 1 / 8
    marked[:, 0] = True
    x = torch.where(marked, torch.randint(2, (count, length), generator=generator), x)
    place = torch.where(marked, torch.arange(length), 0).cummax(-1).values
    return x, x.gather(1, place)


TASKS: dict[str, Callable[[torch.Generator, int, int], tuple[Tensor, Tensor]]] = {
    "the token before": previous,
    "the latest marker": latest,
}
# What each code brings to the layers' weights, and what it adds to the tokens.
CODES: dict[str, Callable[[], tuple[dict[str, Any], Any]]] = {
    "none": lambda: ({}, None),
    "learned": lambda: ({}, Learned(WIDTH, LENGTH * max(TIMES))),
    "sinusoidal": lambda: ({}, Sinusoidal(WIDTH)),
    "rotary": lambda: ({"position": Rotary(WIDTH // HEADS)}, None),
    "ALiBi": lambda: ({"score_bias": ALiBi(HEADS)}, None),
}


def model(code: str) -> Network:
    """A causal Transformer that answers at every token."""
    inside, added = CODES[code]()
    return Transformer(
        SYMBOLS,
        WIDTH,
        DEPTH,
        SYMBOLS,
        neighbours=AllTokens(causal=True),
        weight=lambda channels: QKSoftmax(channels, HEADS, **inside),
        position=added,
        hidden=2 * WIDTH,
        readout="none",
    )


def parts(size: Size) -> list[Setting]:
    return [
        {"task": task, "code": code, "seed": seed}
        for seed in range(size.seeds)
        for task in (list(TASKS)[:1] if size.quick else TASKS)
        for code in CODES
    ]


class Last(torch.nn.Module):
    """The answers at the last tokens of a model: those beyond the training length, for longer sequences."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[:, -LENGTH:]


def run(setting: Setting, size: Size, advance: Advance) -> Record:
    assert size.steps is not None
    task = TASKS[setting["task"]]

    def samples(count: int, length: int) -> Samples:
        x, y = task(generator, count, length)
        return one_hot(x, SYMBOLS), y

    with drawn(setting["seed"]) as generator:
        made = model(setting["code"])
        practise(made, lambda: samples(32, LENGTH), steps=size.steps, advance=advance)
        found = {}
        for times in TIMES:
            x, y = samples(64, times * LENGTH)
            found[f"accuracy_{times}"] = accuracy(Last(made), x, y[:, -LENGTH:])
    return found


def checks(records: Sequence[Record]) -> list[Check]:
    found = []
    for task in known(records, "task"):
        for code, side in (("rotary", "above"), ("ALiBi", "above"), ("sinusoidal", "below"), ("learned", "below")):
            rows = where(records, task=task, code=code)
            lost = [row[f"accuracy_{TIMES[-1]}"] - row["accuracy_1"] for row in rows]
            says = f"{code}, {task}: change of accuracy from the training length to {TIMES[-1]} times it"
            found.append(Check(says, t_interval(lost), side, KEPT, "+.1%"))
    return found


def table(records: Sequence[Record]) -> Table:
    rows = [
        [code, task, *(share(column(records, f"accuracy_{times}", task=task, code=code)) for times in TIMES)]
        for task in known(records, "task")
        for code in CODES
    ]
    return Table(["code", "task", f"length {LENGTH}, trained", *(str(LENGTH * times) for times in TIMES[1:])], rows)


def charts(records: Sequence[Record]) -> list[Chart]:
    made: list[Chart] = []
    lengths = [LENGTH * times for times in TIMES]
    for task in known(records, "task"):
        lines = []
        for code in CODES:
            columns = [[100 * v for v in column(records, f"accuracy_{t}", task=task, code=code)] for t in TIMES]
            mean = [sum(values) / len(values) for values in columns]
            lines.append(Line(code, lengths, mean, [min(v) for v in columns], [max(v) for v in columns]))
        made.append(Lines(task, "length at the test", "accuracy on the last tokens, %", lines, True, limits=(0, 102)))
    return made


CLAIM = Claim(
    "extrapolation",
    "Codes of the distance (rotary, ALiBi) keep their accuracy at eight times the training length; codes of the place "
    "(sinusoidal, learned) lose it.",
    Size(3, 150),
    Size(1, 3, quick=True),
    parts,
    run,
    checks,
    table,
    charts,
)
