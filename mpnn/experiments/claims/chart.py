"""Pictures and tables as data: what a claim wants drawn, without a word about how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Line:
    """A series; `low` and `high` are the ends of an interval at each x."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Lines:
    """Series over a number, with level lines `(value, name)`."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False
    levels: Sequence[tuple[float, str]] = ()
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Rows:
    """Values by name: a point for each seed, the mean and its interval, with level lines `(value, name)`.

    `marks` are other people's numbers for some of the names, and `marked` says whose they are.
    """

    title: str
    label: str
    rows: Sequence[tuple[str, Sequence[float]]]
    log: bool = False
    levels: Sequence[tuple[float, str]] = ()
    limits: tuple[float, float] | None = None
    marks: Mapping[str, float] = field(default_factory=dict)
    marked: str = "published"


@dataclass(frozen=True)
class HeatMap:
    """A number, and the text that is written on it, for each place of a table."""

    title: str
    x: Sequence[str]
    y: Sequence[str]
    values: Sequence[Sequence[float]]
    texts: Sequence[Sequence[str]] = ()
    x_label: str = ""
    y_label: str = ""
    limits: tuple[float, float] | None = None


Chart = Lines | Rows | HeatMap


@dataclass(frozen=True)
class Table:
    """A head and rows of texts; the first column is words, the others are numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
