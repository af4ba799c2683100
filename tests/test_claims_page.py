"""docs/claims.md is what docs/make_claims.py makes of the committed results, and what these say is decided anew."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from mpnn.experiments.claims import CLAIMS, Outcome

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = sorted((ROOT / "results" / "claims").glob("*/results.json"))


def program():
    spec = importlib.util.spec_from_file_location("make_claims", ROOT / "docs" / "make_claims.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_page_is_what_the_program_makes():
    assert (ROOT / "docs" / "claims.md").read_text(encoding="utf-8") == program().page(ROOT / "results" / "claims")


@pytest.mark.parametrize("file", FOLDERS, ids=lambda file: file.parent.name)
def test_the_committed_verdict_is_the_one_that_the_records_give(file):
    written, read = json.loads(file.read_text(encoding="utf-8")), Outcome.read(file.parent)
    assert written["verdict"] == json.loads(json.dumps(read.verdict.as_dict()))
    assert written["claim"] == CLAIMS[written["experiment"]].says
    assert read.complete and not read.config["quick"] and (file.parent / "picture.png").exists()
    size = read.claim.size
    assert (read.config["seeds"], read.config["steps"]) == (size.seeds, size.steps)


def test_there_are_results():
    assert FOLDERS


def test_finished_runs_of_the_default_size_are_taken(tmp_path, capsys):
    runs, kept = tmp_path / "runs", tmp_path / "kept"
    for name in ("heads", "cost"):
        shutil.copytree(ROOT / "results" / "claims" / name, runs / name)
    file = runs / "cost" / "results.json"
    file.write_text(file.read_text(encoding="utf-8").replace('"seeds": 3', '"seeds": 2'), encoding="utf-8")
    (runs / "heads" / "results.csv").touch()
    assert program().take(runs, kept) == ["heads"]
    assert {path.name for path in (kept / "heads").iterdir()} == {"results.json", "picture.png"}
    assert "cost: not taken" in capsys.readouterr().err and not (kept / "cost").exists()


def test_a_run_that_no_clock_saw_whole_says_the_time_of_the_processor(tmp_path):
    heads = Outcome.read(ROOT / "results" / "claims" / "heads")
    seen = {"workers": 2, "wall_seconds": 31.4, "parts_run": heads.parts}
    text = program().section(dataclasses.replace(heads, about={**heads.about, **seen}))
    assert f"31 s with 2 workers, {heads.cpu:.0f} s of one core in all" in text
    seen["parts_run"] -= 1
    assert "2 workers" not in program().section(dataclasses.replace(heads, about={**heads.about, **seen}))
