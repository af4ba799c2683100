"""The position landmine: tasks of order, with and without codes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from mpnn.experiments.claims.base import Claim, Record, Setting, Size, column, share
from mpnn.experiments.claims.chart import Chart, Rows, Table
from mpnn.experiments.claims.decide import Check, t_interval
from mpnn.experiments.claims.practise import Samples, accuracy, drawn, one_hot, practise
from mpnn.experiments.progress import Advance
from mpnn.models import CNN, GNN, MLP, Transformer
from mpnn.neighbours import Graph
from mpnn.positions import Sinusoidal

N, SYMBOLS, ALL, WIDTH, BATCH = 8, 2, 12, 32, 128  # tokens, symbols of the first task and of all, channels
CHANCE, SOLVED = 0.55, 0.9  # below the one an accuracy is called chance, above the other the task is called solved

# In each task both answers have the same multisets of symbols, so that a bag of tokens says nothing: one set of tokens
# is drawn, and the answer decides their order.
Task = Callable[[torch.Generator, int], Samples]


def first_equals_last(generator: torch.Generator, count: int) -> Samples:
    """Is the first symbol the last one? A pair that is equal is always there, at the ends or not."""
    x = torch.randint(SYMBOLS, (count, N), generator=generator)
    x[:, 1] = (x[:, 0] + 1 + torch.randint(SYMBOLS - 1, (count,), generator=generator)) % SYMBOLS  # one that differs
    inner = torch.rand(count, N - 2, generator=generator).argsort(-1) + 1
    x[:, 1:-1] = x.gather(1, inner)
    x[:, -1] = x[:, 0]
    y = torch.randint(2, (count,), generator=generator)
    # The answer no: the last one changes places with one that differs, chosen evenly.
    weight = (x[:, 1:-1] != x[:, :1]).float()
    other = torch.multinomial(weight, 1, generator=generator) + 1
    swapped = x.gather(1, other)
    no = (y == 0)[:, None]
    x = torch.where(no, x.scatter(1, other, x[:, -1:]), x)
    x[:, -1:] = torch.where(no, swapped, x[:, -1:])
    return x, y


def is_sorted(generator: torch.Generator, count: int) -> Samples:
    """Do the symbols rise? Otherwise two of them, that differ, have changed places."""
    x = torch.rand(count, ALL, generator=generator).argsort(-1)[:, :N].sort(-1).values
    y = torch.randint(2, (count,), generator=generator)
    pair = torch.rand(count, N, generator=generator).argsort(-1)[:, :2]
    swapped = x.scatter(1, pair, x.gather(1, pair.flip(-1)))
    return torch.where((y == 1)[:, None], x, swapped), y


def came_first(generator: torch.Generator, count: int) -> Samples:
    """Did symbol 0 come before symbol 1? Both are there once, among others."""
    x = torch.randint(2, ALL, (count, N), generator=generator)
    y = torch.randint(2, (count,), generator=generator)
    places = torch.rand(count, N, generator=generator).argsort(-1)[:, :2].sort(-1).values
    x.scatter_(1, places, torch.stack([1 - y, y], -1))
    return x, y


TASKS: dict[str, Task] = {
    "first equals last": first_equals_last,
    "is it sorted": is_sorted,
    "which came first": came_first,
}


def chain() -> Tensor:
    """`edge_index` of a path, both ways."""
    forward = torch.stack([torch.arange(N - 1), torch.arange(1, N)])
    return torch.cat([forward, forward.flip(0)], 1)


BODIES: dict[str, Callable[[], nn.Module]] = {
    "MLP": lambda: nn.Sequential(nn.Flatten(), MLP((N * WIDTH, 64, 2))),
    "CNN": lambda: CNN(WIDTH, (WIDTH,) * 3, 2, size=(N,), residual=True),
    "GNN": lambda: GNN(WIDTH, (WIDTH,) * 3, 2, neighbours=Graph(chain(), N, self_loops="add"), residual=True),
    "Transformer": lambda: Transformer(None, WIDTH, 2, 2, hidden=2 * WIDTH),
}


class Embed(nn.Linear):
    """Symbols as vectors times √width, as Vaswani et al. (2017) have it: the code would drown them otherwise."""

    def forward(self, x: Tensor) -> Tensor:
        return math.sqrt(self.out_features) * super().forward(x)


def model(name: str, codes: bool) -> nn.Module:
    """Embedded symbols, a code of the place or none, and an architecture, the same for all."""
    code = Sinusoidal(WIDTH) if codes else nn.Identity()
    return nn.Sequential(Embed(ALL, WIDTH), code, BODIES[name]())


def parts(size: Size) -> list[Setting]:
    tasks = list(TASKS)[:1] if size.quick else list(TASKS)
    return [
        {"task": task, "model": name, "codes": codes, "seed": seed}
        for seed in range(size.seeds)
        for task in tasks
        for name in BODIES
        for codes in (False, True)
    ]


def run(setting: Setting, size: Size, advance: Advance) -> Record:
    assert size.steps is not None
    task = TASKS[setting["task"]]

    def samples(count: int) -> Samples:
        x, y = task(generator, count)
        return one_hot(x, ALL), y

    with drawn(setting["seed"]) as generator:
        made = model(setting["model"], setting["codes"])
        practise(made, lambda: samples(BATCH), steps=size.steps, advance=advance)
        return {"accuracy": accuracy(made, *samples(4000))}


def checks(records: Sequence[Record]) -> list[Check]:
    found = []
    for task in TASKS:
        for codes, side, bound in ((False, "below", CHANCE), (True, "above", SOLVED)):
            values = column(records, "accuracy", task=task, model="Transformer", codes=codes)
            if values:
                says = f"attention {'with' if codes else 'without'} codes, {task}"
                found.append(Check(says, t_interval(values), side, bound, ".1%"))
    return found


def table(records: Sequence[Record]) -> Table:
    found = [task for task in TASKS if any(one["task"] == task for one in records)]
    rows = [
        [name, "with" if codes else "without"]
        + [share(column(records, "accuracy", task=task, model=name, codes=codes)) for task in found]
        for name in BODIES
        for codes in (False, True)
    ]
    return Table(["model", "codes", *found], rows)


def charts(records: Sequence[Record]) -> list[Chart]:
    made: list[Chart] = []
    for task in TASKS:
        rows = []
        for name in BODIES:
            for codes in (False, True):
                values = column(records, "accuracy", task=task, model=name, codes=codes)
                if values:
                    rows.append((f"{name}{' + codes' if codes else ''}", [100 * value for value in values]))
        if rows:
            made.append(Rows(task, "accuracy, %", rows, levels=((50.0, "chance"),), limits=(40, 102)))
    return made


CLAIM = Claim(
    "landmine",
    "On tasks that need order, attention without positional codes stays at chance, and with them it solves them.",
    Size(5, 400),  # after 250 steps one seed of three was still on its way, at 82 %
    Size(1, 4, quick=True),
    parts,
    run,
    checks,
    table,
    charts,
)
