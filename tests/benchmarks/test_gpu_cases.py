"""The timings for a GPU, dry: every case on the CPU, its gate, its result file."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, gpu_cases, results, roofs, timing
from benchmarks.case import Entry

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "LEAST", 1e-5)
    monkeypatch.setattr(timing, "SPAN", 1e-5)
    monkeypatch.setattr(gpu, "calibrate", lambda **k: roofs.Roofs(1e9, 1e9, {1024: 1e9}))


def test_every_case_runs_dry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gpu.json"
    assert gpu.main(["--dry", "--out", str(path), "--tests", "passed"]) == 0
    result, printed = results.read(path), capsys.readouterr().out
    assert result["tests"] == "passed" and "--dry" in result["command"] and "torch" in result["about"]["versions"]
    keys = [e["key"] for e in result["entries"]]
    assert keys == [e.key for e in gpu_cases.entries("cpu", small=True)] and len(set(keys)) == len(keys)
    assert all(e["gate"]["green"] and set(e["modes"]) == {"forward", "train"} for e in result["entries"])
    backends = {row["best"] for row in result["backends"]}
    assert backends <= {"SDPA flash", "SDPA plain"} and len(result["backends"]) == 4
    assert "torch's own choice" in printed
    assert any(e["note"] == "refused: cuDNN, efficient" for e in result["entries"])


def test_a_case_that_fails_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def breaks() -> None:
        raise torch.OutOfMemoryError("no memory left")

    entries = [Entry("W5a/broken", "", breaks, {}), *gpu_cases.entries("cpu", small=True)][:2]
    monkeypatch.setattr(gpu_cases, "entries", lambda device, small: entries)
    assert gpu.main(["--dry", "--out", str(tmp_path / "gpu.json")]) == 1
    first, second = results.read(tmp_path / "gpu.json")["entries"]
    assert "no memory left" in first["left_out"] and second["gate"]["green"]


def test_what_is_not_reached_is_named(tmp_path: Path) -> None:
    assert gpu.main(["--dry", "--seconds", "0", "--only", "W3", "--out", str(tmp_path / "gpu.json")]) == 0
    assert results.read(tmp_path / "gpu.json")["not_reached"] == ["W3/small"]


def test_the_cases_of_a_gpu_are_named_once() -> None:
    keys = [e.key for e in gpu_cases.entries("cuda")]
    assert len(set(keys)) == len(keys) > 20
    assert {k.partition("/")[0] for k in keys} == {"W3", "W5a", "W7", "W8", "dense"}


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit, match="expected a CUDA device"):
        gpu.main(["--out", str(tmp_path / "gpu.json")])


def test_the_script_is_a_shell_script() -> None:
    assert subprocess.run(["sh", "-n", str(ROOT / "benchmarks" / "gpu.sh")], check=False).returncode == 0
