"""Time what runs on a GPU beside its peers: ``python -m benchmarks.gpu [--dry]``; ``gpu.sh`` runs the tests before.

The gate, the rounds, the ratios and the result file are those of ``benchmarks.run``. Memory is counted by torch's own
allocator. ``--dry`` runs small cases on the CPU, to show that the script is whole; its numbers say nothing.
"""

from __future__ import annotations

import argparse
import gc
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks import gpu_cases, results, words
from benchmarks.case import Entry
from benchmarks.machine import about, gpu
from benchmarks.measure import Settings, record
from benchmarks.memory import measure
from benchmarks.roofs import Roofs, calibrate, fastest
from benchmarks.run import close


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--dry", action="store_true", help="small cases on the CPU")
    parser.add_argument("--only", default="", help="cases, by the start of their key: W5a,dense/2x16")
    parser.add_argument("--seconds", type=float, default=260.0, help="when to stop; cases that are left then are named")
    parser.add_argument("--tests", default="", help="how the tests marked gpu ended, for the result file")
    parser.add_argument("--out", type=Path, default=None, help="result file (default benchmarks/results/gpu.json)")
    return parser.parse_args(argv)


class Allocator:
    """Peak memory by torch's allocator on the GPU, asked as ``benchmarks.memory.Server`` is."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = {e.key: e for e in entries}

    def ask(self, key: str, names: list[str], modes: list[str], threads: int) -> dict[str, dict[str, Any]]:
        """The memory of these sides of a case, by name and mode."""
        case = self.entries[key].make()
        sides = [s for s in (case.ours, *case.peers) if s.name in names]
        return {s.name: {m: asdict(found) for m, found in measure(s, modes, allocated).items()} for s in sides}


def allocated(call: Callable[[], Any]) -> tuple[int, Any]:
    """Bytes by which torch's allocator grew at most during the call, and what the call gave."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    torch.cuda.synchronize()
    return max(0, torch.cuda.max_memory_allocated() - before), result


def gpu_roofs() -> Roofs:
    """A large GEMM in bfloat16, a copy, and sums of gathered rows of 256 bytes, from L2 and from beyond it."""
    a, b = (torch.ones(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    flops = 2 * 8192**3 / fastest(lambda: a @ b)
    source = torch.ones(2**28, device="cuda")
    target = torch.empty_like(source)
    read = 2 * source.numel() * 4 / fastest(lambda: target.copy_(source))
    gather = {}
    for size in (16 * 2**20, 2**30):
        table = torch.ones(size // 256, 64, device="cuda")
        index = torch.randint(table.shape[0], (1 << 15, 64), device="cuda")
        gather[size] = index.numel() * 256 / fastest(lambda i=index, t=table: F.embedding_bag(i, t, mode="sum"))
    return Roofs(flops, read, gather)


def backends(entries: list[results.Record]) -> list[dict[str, Any]]:
    """The fastest of torch's backends by shape, dtype and mode: what a table of choices would be made from."""
    made = []
    for entry in results.measured(entries):
        if entry["workload"] != "dense":
            continue
        for mode, found in entry["modes"].items():
            seconds = {n: s["median"] for n, s in found["seconds"].items() if n != "mpnn"}
            if seconds:
                best = min(seconds, key=seconds.__getitem__)
                ours = found["seconds"]["mpnn"]["median"]
                made.append({"case": entry["key"], "mode": mode, "best": best, "seconds": seconds, "torch": ours})
    return made


def guarded(entry: Entry, roofs: Roofs, memory: Any, settings: Settings) -> dict[str, Any]:
    """The record of a case; one that the GPU cannot run says so, and the cases after it still run."""
    try:
        return record(entry, roofs, memory, settings)
    except RuntimeError as error:  # out of memory, a launch or a compilation that fails
        failed = f"failed: {type(error).__name__}: {str(error).strip()[:500]}"
        return {
            "key": entry.key, "workload": entry.workload, "title": entry.title, "size": dict(entry.size),
            "series": None, "modes": {}, "memory": None, "left_out": failed, "failed": True,
        }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Run, print and write; the exit code."""
    args = arguments(argv)
    if not args.dry and not torch.cuda.is_available():
        raise SystemExit("expected a CUDA device, and torch sees none; --dry shows on a CPU that the script runs")
    device, begun = "cpu" if args.dry else "cuda", time.perf_counter()
    wanted = [w.strip() for w in args.only.split(",") if w.strip()]
    chosen = [e for e in gpu_cases.entries(device, args.dry) if not wanted or e.key.startswith(tuple(wanted))]
    path = args.out or results.FOLDER / ("gpu-dry.json" if args.dry else "gpu.json")
    result: dict[str, Any] = {
        "command": shlex.join(["python", "-m", "benchmarks.gpu", *(sys.argv[1:] if argv is None else argv)]),
        "scope": "gpu", "started": datetime.now(UTC).isoformat(timespec="seconds"), "tests": args.tests,
        "about": about() | ({} if args.dry else gpu()), "entries": [],
    }  # fmt: skip
    print("\n".join(words.head(result)), flush=True)
    roofs = calibrate(seconds=0.05, largest=2**25) if args.dry else gpu_roofs()
    result["roofs"] = {"flops": roofs.flops, "read": roofs.read, "gather": roofs.gather}
    print(roofs.words() + "\n", flush=True)
    settings = Settings(rounds=3 if args.dry else 7, budget=0.1, threads=torch.get_num_threads())
    for done, entry in enumerate(chosen):
        left = args.seconds - (time.perf_counter() - begun)
        if left < 0:
            result["not_reached"] = [e.key for e in chosen[done:]]
            print(f"out of time before {', '.join(result['not_reached'])}")
            break
        budget = 0.1 if args.dry else min(1.5, max(0.3, left / (len(chosen) - done) / 4))
        made = guarded(entry, roofs, None if args.dry else Allocator(chosen), replace(settings, budget=budget))
        result["entries"].append(made)
        result["seconds"] = time.perf_counter() - begun
        result["backends"] = backends(result["entries"])
        results.write(path, result)
        print("\n".join(words.lines(made)), flush=True)
    for row in result.get("backends", []):
        table = ", ".join(
            f"{name} {words.seconds(s)}" for name, s in sorted(row["seconds"].items(), key=lambda p: p[1])
        )
        print(
            f"{row['case']:36s} {words.MODES[row['mode']]:7s} {table}; torch's own choice {words.seconds(row['torch'])}"
        )
    result["exponents"] = []
    result.setdefault("seconds", 0.0)
    results.write(path, result)
    close(result, path, 1.0)
    failed = [e["key"] for e in result["entries"] if "failed" in e]
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed or results.red(result["entries"]) else 0


if __name__ == "__main__":
    sys.exit(main())
