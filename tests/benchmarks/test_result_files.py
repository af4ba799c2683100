"""Result files, the page and the pictures that are made of them."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest

from benchmarks import measure as measuring
from benchmarks import plots, report, results, roofs, run, timing, words
from benchmarks.case import FORWARD, TRAIN, Case, Entry, LeftOut
from helpers.benched import case, entry_of


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run of a few cases writes: one in order, one red, one left out, and a series; rounds have no length."""

    def left_out() -> Case:
        raise LeftOut("too large here")

    red = Entry("W0/red", "a wrong layer", lambda: case(lambda x: 2 * x, lambda x: 3 * x), {"N": 4}, scope="smoke")
    left = Entry("W0/left", "a large layer", left_out, {"N": 4}, scope="smoke")
    series = [
        dataclasses.replace(entry_of(f"series/W0-N/{n}"), size={"N": n}, series=("W0-N", "N"), floors={})
        for n in (1, 2, 4, 8, 16)
    ]
    path = tmp_path_factory.mktemp("run") / "r.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "LEAST", 1e-5)
        patch.setattr(timing, "SPAN", 1e-5)
        patch.setattr(run, "calibrate", lambda **k: roofs.Roofs(1e9, 1e9, {1024: 1e9}))
        patch.setattr(run.cases, "entries", lambda: [entry_of(), red, left, *series])
        assert run.main(["--smoke", "--rounds", "1", "--threads", "1", "--out", str(path)]) == 1
    return results.read(path)


def test_a_result_file_holds_the_run(result: dict[str, Any]) -> None:
    assert result["command"].startswith("python -m benchmarks.run --smoke")
    assert result["about"]["threads"] == 1 and "torch" in result["about"]["versions"]
    keys = [e["key"] for e in result["entries"]]
    assert keys[:3] == ["W0/ok", "W0/red", "W0/left"] and len(keys) == 8
    ok, red, left = result["entries"][:3]
    assert ok["kernel"] == "linear" and set(ok["modes"]) == {FORWARD, TRAIN}
    assert ok["modes"][FORWARD]["customary"]["peer"] == "peer" and ok["modes"][FORWARD]["roof_fraction"] > 0
    assert red["modes"] == {} and left["left_out"] == "too large here"
    assert [(e["key"], mode, name) for e, mode, name in results.missed(result["entries"])] == [("W0/ok", TRAIN, "best")]
    assert {e["series"] for e in result["exponents"]} == {"W0-N"}


def test_a_result_goes_through_json(result: dict[str, Any], tmp_path: Any) -> None:
    results.write(tmp_path / "again.json", result)
    assert results.read(tmp_path / "again.json") == result
    results.write(
        tmp_path / "odd.json", {"entries": [], "nan": math.nan, "inf": math.inf, "third": 1 / 3, "tuple": (1, 2)}
    )
    assert results.read(tmp_path / "odd.json") == {
        "entries": [],
        "nan": "nan",
        "inf": "inf",
        "third": 0.333333,
        "tuple": [1, 2],
    }
    (tmp_path / "other.json").write_text(json.dumps([1]))
    with pytest.raises(ValueError, match="expected a result file"):
        results.read(tmp_path / "other.json")
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def test_the_page_and_its_pictures(result: dict[str, Any], tmp_path: Any) -> None:
    drawn = plots.draw(result, tmp_path, "r")
    assert [name for name, _ in drawn] == ["r-ratios.png", "r-time.png"]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name, _ in drawn)
    made = report.page(result, drawn)
    for part in ("W0/ok: a layer", "Floors missed", "Red gates", "too large here", "results/r-ratios.png", "| W0-N |"):
        assert part in made
    text = report.between_marks(f"before {report.BEGIN} old {report.END} after", made)
    assert text.startswith("before ") and text.endswith(" after") and " old " not in text and made in text
    with pytest.raises(ValueError, match="to hold the marks"):
        report.between_marks("no marks", made)
    assert report.BEGIN in report.README.read_text(encoding="utf-8")


def test_an_exponent_is_a_slope() -> None:
    assert results.slope([(n, 5 * n**1.5) for n in (10, 20, 40, 80, 160)]) == pytest.approx(1.5)
    assert results.slope([(1, 1.0), (2, 0.0)]) is None


def test_floors_and_ceilings() -> None:
    assert measuring.met("customary", 2.0, 1.9) and not measuring.met("best", 0.9, 0.95)
    assert measuring.met("overhead", 10e-6, 12e-6) and not measuring.met("memory", 21.0, 20.0)
    judged = {
        "overhead": {"floor": 12e-6, "value": 20e-6, "met": False},
        "best": {"floor": 1.0, "value": 0.4, "met": False},
    }
    made = [{"key": "k", "modes": {FORWARD: {"floors": judged}}}]
    assert [name for _, _, name in results.missed(made)] == ["overhead", "best"]
    assert [name for _, _, name in results.missed(made, slack=2.0)] == ["best"]


def test_a_smoke_gate_judges_quiet_rounds_only() -> None:
    judged = {"floors": {"best": {"floor": 1.0, "value": 0.1, "met": False}}, "disturbed": 1}
    made = [{"key": "k", "modes": {FORWARD: judged}}]
    assert len(results.missed(made, 2.0)) == 1 and results.missed(made, 2.0, quiet=True) == []
    judged["disturbed"] = 0
    assert len(results.missed(made, 2.0, quiet=True)) == 1


def test_units() -> None:
    assert [words.seconds(s) for s in (2.0, 0.0123, 4.5e-6)] == ["2 s", "12.3 ms", "4.5 µs"]
    assert [words.size(s) for s in (2**31, 3 * 2**20, 512)] == ["2 GiB", "3 MiB", "0.5 KiB"]
