"""The Triton kernel without a GPU: interpreted on the CPU, and compiled for one. On a GPU test_gpu.py runs it.

Each in a process of its own, since the interpreter is chosen when Triton is imported.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed: pip install 'mpnn[triton]'"
)
HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def run(*command: str, **environment: str) -> str:
    """The output of a Python process in the repository, which must end well."""
    paths = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": paths} | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_in_the_interpreter() -> None:
    options = ("-q", "-x", "-p", "no:cacheprovider")
    assert " passed" in run("-m", "pytest", *options, str(HERE / "triton_interpreted.py"), TRITON_INTERPRET="1")


def test_compiled_without_a_gpu(tmp_path: Path) -> None:
    lines = run(str(HERE / "triton_to_ptx.py"), TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0").splitlines()
    assert [line.split()[0] for line in lines] == [
        n for n in ("forward", "rows", "columns", "join", "add") for _ in "12"
    ]
