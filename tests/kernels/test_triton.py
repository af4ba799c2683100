"""The Triton kernel: in a process where Triton interprets it on the CPU. On a GPU test_gpu.py runs the compiled one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed: pip install triton")
def test_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, str(HERE / "triton_interpreted.py")],
        cwd=HERE.parents[1], env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
