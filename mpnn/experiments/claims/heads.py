"""Heads: several relations at once, by one head or by many of the same total width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from mpnn import MessagePassing, capture_weights
from mpnn.experiments.claims.base import Claim, Record, Setting, Size, column, gaps, known, share, where
from mpnn.experiments.claims.chart import Chart, HeatMap, Rows, Table
from mpnn.experiments.claims.decide import Check, t_interval
from mpnn.experiments.claims.practise import SETTINGS, Samples, accuracy, drawn, one_hot, practise
from mpnn.experiments.progress import Advance
from mpnn.models import Network, Readout, ResidualBlock
from mpnn.neighbours import AllTokens
from mpnn.positions import RelativeBias
from mpnn.weights import QKSoftmax

N, SYMBOLS, WIDTH = 16, 8, 32
OFFSETS = (-3, -1, 1, 3)  # the relations: a token is asked for the symbols at these places from it
REACH = max(OFFSETS)
HEADS = (1, 2, 4, 8)
GAIN, SPECIAL = 0.05, 0.5
# A bias has to grow to several units before a head listens to one place alone: a high rate, for all numbers of heads.
RATE = replace(SETTINGS, learning_rate=2e-2, batch_size=32)


class Asked(nn.Module):
    """One answer for each relation, at the tokens that have all four: (B, N, C) → (B, N - 6, relations, symbols)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        weight = QKSoftmax(WIDTH, heads, score_bias=RelativeBias.offsets(heads, N - 1))
        block = ResidualBlock(MessagePassing(AllTokens(), weight), WIDTH, 2 * WIDTH)
        readout = Readout(WIDTH, len(OFFSETS) * SYMBOLS, "none", norm=nn.LayerNorm(WIDTH))
        self.network = Network([block], embed=nn.Linear(SYMBOLS, WIDTH), readout=readout)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)[:, REACH:-REACH].unflatten(-1, (len(OFFSETS), SYMBOLS))


def samples(generator: torch.Generator, count: int) -> Samples:
    """Random symbols, and those at each offset from every inner token."""
    x = torch.randint(SYMBOLS, (count, N), generator=generator)
    y = torch.stack([x[:, REACH + offset : N - REACH + offset] for offset in OFFSETS], -1)
    return one_hot(x, SYMBOLS), y


@torch.no_grad()
def by_offset(model: Asked, x: Tensor) -> list[list[float]]:
    """The mean weight that each head gives to each offset from -5 to 5, at the tokens that are asked."""
    with capture_weights(model) as captured:
        model(x)
    ((edges,),) = captured.values()
    inner = (edges.target >= REACH) & (edges.target < N - REACH)
    step, rows = edges.source - edges.target, []
    count = int(inner.sum()) / N  # targets
    for offset in range(-REACH - 2, REACH + 3):
        found = edges.weight[:, inner & (step == offset)].sum(-2).mean(0) / count
        rows.append(found.tolist())
    return [list(row) for row in zip(*rows, strict=True)]


def parts(size: Size) -> list[Setting]:
    return [{"heads": heads, "seed": seed} for seed in range(size.seeds) for heads in HEADS]


def run(setting: Setting, size: Size, advance: Advance) -> Record:
    assert size.steps is not None
    with drawn(setting["seed"]) as generator:
        model = Asked(setting["heads"])
        practise(
            model,
            lambda: samples(generator, RATE.batch_size),
            steps=size.steps,
            settings=RATE,
            advance=advance,
        )
        x, y = samples(generator, 1000)
        found = accuracy(model, x, y)
    shown = by_offset(model, x[:100])
    best = [max(row[offset + REACH + 2] for row in shown) for offset in OFFSETS]
    return {"accuracy": found, "least_served": min(best), "weights": shown}


def checks(records: Sequence[Record]) -> list[Check]:
    enough = len(OFFSETS)
    gained = gaps(records, "accuracy", {"heads": enough}, {"heads": 1})
    served = column(records, "least_served", heads=enough)
    more = gaps(records, "accuracy", {"heads": max(HEADS)}, {"heads": enough})
    return [
        Check(f"accuracy gained from 1 head to {enough}", t_interval(gained), "above", GAIN, "+.1%"),
        Check(
            f"{enough} heads: weight of the best head on the relation served least",
            t_interval(served),
            "above",
            SPECIAL,
        ),
        Check(f"accuracy gained from {enough} heads to {max(HEADS)}", t_interval(more), "below", GAIN, "+.1%"),
    ]


def table(records: Sequence[Record]) -> Table:
    rows = []
    for heads in known(records, "heads"):
        served = t_interval(column(records, "least_served", heads=heads)).mean
        rows.append([str(heads), str(WIDTH // heads), share(column(records, "accuracy", heads=heads)), f"{served:.2f}"])
    return Table(["heads", "channels a head", "accuracy", "weight on the relation served least"], rows)


def charts(records: Sequence[Record]) -> list[Chart]:
    rows = [
        (f"{heads} head{'s' if heads > 1 else ''}", [100 * value for value in column(records, "accuracy", heads=heads)])
        for heads in known(records, "heads")
    ]
    made: list[Chart] = [Rows("Four relations at once", "accuracy, %", rows, levels=((100 / SYMBOLS, "chance"),))]
    places = [f"{offset:+d}" if offset else "0" for offset in range(-REACH - 2, REACH + 3)]
    for heads in known(records, "heads"):
        shown = where(records, heads=heads)[0]["weights"]
        texts = [[f"{value:.2f}".lstrip("0") if value >= 0.1 else "" for value in row] for row in shown]
        title = f"{heads} head{'s' if heads > 1 else ''}: mean weight by offset (asked: ±1, ±3)"
        names = [str(head + 1) for head in range(heads)]
        made.append(HeatMap(title, places, names, shown, texts, "offset", "head", limits=(0, 1)))
    return made


CLAIM = Claim(
    "heads",
    "A token that needs several relations at once needs several heads: at equal width accuracy rises up to a head for "
    "each relation and not beyond, and each relation gets a head of its own.",
    Size(3, 300),
    Size(1, 3, quick=True),
    parts,
    run,
    checks,
    table,
    charts,
)
