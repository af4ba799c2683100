"""``mpnn verify``: every layer that can be loaded, beside its original."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mpnn.data.errors import UsageError, one_of, require
from mpnn.data.files import write_text
from mpnn.experiments.about import about
from mpnn.experiments.verify_case import LayerCase, Verified, verify_layer

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Layer:
    """All cases of one layer."""

    name: str
    cases: tuple[Verified, ...]

    @property
    def agrees(self) -> bool:
        return all(case.agrees for case in self.cases)

    def as_dict(self) -> dict[str, Any]:
        return {"layer": self.name, "agrees": self.agrees, "cases": [asdict(case) for case in self.cases]}


def cases() -> dict[str, tuple[LayerCase, ...]]:
    """The cases of every layer by its name; what PyG computes is imported here."""
    from mpnn.experiments.verify_pyg import layers
    from mpnn.experiments.verify_torch import TORCH

    return {**TORCH, **layers()}


def verify(
    layers: Annotated[str | None, "which layers, as Conv2d,GCNConv (default: all)"] = None,
    *,
    out: Annotated[str | Path | None, "also write what came out to this file, as JSON; its folder is made"] = None,
) -> None:
    """Check every layer of torch and PyG that mpnn loads against its original: value, gradient, the way back, speed.

    Raises:
        UsageError: for a layer that is not known.
        SystemExit: with code 1, where one differs.
    """
    require("rich", purpose="the table of verify")
    from rich.console import Console
    from rich.progress import Progress

    file = None if out is None else Path(out)
    if file is not None and file.is_dir():
        raise UsageError(f"expected --out to be a file, got the folder {file}; write --out {file / 'verify.json'}")
    known = cases()
    names = [one_of(name.strip(), list(known), "layer") for name in layers.split(",")] if layers else list(known)
    console = Console(highlight=False)
    done: list[Layer] = []
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("checking", total=sum(len(known[name]) for name in names))
        for name in names:
            outcomes = []
            for case in known[name]:
                bar.update(task, description=name)
                outcomes.append(verify_layer(case))
                bar.advance(task)
            done.append(Layer(name, tuple(outcomes)))
    console.print(table(done))
    agreeing = sum(layer.agrees for layer in done)
    colour = "green" if agreeing == len(done) else "red"
    layer_agrees = "layer agrees" if len(done) == 1 else "layers agree"
    console.print(
        f"[{colour}]{agreeing} of {len(done)} {layer_agrees}[/], {sum(len(one.cases) for one in done)} sets of "
        "options.\nvalue, gradient: the largest errors, as parts of the original's largest value\n"
        "speed: ×2 is twice as fast as the original, ×0.5 half; one forward of a small input, the median"
    )
    if file is not None:
        record = {"command": "mpnn verify", **about(), "layers": [layer.as_dict() for layer in done]}
        write_text(file, json.dumps(record, indent=1) + "\n")
        console.print(f"Written to {file}", soft_wrap=True)
    if agreeing < len(done):
        sys.exit(1)


def table(done: list[Layer]) -> Table:
    """A row for each layer: how many sets of options, the largest errors, the kernels, the speed."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD)
    made.add_column("", no_wrap=True)
    made.add_column("layer", no_wrap=True)
    for column in ("options", "value", "gradient", "speed"):
        made.add_column(column, justify="right", no_wrap=True)
    made.add_column("kernels")
    for layer in done:
        row = summary(layer)
        sign = "[green]✓[/]" if layer.agrees else "[red]✗[/]"
        made.add_row(sign, *(row[k] for k in ("layer", "options", "value", "gradient", "speed", "kernels")))
    return made


def summary(layer: Layer) -> Mapping[str, str]:
    """A layer in words and figures, as the table and the documentation show it."""
    kernels = dict.fromkeys(kernel for case in layer.cases for kernel in case.kernels)
    return {
        "layer": layer.name,
        "options": str(len(layer.cases)),
        "value": f"{max(case.value for case in layer.cases):.0e}",
        "gradient": f"{max(case.gradient for case in layer.cases):.0e}",
        "speed": f"×{statistics.median(case.ratio for case in layer.cases):.2f}",
        "kernels": ", ".join(kernels),
    }
