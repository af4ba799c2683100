"""Write docs/claims.md: what the experiments in results/claims found, in the order of the list of experiments.

No number in it is typed by hand, and no verdict: both are made from the records anew.
`mpnn experiment NAME` leaves in runs/NAME what a section is made from, and --take puts it into results/claims.

    python docs/make_claims.py                rewrite docs/claims.md
    python docs/make_claims.py --take runs    take the finished runs of the default size first
    python docs/make_claims.py --check        change nothing, and fail where it would
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from mpnn.experiments.claims import CLAIMS, Outcome
from mpnn.experiments.claims.chart import Table
from mpnn.experiments.claims.decide import UNDECIDED
from mpnn.report.claims import caption
from mpnn.report.claims_page import effort

ROOT = Path(__file__).resolve().parents[1]
HEAD = """# The claims, as experiments

Each claim is a sentence, an experiment that anyone can rerun, and a verdict that the program decides from the numbers:
a claim holds where the interval of every check lies on its side of the bound, it does not hold where one lies on the
other side, and else it is undecided. With several checks in a claim, each has its own interval. The bounds stand in the
code of the experiment. Tasks, bounds, learning rates and sizes were chosen in short trials with one seed so that small
networks learn in minutes: a claim that does not hold here does not hold at this size.

Made by `docs/make_claims.py` from `results/claims`; to run one again: `mpnn experiment NAME`. The parts of an
experiment run at once, a worker for each core; where times are measured they run one after the other.
"""


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def markdown(table: Table) -> str:
    lines = [row(list(table.head)), row(["---", *["---:"] * (len(table.head) - 1)])]
    return "\n".join([*lines, *(row(list(cells)) for cells in table.rows)])


def overview(found: list[Outcome]) -> str:
    """A line for each claim."""
    rows = [[f"[{one.claim.name}](#{one.claim.name})", one.claim.says, f"**{one.verdict.word}**"] for one in found]
    return "\n".join([row(["experiment", "claim", "verdict"]), row(["---"] * 3), *(row(cells) for cells in rows)])


def section(one: Outcome) -> str:
    """Claim, verdict, what decided it, table, picture, and how it was made."""
    verdict = one.verdict
    checks = "\n".join(f"* {check.text()}" for check in verdict.checks) or f"* {verdict.note}"
    about = one.about
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items() if name != "mpnn")
    made = (
        f"Made by `mpnn experiment {one.claim.name}` ({caption(one)}): {effort(one)}; {about['machine']}; "
        f"Python {about['python']}, {versions}. Intervals: {'; '.join(methods(one))}."
    )
    picture = f"![{one.claim.says}](../results/claims/{one.folder.name}/picture.png)"
    word = f"is {UNDECIDED}" if verdict.word == UNDECIDED else verdict.word
    head = f"## {one.claim.name}\n\n{one.claim.says}\n\n**The claim {word}.**"
    note = [one.note] if one.note else []
    return "\n\n".join([head, checks, markdown(one.claim.table(one.records)), *note, picture, made])


def methods(one: Outcome) -> list[str]:
    return list(dict.fromkeys(check.interval.method for check in one.verdict.checks))


def page(folder: Path) -> str:
    """The whole text."""
    files = {path.parent.name: path.parent for path in folder.glob("*/results.json")}
    found = [Outcome.read(files[name]) for name in CLAIMS if name in files]
    missing = [f"`{name}`" for name in CLAIMS if name not in files]
    rest = [f"No result of the default size is committed yet for {', '.join(missing)}."] if missing else []
    return "\n\n".join([HEAD.rstrip(), overview(found), *rest, *(section(one) for one in found)]) + "\n"


def take(runs: Path, folder: Path) -> list[str]:
    """Copy what the page needs of each finished run of the default size; the names of those that were taken."""
    taken = []
    for name, claim in CLAIMS.items():
        if not (runs / name / "results.json").exists():
            continue
        one = Outcome.read(runs / name)
        if not one.complete or (one.config["seeds"], one.config["steps"]) != (claim.size.seeds, claim.size.steps):
            print(f"{name}: not taken, as it is not finished or not of the default size", file=sys.stderr)
            continue
        (folder / name).mkdir(parents=True, exist_ok=True)
        for file in ("results.json", "picture.png"):
            shutil.copyfile(runs / name / file, folder / name / file)
        taken.append(name)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--take", type=Path, metavar="FOLDER", help="copy the finished runs of this folder first")
    parser.add_argument(
        "--check", action="store_true", help="change nothing, and fail where docs/claims.md would change"
    )
    options = parser.parse_args()
    check, file = options.check, ROOT / "docs" / "claims.md"
    if options.take is not None and not check:
        print("taken:", ", ".join(take(options.take, ROOT / "results" / "claims")) or "none")
    new = page(ROOT / "results" / "claims")
    if check and (not file.exists() or file.read_text(encoding="utf-8") != new):
        sys.exit("docs/claims.md is not what docs/make_claims.py makes of the results; run it")
    if not check:
        file.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
