"""On what a number was measured."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from mpnn import __version__


def cores() -> int:
    """The cores that this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def about() -> dict[str, Any]:
    """The versions and the machine line that a result file carries."""
    versions = {"mpnn": __version__}
    for name in ("torch", "torch_geometric", "lightning", "numpy"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # a library that this result did not need
            continue
    machine = f"{_processor()}, cores: {cores()}, threads: {torch.get_num_threads()}{_load()}, {platform.system()}"
    return {"python": platform.python_version(), "versions": versions, "machine": machine}


def _load() -> str:
    """How busy the machine was in the last minutes, this program included: times on a busy one are no times."""
    return f", load: {os.getloadavg()[2]:.1f}" if hasattr(os, "getloadavg") else ""


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
