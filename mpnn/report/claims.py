"""What the command line shows of an experiment: the table, the verdict with what decided it, the picture."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from mpnn.experiments.claims import Listing, Outcome
from mpnn.report.charts import draw
from mpnn.report.claims_page import caption, claims_page
from mpnn.report.style import save

if TYPE_CHECKING:
    from rich.table import Table


def show_claims(result: Outcome | Listing) -> None:
    """Print the claims, or the outcome of one, and write `picture.png` and `index.html` beside its results."""
    from rich.console import Console

    console = Console(highlight=False)
    if isinstance(result, Listing):
        for claim in result.claims:
            console.print(f"[bold]{claim.name}[/]")
            console.print(textwrap.indent(textwrap.fill(claim.says, 76), "  "), markup=False)
        return
    if not result.records:
        return
    console.print(table(result))
    console.print(verdict(result), soft_wrap=True, markup=False)
    if result.note:
        console.print(result.note, soft_wrap=True, markup=False)
    if result.complete:
        picture(result)
        claims_page(result)
    written = ("index.html, picture.png, " if result.complete else "") + "results.json, results.csv, config.yaml"
    console.print(f"\nWritten to {result.folder}: {written}", soft_wrap=True, markup=False)


def table(result: Outcome) -> Table:
    """The claim's table of what is finished."""
    from rich import box
    from rich.table import Table

    made = Table(title=f"{result.claim.name}: {caption(result)}", box=box.SIMPLE_HEAD, title_justify="left")
    if not result.complete:
        made.add_column("part")
        made.add_column("seconds", justify="right")
        for record in result.records:
            words = ", ".join(str(value) for value in list(record.values())[:4])
            made.add_row(words, f"{record['part_seconds']:.1f}")
        return made
    shown = result.claim.table(result.records)
    for place, name in enumerate(shown.head):
        made.add_column(name, justify="right" if place else "left", overflow="fold")
    for row in shown.rows:
        made.add_row(*row)
    return made


def verdict(result: Outcome) -> str:
    """The claim, what was found in each check, and the word."""
    found = result.verdict
    lines = [f"Claim: {result.claim.says}", *(f"  - {check.text()}" for check in found.checks)]
    lines += [f"  - {found.note}"] if found.note else []
    return "\n".join(
        [*lines, f"Verdict: {found.word}. (A claim {found.rule}.)" if found.checks else f"Verdict: {found.word}."]
    )


def picture(result: Outcome) -> None:
    """Draw what the claim wants to be seen, with the verdict above it."""
    title = f"{result.claim.says} — {result.verdict.word}"
    save(draw(result.claim.charts(result.records), title), result.folder / "picture.png")
