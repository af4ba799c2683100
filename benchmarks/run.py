"""Time every workload beside its peers: ``python -m benchmarks.run [--only W1,W2] [--smoke | --scale]``."""

from __future__ import annotations

import argparse
import gc
import os
import shlex
import shutil
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks import cases, results, words
from benchmarks.case import Entry
from benchmarks.machine import about, cores
from benchmarks.measure import Settings, record
from benchmarks.memory import Server, supported
from benchmarks.roofs import calibrate

DEADLINE = {"smoke": 45.0, "bench": 630.0, "scale": float("inf")}  # seconds in which a run means to end
AROUND, LEAST = 3.5, 2.0  # seconds of a case besides its rounds (making it, its gate, its memory), and at the least
SLACK = 2.0  # the smoke set asks for half of each floor


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument("--smoke", action="store_true", help="a minute; ends with 1 where a floor is missed by half")
    scope.add_argument(
        "--scale", action="store_true", help="the large sizes too, and peers of up to half a minute a call in rounds"
    )
    parser.add_argument("--only", default="", help="workloads or cases, by the start of their key: W1,W3/G2,series")
    parser.add_argument("--rounds", type=int, default=None, help="rounds that count (default 9, smoke 5)")
    parser.add_argument("--threads", type=int, default=min(2, cores()), help="of torch (default 2)")
    parser.add_argument("--out", type=Path, default=None, help="result file (default benchmarks/results/<scope>.json)")
    parser.add_argument("--no-memory", action="store_true", help="leave the account of memory out")
    parser.add_argument("--list", action="store_true", help="print the keys and stop")
    return parser.parse_args(argv)


def select(args: argparse.Namespace) -> list[Entry]:
    """The cases of the scope that the command line names.

    Raises:
        SystemExit: where it names none.
    """
    scopes = ("smoke",) if args.smoke else ("smoke", "bench", "scale") if args.scale else ("smoke", "bench")
    wanted = [w.strip() for w in args.only.split(",") if w.strip()]
    every = cases.entries()
    for w in wanted:
        if not any(_named(e.key, w) for e in every):
            known = ", ".join(dict.fromkeys(e.workload for e in every))
            raise SystemExit(f"expected --only to name workloads or cases, got {w!r}; there are {known}")
    return [e for e in every if e.scope in scopes and (not wanted or any(_named(e.key, w) for w in wanted))]


def _named(key: str, wanted: str) -> bool:
    return key == wanted or key.startswith(wanted if "/" in wanted else wanted + "/")


def pace(left: float, cases: int, settings: Settings, name: str) -> Settings:
    """How carefully the next case is measured, so that a run ends in time. A case has two modes, and about
    ``AROUND`` seconds around their rounds; where less than ``LEAST`` is left for each case, they hurry. The smoke set
    does not, since its gates are judged."""
    each = left / cases
    if name != "smoke" and each < LEAST:
        return settings.hurry()
    return replace(settings, budget=min(20.0 if left == float("inf") else 4.0, max(0.5, (each - AROUND) / 2)))


def compiler() -> str | None:
    """The C++ compiler that torch.compile needs on a CPU."""
    return shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")


def main(argv: list[str] | None = None) -> int:
    """Run, print and write; the exit code."""
    args = arguments(argv)
    chosen = select(args)
    if args.list:
        print("\n".join(f"{e.key:28s} {e.title}" for e in chosen))
        return 0
    torch.set_num_threads(args.threads)
    name = "smoke" if args.smoke else "scale" if args.scale else "bench"
    path = args.out or results.FOLDER / f"{name}.json"
    settings = Settings(
        rounds=args.rounds or (5 if args.smoke else 9),
        limit=30.0 if args.scale else 0.5,
        threads=args.threads,
        compiled=not args.smoke and compiler() is not None,
    )
    if not settings.compiled and not args.smoke:
        print("no C++ compiler: peers through torch.compile are left out")
    begun = time.perf_counter()
    result: dict[str, Any] = {
        "command": shlex.join(["python", "-m", "benchmarks.run", *(sys.argv[1:] if argv is None else argv)]),
        "scope": name,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "about": about(),
        "entries": [],
    }
    print("\n".join(words.head(result)), flush=True)
    roofs = calibrate(seconds=0.1 if args.smoke else 0.5, largest=2**27 if args.smoke else 2**30)
    result["roofs"] = {"flops": roofs.flops, "read": roofs.read, "gather": roofs.gather}
    print(roofs.words() + "\n", flush=True)
    memory = None if args.smoke or args.no_memory or not supported() else Server()
    try:
        for done, entry in enumerate(chosen):
            gc.freeze()  # what lives by now are libraries: to look through them takes longer than a small case
            careful = pace(DEADLINE[name] - (time.perf_counter() - begun), len(chosen) - done, settings, name)
            made = record(entry, roofs, memory, careful)
            if args.smoke and results.missed([made], SLACK, quiet=True):  # a gate gets a second look before it fails
                made = record(entry, roofs, memory, careful)
            result["entries"].append(made)
            result["seconds"] = time.perf_counter() - begun
            results.write(path, result)
            print("\n".join(words.lines(made)), flush=True)
    except KeyboardInterrupt:
        print(f"stopped; what is finished is in {path}")
        return 130
    finally:
        gc.unfreeze()
    result["exponents"] = results.exponents(result["entries"])
    results.write(path, result)
    return close(result, path, SLACK if args.smoke else 1.0)


def close(result: dict[str, Any], path: Path, slack: float) -> int:
    """Print what scales how and which floors are missed; 1 where a gate is red, or where a loosened floor is missed in
    rounds that nobody disturbed."""
    entries = result["entries"]
    print("\n".join(["", *(words.exponent(found) for found in result["exponents"])]))
    missed, red = results.missed(entries, slack), results.red(entries)
    left = len(entries) - len(results.measured(entries)) - len(red)
    left_out = f", {left} of them left out" if left else ""
    print(f"{len(entries)} cases{left_out}, in {result['seconds']:.0f} s, written to {path}")
    for entry in red:
        print(f"red gate: {entry['key']}")
    loosened = "" if slack == 1 else f", ratios loosened by a factor of {slack:g}, overheads by {slack**2:g}"
    print(f"floors missed{loosened}:" if missed else f"every floor of a measured case is met{loosened}")
    for entry, mode, against in missed:
        noise = " (in disturbed rounds, so not judged)" if slack != 1 and entry["modes"][mode]["disturbed"] else ""
        print(f"  {words.miss((entry, mode, against))}{noise}")
    return 1 if red or (slack != 1 and results.missed(entries, slack, quiet=True)) else 0


if __name__ == "__main__":
    sys.exit(main())
