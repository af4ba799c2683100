"""Rewrite what README.md and docs/ show of the program: the atlas, what stands in results/, the output of its Python.

No number in it is typed by hand. A table stands between `<!-- NAME:start -->` and `<!-- NAME:end -->`, an output in the
`text` block below a `python` block. `mpnn compare --folder results` leaves what the comparison is made from; a run and
the same run with shuffled positions share a table.

    python docs/make_tables.py            rewrite README.md and docs/
    python docs/make_tables.py --check    change nothing, and fail where it would
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from mpnn.experiments import MODELS, Comparison
from mpnn.experiments.atlas_cells import CELLS
from mpnn.experiments.recipes import PUBLISHED
from mpnn.experiments.verify import Layer, summary
from mpnn.experiments.verify_case import Verified
from mpnn.report.style import NAMES
from mpnn.report.table import accuracy, amount, caption, kernels, title

ROOT = Path(__file__).resolve().parents[1]


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def atlas() -> str:
    """Neighbourhoods down, weights across; in each cell the published name and the layers that it is checked with."""
    neighbours, weights = (
        list(dict.fromkeys(getattr(cell, part) for cell in CELLS)) for part in ("neighbours", "weight")
    )
    cells = {(c.neighbours, c.weight): f"**{c.name}**<br>{', '.join(r.name for r in c.references)}" for c in CELLS}
    lines = [row(["", *(f"`{weight}`" for weight in weights)]), row(["---"] * (1 + len(weights)))]
    lines += [row([f"`{rule}`", *(cells[rule, weight] for weight in weights)]) for rule in neighbours]
    return "\n".join(lines)


def results(folder: Path) -> str:
    """A table and a picture for each comparison in a folder, or what makes the first one."""
    found = [Comparison.read(path.parent) for path in sorted(folder.glob("*/results.json"))]
    plain = [one for one in found if not one.config["shuffle_positions"]]
    if not plain:
        return "No result is committed yet: `mpnn compare --published --folder results` makes one."
    return "\n\n".join(comparison(one, [other for other in found if shuffles(one, other)]) for one in plain)


def shuffles(one: Comparison, other: Comparison) -> bool:
    return other.config["shuffle_positions"] and other.config == {**one.config, "shuffle_positions": True}


def comparison(plain: Comparison, shuffled: list[Comparison]) -> str:
    """A row for each model; the runs with shuffled positions, and what is published, are columns."""
    both = [plain, *shuffled[:1]]
    published = PUBLISHED[plain.config["dataset"]] if plain.config["published"] else {}
    head = ["model", "parameters"]
    for one in both:
        head.append("test accuracy" if one is plain else "with shuffled positions")
        head += ["published"] if published else []
    head += ["FLOPs a sample", "ms a step", "kernel of each layer"]
    lines = [row(head), row(["---", *["---:"] * (len(head) - 2), "---"])]
    for model in plain.contestants:
        cells = [NAMES[model.model], f"{model.parameters:,}"]
        for one in both:
            cells += [accuracy(other) for other in one.contestants if other.model == model.model]
            cells += [percent(published[one is not plain].get(model.model))] if published else []
        lines.append(row([*cells, amount(model.flops), f"{1e3 * model.seconds_a_step:.1f}", kernels(model)]))
    lines += ["", f"{title(plain)}; {caption(plain)}.", ""]
    lines += [f"* {NAMES[model.model]}: {model.rule}." for model in plain.contestants]
    made = " and ".join(f"`{command(one.config)}`" for one in both)
    versions = ", ".join(f"{name} {number}" for name, number in plain.about["versions"].items() if name != "mpnn")
    lines += ["", f"Made by {made}; {plain.about['machine']}; Python {plain.about['python']}, {versions}.", ""]
    lines += [f"![{title(one)}]({one.folder.parent.name}/{one.folder.name}/accuracy.png)" for one in both]
    return "\n".join(lines)


def percent(figure: float | None) -> str:
    return "–" if figure is None else f"{figure} %"


def command(config: dict[str, Any]) -> str:
    """The options that repeat it, where they are not the default."""
    words = ["mpnn compare"]
    if config["published"]:
        words.append("--published")
    usual = {"dataset": "mnist1d", "steps": 6000, "seeds": 5} if config["published"] else {"dataset": "mnist1d"}
    usual |= {"models": list(MODELS), "budget": None, "kernel": None}
    for name, default in usual.items():
        if config[name] != default:
            words.append(f"--{name} {','.join(config[name]) if name == 'models' else config[name]}")
    if not config["published"]:
        words.append(f"--steps {config['steps']} --seeds {config['seeds']}")
    return " ".join(words + (["--shuffle-positions"] if config["shuffle_positions"] else []))


def rewritten(text: str, blocks: dict[str, str]) -> str:
    """The text with each block in its place."""
    for name, block in blocks.items():
        start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
        before, found, rest = text.partition(start)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"expected {start} and {end} in the text")
        text = f"{before}{start}\n{block}\n{end}{after}"
    return text


def with_outputs(text: str) -> str:
    """The text with what its Python prints, run as one session from top to bottom."""
    session: dict[str, object] = {"__name__": "readme"}

    def run(block: re.Match[str]) -> str:
        with (
            contextlib.redirect_stdout(io.StringIO()) as out,
            tempfile.TemporaryDirectory() as folder,
            contextlib.chdir(folder),  # where its pictures go
        ):
            exec(compile(block[1], "README.md", "exec"), session)
        printed = re.sub(r" +$", "", out.getvalue(), flags=re.MULTILINE)
        shown = f"```text\n{printed}```\n" if printed else ""
        return f"```python\n{block[1]}```\n{shown}"

    return re.sub(r"^```python\n(.*?)^```\n(?:```text\n.*?^```\n)?", run, text, flags=re.MULTILINE | re.DOTALL)


def verified(file: Path) -> str:
    """A row for each layer that can be loaded, from what `mpnn verify --out` wrote."""
    record = json.loads(file.read_text(encoding="utf-8"))
    lines = [
        row(["layer", "sets of options", "value", "gradient", "speed", "kernels"]),
        row(["---", *["---:"] * 4, "---"]),
    ]
    for layer in record["layers"]:
        cases = tuple(Verified(**{**case, "kernels": tuple(case["kernels"])}) for case in layer["cases"])
        lines.append(row(list(summary(Layer(f"`{layer['layer']}`", cases)).values())))
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items() if name != "mpnn")
    return "\n".join(
        [*lines, "", f"Made by `{record['command']}`; {record['machine']}; Python {record['python']}, {versions}."]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, and fail where README.md would change")
    check = parser.parse_args().check
    blocks = {
        "README.md": {"atlas": atlas(), "results": results(ROOT / "results")},
        "docs/pictures.md": {},
        "docs/verify.md": {"verify": verified(ROOT / "results" / "verify.json")},
    }
    for name, made in blocks.items():
        file = ROOT / name
        old = file.read_text(encoding="utf-8")
        new = with_outputs(rewritten(old, made))
        if check and new != old:
            sys.exit(f"{name} is not what docs/make_tables.py makes of it; run it")
        if not check:
            file.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
