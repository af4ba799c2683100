"""docs/claims.md is what docs/make_claims.py makes of the committed results, and what these say is decided anew."""

from __future__ import annotations

import importlib.util
import json
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
