"""How a verdict comes from numbers: intervals, checks of an interval against a bound, and what they say together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mpnn.data.errors import require

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate, the range that it may lie in, how many values it comes from, and how the range was made."""

    mean: float
    low: float
    high: float
    n: int
    method: str


def t_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The mean of independent values and Student's t interval, `mean ± t · sd / √n`, by `scipy.stats`.

    One value says nothing about the spread, so its interval is everything. Values that are all equal give a point.

    Raises:
        ValueError: no value.

    >>> one = t_interval([0.9, 1.0, 0.95])
    >>> round(one.low, 3), round(one.high, 3)
    (0.826, 1.074)
    """
    if not values:
        raise ValueError("expected at least one value")
    method = f"{confidence:.0%} t interval over the seeds"
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Interval(mean, -math.inf, math.inf, 1, method)
    spread = statistics.stdev(values) / math.sqrt(len(values))
    if spread == 0:
        return Interval(mean, mean, mean, len(values), method)
    stats = require("scipy.stats", purpose="intervals")
    low, high = stats.t.interval(confidence, len(values) - 1, loc=mean, scale=spread)
    return Interval(mean, float(low), float(high), len(values), method)


def extent(values: Sequence[float]) -> Interval:
    """The median of values that bound something exactly, from the smallest to the largest.

    >>> extent([3.0, 1.0, 2.0])
    Interval(mean=2.0, low=1.0, high=3.0, n=3, method='smallest to largest')
    """
    return Interval(statistics.median(values), min(values), max(values), len(values), "smallest to largest")


@dataclass(frozen=True)
class Check:
    """A statement about an interval: it lies above a bound, or below it."""

    says: str
    interval: Interval
    side: str  # "above" or "below"
    bound: float
    form: str = ".3g"  # how its numbers are written

    def __post_init__(self) -> None:
        if self.side not in ("above", "below"):
            raise ValueError(f"side: expected above or below, got {self.side!r}")

    @property
    def holds(self) -> bool | None:
        """Whether the whole interval is on the side, None where the bound lies inside it."""
        low, high = self.interval.low, self.interval.high
        if math.isnan(low) or math.isnan(high):
            return None
        if self.side == "above":
            return True if low > self.bound else False if high <= self.bound else None
        return True if high < self.bound else False if low >= self.bound else None

    def write(self, value: float) -> str:
        """A number of this check."""
        return format(value, self.form)

    def numbers(self) -> tuple[str, str]:
        """The estimate and its interval, in words where there is none."""
        low, high = self.interval.low, self.interval.high
        if self.interval.n == 1 and math.isinf(low) and math.isinf(high):
            return self.write(self.interval.mean), "one seed, no interval"
        return self.write(self.interval.mean), f"[{self.write(low)}, {self.write(high)}]"

    def text(self) -> str:
        """`statement: mean [low, high], above bound: yes`."""
        answer = {True: "yes", False: "no", None: "open"}[self.holds]
        mean, interval = self.numbers()
        between = f" {interval}" if interval.startswith("[") else f" ({interval})"
        return f"{self.says}: {mean}{between}, {self.side} {self.write(self.bound)}: {answer}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values; an end that is infinite is null, which every reader of JSON knows."""
        ends = {
            name: value if math.isfinite(value := getattr(self.interval, name)) else None
            for name in ("mean", "low", "high")
        }
        return {
            "says": self.says,
            **ends,
            "n": self.interval.n,
            "method": self.interval.method,
            "side": self.side,
            "bound": self.bound,
            "holds": self.holds,
        }


@dataclass(frozen=True)
class Verdict:
    """What the numbers say of a claim."""

    word: str
    checks: tuple[Check, ...]
    note: str = ""

    @property
    def rule(self) -> str:
        methods = list(dict.fromkeys(check.interval.method for check in self.checks))
        return (
            "holds where every check's interval lies on its side of the bound, does not hold where one lies on the "
            f"other side, else undecided ({'; '.join(methods)})"
        )

    def as_dict(self) -> dict[str, Any]:
        checks = [check.as_dict() for check in self.checks]
        return {"word": self.word, "note": self.note, "rule": self.rule, "checks": checks}


def decide(checks: Sequence[Check]) -> Verdict:
    """The verdict of all checks together.

    >>> above = Check("accuracy", Interval(0.9, 0.8, 1.0, 3, "made up"), "above", 0.5)
    >>> decide([above]).word
    'holds'
    """
    answers = [check.holds for check in checks]
    word = FAILS if False in answers else HOLDS if answers and all(answers) else UNDECIDED
    return Verdict(word, tuple(checks))
