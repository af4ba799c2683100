"""On what a number was measured, and what else ran there meanwhile."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import mpnn

LIBRARIES = ("torch", "torch_geometric", "torch_scatter", "numpy", "numba", "pykeops", "triton")


def about() -> dict[str, Any]:
    """The machine, the versions and the state of the repository, for the head of a result file."""
    return {
        "machine": f"{processor()}, {cores()} cores, {memory_gib():.0f} GiB, {platform.system()} {platform.release()}",
        "device": "cpu",
        "capability": torch.backends.cpu.get_cpu_capability(),
        "caches": {f"L{level}": size for level, size in caches().items()},
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {"mpnn": mpnn.__version__}
        | {name: found for name in LIBRARIES if (found := installed(name)) is not None},
        "commit": commit(),
    }


def gpu() -> dict[str, Any]:
    """The GPU in the place of the processor, for the head of a result file."""
    card = torch.cuda.get_device_properties(0)
    cudnn = torch.backends.cudnn.version()
    return {
        "device": f"{card.name}, {card.total_memory / 2**30:.0f} GiB, {card.multi_processor_count} multiprocessors",
        "capability": f"sm_{card.major}{card.minor}, CUDA {torch.version.cuda}, cuDNN {cudnn}",
        "caches": {"L2": card.L2_cache_size},
    }


def installed(name: str) -> str | None:
    """The version of a library, None where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The processor's own name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def memory_gib() -> float:
    """Main memory in GiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def caches() -> dict[int, int]:
    """Bytes of the caches for data, by level."""
    found: dict[int, int] = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if (index / "type").read_text().strip() != "Instruction":
            size = (index / "size").read_text().strip()
            found[int((index / "level").read_text())] = int(size.rstrip("KM")) * (
                2**20 if size.endswith("M") else 2**10
            )
    return found


def commit() -> str | None:
    """The commit of the checkout, with a mark where files differ from it; None outside one."""
    try:
        run = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        return None
    return run.stdout.strip() or None


class Others:
    """The share of a core that other processes take, from the kernel's account of all of them and our own.

    The account counts in ticks of 10 ms, so a share is told apart from zero only over some tenths of a second.
    """

    STAT = Path("/proc/stat")

    def __init__(self) -> None:
        self.tick = 1 / os.sysconf("SC_CLK_TCK")
        self.known = self.STAT.exists()

    def read(self) -> tuple[float, float, float]:
        """(clock, processor time of everyone, processor time of this process), in seconds."""
        return time.perf_counter(), self._everyone() if self.known else 0.0, time.process_time()

    def _everyone(self) -> float:
        user, nice, system, _, _, irq, softirq, steal = (
            int(n) for n in self.STAT.read_text().split("\n", 1)[0].split()[1:9]
        )
        return (user + nice + system + irq + softirq + steal) * self.tick

    def share(self, before: tuple[float, float, float], after: tuple[float, float, float]) -> float:
        """Cores that others took between two readings: 0.05 is 5 % of one."""
        if not self.known:
            return 0.0
        wall, everyone, own = (b - a for a, b in zip(before, after, strict=True))
        return max(0.0, everyone - own) / max(wall, 1e-9)

    def allowed(self, seconds: float, share: float) -> float:
        """The share that a span may show: ``share``, but no less than two ticks, which no span resolves."""
        return max(share, 2 * self.tick / max(seconds, 1e-9)) if self.known else 1.0
