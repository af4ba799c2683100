"""What the command line shows of a comparison, and the pictures that it leaves."""

from __future__ import annotations

from mpnn.experiments import Comparison
from mpnn.report.compare_page import compare_page
from mpnn.report.pictures import accuracies, curves
from mpnn.report.style import save
from mpnn.report.table import rules, table


def show(result: Comparison) -> None:
    """Print the table and write `curves.png`, `accuracy.png` and `index.html` beside the results."""
    from rich.console import Console

    if not result.contestants:
        return
    console = Console()
    console.print(table(result))
    console.print(rules(result), highlight=False, soft_wrap=True)
    save(curves(result), result.folder / "curves.png")
    save(accuracies(result), result.folder / "accuracy.png")
    compare_page(result)
    console.print(
        f"\nWritten to {result.folder}: index.html, results.json, results.csv, curves.png, accuracy.png, config.yaml",
        highlight=False,
        soft_wrap=True,
    )
