"""What a claim is to the program: parts to run, and how their records become a verdict, a table and a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mpnn.experiments.claims.chart import Chart, Table
from mpnn.experiments.claims.decide import Check
from mpnn.experiments.progress import Advance

Setting = dict[str, Any]  # plain values that name a part, the seed among them
Record = dict[str, Any]  # a setting and what was measured: what a file can hold


@dataclass(frozen=True)
class Size:
    """How much is run: seeds, training steps of a part (None where nothing is trained), and whether it is a look only.

    A quick run has fewer settings too: it shows that everything works, not what is so.
    """

    seeds: int
    steps: int | None
    quick: bool = False


@dataclass(frozen=True)
class Claim:
    """A sentence that an experiment can show true or false.

    Args:
        name: its name on the command line.
        says: the claim, in one sentence.
        size, quick: what `mpnn experiment NAME` and its `--quick` run.
        parts: the settings, each a unit of work that is kept when it is finished.
        run: what is measured in one setting.
        checks: what decides, from all records.
        table, charts: what is shown of the records; they may be some of all.
        needs: libraries, asked for before anything runs.
        alone: the parts run one after the other in this process, as times or memory are measured, or all is done in
            the time that another process needs to start.
        prepare: what is brought before the parts are known, as a download that the claim can do without.
        note: what is to be said below the table of a whole run, if anything.
    """

    name: str
    says: str
    size: Size
    quick: Size
    parts: Callable[[Size], Sequence[Setting]]
    run: Callable[[Setting, Size, Advance], Record]
    checks: Callable[[Sequence[Record]], Sequence[Check]]
    table: Callable[[Sequence[Record]], Table]
    charts: Callable[[Sequence[Record]], Sequence[Chart]]
    needs: tuple[str, ...] = ()
    alone: bool = False
    prepare: Callable[[Size], None] = lambda size: None
    note: Callable[[Sequence[Record]], str] = lambda records: ""


def where(records: Sequence[Record], **fields: Any) -> list[Record]:
    """The records with these values, in the order of their seeds, so that two lists of them can be paired.

    >>> where([{"model": "a", "seed": 1}, {"model": "a", "seed": 0}, {"model": "b", "seed": 0}], model="a")
    [{'model': 'a', 'seed': 0}, {'model': 'a', 'seed': 1}]
    """
    found = [one for one in records if all(one.get(name) == value for name, value in fields.items())]
    return sorted(found, key=lambda one: one.get("seed", 0))


def column(records: Sequence[Record], field: str, **fields: Any) -> list[float]:
    """One measured number of the records with these values."""
    return [one[field] for one in where(records, **fields)]


def known(records: Sequence[Record], field: str) -> list[Any]:
    """The values of a field, each once, in the order in which they come."""
    return list(dict.fromkeys(one[field] for one in records if field in one))


def gaps(records: Sequence[Record], field: str, first: Setting, second: Setting) -> list[float]:
    """The differences, seed by seed, of a number in two settings; seeds that one of them lacks are left out."""
    other = {one["seed"]: one[field] for one in where(records, **second)}
    return [one[field] - other[one["seed"]] for one in where(records, **first) if one["seed"] in other]


def share(values: Sequence[float]) -> str:
    """A mean and the half-width of its t interval, in per cent.

    >>> share([0.5, 0.5]), share([0.25])
    ('50.0 ± 0.0 %', '25.0 %')
    """
    from mpnn.experiments.claims.decide import t_interval

    if not values:
        return "–"
    made = t_interval(values)
    half = "" if made.n == 1 else f" ± {100 * (made.high - made.mean):.1f}"
    return f"{100 * made.mean:.1f}{half} %"
