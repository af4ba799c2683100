"""The atlas: each neighbourhood with each weight is a published layer, checked as it is printed."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mpnn.data.errors import UsageError, require
from mpnn.experiments.atlas_case import TOLERANCE, Errors, build, measure
from mpnn.experiments.atlas_cells import CELLS, Cell, Reference

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


@dataclass(frozen=True)
class Row:
    """What came out beside one reference: errors by dtype, or why there are none."""

    reference: Reference
    errors: dict[torch.dtype, Errors]
    missing: str = ""

    @property
    def agrees(self) -> bool:
        """Whether value and gradient are within the tolerance in every dtype."""
        return not self.missing and all(max(e.value, e.gradient) <= TOLERANCE[d] for d, e in self.errors.items())


def check(reference: Reference) -> Row:
    """Run one case in every dtype."""
    try:
        require(reference.needs, purpose=reference.name, install=reference.needs)
    except UsageError as missing:
        return Row(reference, {}, str(missing))
    return Row(reference, {dtype: measure(build(reference.case, dtype)) for dtype in TOLERANCE})


def atlas() -> None:
    """Check each neighbourhood with each weight against a published layer, and print what came out.

    Raises:
        SystemExit: with code 1, where a cell differs from its reference or lacks it.
    """
    require("rich", purpose="the table of the atlas")
    from rich.console import Console

    console = Console(highlight=False)
    if not show(console, CELLS):
        sys.exit(1)


def show(console: Console, cells: tuple[Cell, ...]) -> bool:
    """Measure and print cell by cell; whether all agree."""
    console.print(_line("", ["value", "gradient", ""]))
    console.print(_line("", ["f64   f32", "f64   f32", "kernel"], "dim"))
    agreeing = 0
    for cell in cells:
        with console.status(f"{cell.neighbours} × {cell.weight}"):
            rows = [check(reference) for reference in cell.references]
        agrees = all(row.agrees for row in rows)
        agreeing += agrees
        sign = "[green]✓[/]" if agrees else "[red]✗[/]"
        console.print(f"{sign} [bold]{cell.neighbours} × {cell.weight}[/]  {cell.name}")
        for row in rows:
            if row.missing:
                console.print(f"    [yellow]{row.missing}[/]")
            else:
                console.print(_line(row.reference.name, [*_numbers(row), next(iter(row.errors.values())).kernel]))
    bounds = ", ".join(f"{str(d).removeprefix('torch.')} {_short(t)}" for d, t in TOLERANCE.items())
    colour = "green" if agreeing == len(cells) else "red"
    agree = f"[{colour}]{agreeing} of {len(cells)} cells agree.[/]"
    console.print(f"\n{agree} Errors are parts of the reference's largest value; allowed: {bounds}.")
    return agreeing == len(cells)


def _line(name: str, columns: list[str], style: str = "") -> Table:
    from rich.table import Table

    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_column(width=2)
    for width in (30, 11, 11, None):
        line.add_column(width=width)
    line.add_row("", name, *columns, style=style)
    return line


def _numbers(row: Row) -> list[str]:
    """The errors of value and of gradient, each in every dtype."""
    parts = []
    for what in ("value", "gradient"):
        seen = []
        for dtype, errors in row.errors.items():
            error = getattr(errors, what)
            colour = "green" if error <= TOLERANCE[dtype] else "red"
            seen.append(f"[{colour}]{_short(error):<5}[/]")
        parts.append(" ".join(seen))
    return parts


def _short(error: float) -> str:
    """One figure: 2e-16."""
    return f"{error:.0e}".replace("e-0", "e-") if error else "0"
