"""The family: one block, sixteen pairs of neighbours and weight, the same data and budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from torch import nn

from mpnn import MessagePassing
from mpnn.data import Dataset, load
from mpnn.experiments.claims.base import Claim, Record, Setting, Size, column, known, share, where
from mpnn.experiments.claims.chart import Chart, HeatMap, Table
from mpnn.experiments.claims.decide import Check, t_interval
from mpnn.experiments.measure import count_parameters
from mpnn.experiments.progress import Advance
from mpnn.experiments.recipe import Recipe, within
from mpnn.experiments.recipes import AsImage, grid_graph
from mpnn.models import Network, Readout, ResidualBlock
from mpnn.neighbours import AllTokens, Full, Grid, Neighbours
from mpnn.positions import Learned
from mpnn.tokens import PatchTokens
from mpnn.training import Settings, fit, seeded
from mpnn.weights import AdditiveScoreV2, EdgeLearned, QKSoftmax, SharedKernel, Static, Weight

TOKENS, PATCH, HEADS, DEPTH, BUDGET = 20, 2, 4, 2, 12_000
RATE = Settings(5e-3, optimiser="adamw", weight_decay=0.01, schedule="cosine", warmup=0.1, clip=1.0, batch_size=64)

NEIGHBOURS: dict[str, Callable[[], Neighbours]] = {
    "Full": lambda: Full(TOKENS),
    "Grid": lambda: Grid((TOKENS,), 5),
    "Graph": lambda: grid_graph((TOKENS,)),
    "AllTokens": lambda: AllTokens(max_tokens=TOKENS),
}


def learned_score(channels: int) -> Weight:
    score = AdditiveScoreV2(channels, HEADS, target_channels=channels)
    return EdgeLearned(channels, channels, score, heads=HEADS, output=True, normalise="softmax")


# All of one form, a number for each head between the same two projections: only where the number comes from differs.
WEIGHTS: dict[str, Callable[[int], Weight]] = {
    "Static": lambda channels: Static(channels, channels, heads=HEADS, output=True),
    "SharedKernel": lambda channels: SharedKernel(channels, channels, heads=HEADS, output=True),
    "EdgeLearned": learned_score,
    "QKSoftmax": lambda channels: QKSoftmax(channels, HEADS),
}


def cell(neighbours: str, weight: str) -> Recipe:
    """The network of a cell, of any width."""

    def build(data: Dataset, width: int) -> nn.Module:
        rule = NEIGHBOURS[neighbours]()
        blocks = [ResidualBlock(MessagePassing(rule, WEIGHTS[weight](width)), width, 2 * width) for _ in range(DEPTH)]
        tokens = PatchTokens(data.channels, width, (PATCH,))
        readout = Readout(width, data.classes, norm=nn.LayerNorm(width))
        network = Network(blocks, tokens=tokens, position=Learned(width, TOKENS), readout=readout)
        return nn.Sequential(AsImage(data.grid), network)

    return Recipe(f"{neighbours} × {weight}", build, HEADS, RATE, multiple=HEADS)


@cache
def data() -> Dataset:
    return load("mnist1d")


@cache
def sized(neighbours: str, weight: str) -> Recipe:
    return within(cell(neighbours, weight), data(), BUDGET, f"{neighbours} × {weight}")


def parts(size: Size) -> list[Setting]:
    rules, weights = (list(NEIGHBOURS)[1:3], list(WEIGHTS)[1:3]) if size.quick else (NEIGHBOURS, WEIGHTS)
    return [
        {"neighbours": rule, "weight": weight, "seed": seed}
        for seed in range(size.seeds)
        for weight in weights
        for rule in rules
    ]


def run(setting: Setting, size: Size, advance: Advance) -> Record:
    assert size.steps is not None
    found = sized(setting["neighbours"], setting["weight"])
    with seeded(setting["seed"]):
        model: Any = found.model(data())
        outcome = fit(
            model, data(), found.settings, steps=size.steps, seed=setting["seed"], evaluations=1, advance=advance
        )
    return {"accuracy": outcome.accuracy, "parameters": count_parameters(model), "width": found.width}


def effects(records: Sequence[Record], field: str) -> list[float]:
    """For each seed, the spread (largest less smallest) of the mean accuracies over one of the two choices."""
    found = []
    for seed in known(records, "seed"):
        means = []
        for value in known(records, field):
            values = column(records, "accuracy", seed=seed, **{field: value})
            means.append(sum(values) / len(values))
        found.append(max(means) - min(means))
    return found


def checks(records: Sequence[Record]) -> list[Check]:
    every = [min(column(records, "accuracy", seed=seed)) for seed in known(records, "seed")]
    return [
        Check("the worst of the sixteen", t_interval(every), "above", 0.2, ".1%"),
        Check(
            "between the best and the worst neighbours",
            t_interval(effects(records, "neighbours")),
            "above",
            0.02,
            ".1%",
        ),
        Check("between the best and the worst weight", t_interval(effects(records, "weight")), "above", 0.02, ".1%"),
    ]


def table(records: Sequence[Record]) -> Table:
    rows = []
    for rule in known(records, "neighbours"):
        cells = []
        for weight in known(records, "weight"):
            one = where(records, neighbours=rule, weight=weight)
            cells.append(f"{share([r['accuracy'] for r in one])} ({one[0]['parameters']:,})")
        rows.append([rule, *cells])
    return Table(["test accuracy (parameters)", *known(records, "weight")], rows)


def charts(records: Sequence[Record]) -> list[Chart]:
    rules, weights = known(records, "neighbours"), known(records, "weight")
    cells = [[column(records, "accuracy", neighbours=r, weight=w) for w in weights] for r in rules]
    values = [[100 * sum(found) / len(found) for found in row] for row in cells]
    texts = [[share(found) for found in row] for row in cells]
    title = f"mnist1d, at most {BUDGET:,} parameters: test accuracy, mean ± 95 % t interval"
    return [HeatMap(title, weights, rules, values, texts, "weight", "neighbours")]


CLAIM = Claim(
    "family",
    "One block with sixteen pairs of neighbours and weight is sixteen networks that all learn (twice as good as "
    "chance), and at one budget either choice alone moves the accuracy by more than two points.",
    Size(3, 250),
    Size(1, 2, quick=True),
    parts,
    run,
    checks,
    table,
    charts,
    needs=("lightning", "mnist1d"),
)
