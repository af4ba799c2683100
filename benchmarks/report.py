"""Tables and pictures of result files: ``python -m benchmarks.report [results/bench.json ...]`` writes README.md."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import plots, results, words
from benchmarks.results import Record
from mpnn.data.files import write_text

README = Path(__file__).parent / "README.md"
# the whole, those of its workloads that noise decides in more rounds, many points, what takes long
USUAL = ("bench.json", "core.json", "points.json", "scale.json")
BEGIN, END = "<!-- made by benchmarks.report: begin -->", "<!-- made by benchmarks.report: end -->"


def table(entries: Sequence[Record]) -> list[str]:
    """A Markdown table of the cases and modes, the scaling series apart."""
    made = [
        "| case | kernel | | ours | first call | × customary | × best | of the roof | peak | above | floor |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for entry in results.measured(entries):
        if entry["series"] is None and entry["workload"] != "dispatch":
            for i, mode in enumerate(entry["modes"]):
                name = f"{entry['key']}: {entry['title']}" if i == 0 else ""
                made.append(f"| {name} | {entry['kernel'] if i == 0 else ''} | {row(entry, mode)} |")
    return made


def row(entry: Record, mode: str) -> str:
    """The cells of a mode."""
    found = entry["modes"][mode]
    memory = (entry["memory"] or {}).get("mpnn", {}).get(mode)
    cells = [words.MODES[mode], words.seconds(found["seconds"]["mpnn"]["median"])]
    cells.append(words.seconds(entry["first"]["mpnn"][mode]))
    cells += [against(found, name) for name in ("customary", "best")]
    cells.append(f"{found['roof_fraction']:.0%}" if "roof_fraction" in found else "")
    cells += ["", ""] if memory is None else [words.size(memory["peak"]), words.size(memory["above"])]
    noise = ["hurried"] if entry.get("hurried") else []
    noise += [f"{found['disturbed']} of {found['rounds']} rounds disturbed"] if found["disturbed"] else []
    cells.append("; ".join([*(words.floor(n, judged) for n, judged in found["floors"].items()), *noise]))
    return " | ".join(cells)


def against(found: Record, name: str) -> str:
    """A ratio with its spread and its peer."""
    if name not in found:
        return ""
    made = found[name]
    if name == "best" and made["peer"] == found["customary"]["peer"]:
        return "the same"
    spread = "one call" if made["peer"] in found["once"] else f"{made['low']:.3g} to {made['high']:.3g}"
    return f"**{made['median']:.3g}** ({spread}) {made['peer']}"


def dispatch(entries: Sequence[Record]) -> list[str]:
    """A Markdown table of what a call costs above the bare torch calls."""
    made = ["| kernel | | µs above the bare calls | bare calls, µs | floor |", "|---|---|---|---|---|"]
    for entry in results.measured(entries):
        if entry["workload"] == "dispatch":
            for mode, found in entry["modes"].items():
                above, bare = found["overhead"], found["seconds"][found["best"]["peer"]]["median"]
                spread = f"{above['low'] * 1e6:.1f} to {above['high'] * 1e6:.1f}"
                judged = "; ".join(words.floor(n, j) for n, j in found["floors"].items())
                cells = [
                    entry["kernel"],
                    words.MODES[mode],
                    f"**{above['median'] * 1e6:.1f}** ({spread})",
                    f"{bare * 1e6:.1f}",
                    judged,
                ]
                made.append("| " + " | ".join(cells) + " |")
    return made if len(made) > 2 else []


def scaling(found: Sequence[Record]) -> list[str]:
    """A Markdown table of exponents."""
    made = ["| series | | side | sizes | time | memory above |", "|---|---|---|---|---|---|"]
    for each in found:
        axis, sizes = each["axis"], each["sizes"]
        memory = "" if each["memory"] is None else f"{axis}^{each['memory']:.2f}"
        span = f"{axis} = {sizes[0]:,} to {sizes[-1]:,}"
        time = "" if each["time"] is None else f"{axis}^{each['time']:.2f}"
        cells = [each["series"], words.MODES[each["mode"]], each["side"], span, time, memory]
        made.append("| " + " | ".join(cells) + " |")
    return made if len(made) > 2 else []


def page(result: Record, pictures: Sequence[tuple[str, str]]) -> str:
    """Everything between the marks."""
    entries = result["entries"]
    roofs = result["roofs"]
    gathers = ", ".join(f"{float(b) / 1e9:.0f} from {int(s) / 2**20:.0f} MiB" for s, b in roofs["gather"].items())
    missed, red = results.missed(entries), results.red(entries)
    parts = [
        *(f"* {line}" for line in words.head(result)),
        f"* started {result['started']}, {result.get('seconds', 0):.0f} s",
        f"* roofs: FMA {roofs['flops'] / 1e9:.0f} GFLOP/s, read {roofs['read'] / 1e9:.1f} GB/s; "
        f"gather of 256-byte rows, GB/s: {gathers}",
        "",
        *(f"![{title}](results/{name})\n" for name, title in pictures),
        *_part("Dispatch, N = 8, E = 16, one thread", dispatch(entries)),
        *_part("Workloads", table(entries)),
        *_part("Scaling, exponents by least squares", scaling(result.get("exponents", []))),
        *_part("Floors missed", [f"* {words.miss(m)}" for m in missed] or ["None of a measured case."]),
        *_part("Red gates, not timed", [f"* {e['key']}: {e['gate']['words']}" for e in red]),
        *_part("Left out", [f"* {e['key']}: {e['left_out']}" for e in entries if "left_out" in e]),
    ]
    return "\n".join(parts).strip()


def _part(title: str, body: Sequence[str]) -> list[str]:
    return [f"### {title}", "", *body, ""] if body else []


def between_marks(text: str, made: str) -> str:
    """The page with its generated part replaced.

    Raises:
        ValueError: where the marks are missing.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(
            f"expected {README.name} to hold the marks {BEGIN!r} and {END!r}; write them where the table belongs"
        )
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"


def main(argv: list[str] | None = None) -> int:
    """Read result files, draw the pictures beside them, write the README."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument(
        "results", type=Path, nargs="*", help=f"by default {', '.join(USUAL)} of results/, those that are there"
    )
    args = parser.parse_args(argv)
    pages, pictures = [], []
    usual = [results.FOLDER / name for name in USUAL]
    for path in args.results or [p for p in usual if p == usual[0] or p.exists()]:
        result = results.read(path)
        drawn = plots.draw(result, results.FOLDER, path.stem)
        pages.append(page(result, drawn))
        pictures += [results.FOLDER / name for name, _ in drawn]
    write_text(README, between_marks(README.read_text(encoding="utf-8"), "\n\n".join(pages)))
    print("\n".join(f"wrote {path}" for path in (README, *pictures)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
