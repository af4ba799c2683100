"""What a sweep was asked for."""

from __future__ import annotations

import ast
import itertools
import json
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from mpnn.data import SOURCES, UsageError
from mpnn.data.errors import one_of
from mpnn.experiments.expressions import check
from mpnn.experiments.sweep_result import Place
from mpnn.experiments.sweep_rules import NEIGHBOURS, NUMBERS, POSITIONS, WEIGHTS


@dataclass(frozen=True)
class SweepJob:
    """The fields of a sweep, checked: names, options and numbers. Whether rules fit each other is seen when built.

    Raises:
        UsageError: an unknown name or option, other syntax, a number out of range.
    """

    neighbours: tuple[str, ...]
    weight: tuple[str, ...]
    positions: tuple[str, ...]
    dataset: tuple[str, ...]
    seeds: int
    steps: int
    channels: int
    depth: int
    heads: int
    budget: int | None = None

    def __post_init__(self) -> None:
        for name in self.dataset:
            one_of(name, SOURCES, "dataset")
        values = dict.fromkeys(NUMBERS)
        for field, known in (("neighbours", NEIGHBOURS), ("weight", WEIGHTS), ("positions", POSITIONS)):
            for text in getattr(self, field):
                check(text, known | (dict.fromkeys(("grid", "tokens")) if field == "neighbours" else values), field)
        for text in self.weight:
            _by_name(text)
        for field in ("seeds", "steps", "channels", "depth", "heads", "budget"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise UsageError(f"{field}: expected at least 1, got {value}")
        if self.channels % self.heads:
            raise UsageError(f"channels: expected a multiple of the {self.heads} heads, got {self.channels}")

    def places(self) -> Iterator[Place]:
        """The cells of the grid, position by position inside weights, weights inside neighbourhoods."""
        for one in itertools.product(self.dataset, self.neighbours, self.weight, self.positions):
            yield Place(*one)

    def config(self) -> dict[str, Any]:
        """The options of the command that repeats it."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def command(self) -> str:
        """The command line that asks for it."""
        words = [
            f"--{name} {json.dumps(', '.join(value), ensure_ascii=False) if isinstance(value, tuple) else value}"
            for name, value in asdict(self).items()
            if value is not None
        ]
        return " ".join(["mpnn sweep", *words])

    def name(self) -> str:
        """A name that differs where the options do."""
        cells = len(self.neighbours) * len(self.weight) * len(self.positions)
        mark = zlib.crc32(json.dumps(self.config()).encode())
        return f"sweep-{'-'.join(self.dataset)}-{cells}cells-{self.steps}steps-{self.seeds}seeds-{mark:08x}"


def _by_name(text: str) -> None:
    """The widths of a weight are the model's, so that a number in their place is a mistake."""
    for node in ast.walk(ast.parse(text, mode="eval")):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.args
            and node.func.id != "EdgeLearned"
        ):
            raise UsageError(
                f"weight: the widths of {node.func.id} are those of --channels; write its options by name, as "
                f"{node.func.id}(heads=2), got {text}"
            )
