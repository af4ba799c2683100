"""A run: which cases, at what pace, and what it leaves out."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from benchmarks import measure as measuring
from benchmarks import report, run, timing, words
from benchmarks.case import FORWARD, Case, Entry
from helpers.benched import case, entry_of


def test_the_command_line_selects(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert {e.scope for e in run.select(run.arguments(["--smoke"]))} == {"smoke"}
    assert {e.scope for e in run.select(run.arguments([]))} == {"smoke", "bench"}
    only = [e.key for e in run.select(run.arguments(["--only", "W1,W3/G2"]))]
    assert only == ["W1/128x784x256", "W1/4096x512x512", "W1/8192x1024x1024", "W3/G2-d64", "W3/G2-d128"]
    with pytest.raises(SystemExit, match="'W99'; there are"):
        run.select(run.arguments(["--only", "W99"]))
    assert run.main(["--list", "--only", "W6"]) == 0
    assert "W6/8192" in capsys.readouterr().out


def test_a_run_means_to_end_in_time() -> None:
    careful = measuring.Settings()
    assert run.pace(660.0, 100, careful, "bench").budget == pytest.approx((6.6 - run.AROUND) / 2)
    assert (
        run.pace(660.0, 10, careful, "bench").budget == 4.0
        and run.pace(float("inf"), 10, careful, "bench").budget == 20.0
    )
    assert run.pace(250.0, 100, careful, "bench").budget == 0.5 and not run.pace(250.0, 100, careful, "bench").hurried
    assert not run.pace(-5.0, 100, careful, "smoke").hurried
    for left in (190.0, -5.0):
        hurried = run.pace(left, 100, careful, "bench")
        assert hurried.hurried and (hurried.rounds, hurried.compiled) == (3, False) and hurried.limit == 0.2


def test_a_hurried_case_has_three_rounds_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "LEAST", 1e-5)
    monkeypatch.setattr(timing, "SPAN", 1e-5)
    made = measuring.record(entry_of(), None, None, measuring.Settings(threads=1).hurry())
    assert made["hurried"] and made["modes"][FORWARD]["rounds"] == 3
    assert all("HURRIED" in line for line in words.lines(made))
    assert "hurried" in report.row(made, FORWARD)
    assert {"making", "gate", "rounds"} == set(made["spent"]) and min(made["spent"].values()) >= 0


def test_compiled_peers_and_those_of_a_series_may_be_left_out() -> None:
    def with_two() -> Case:
        made = case(lambda x: 2 * x, lambda x: x + x)
        made.peers = [*made.peers, dataclasses.replace(made.peers[0], name="compiled", compiled=True)]
        return made

    def peers_of(settings: measuring.Settings, **given: Any) -> set[str]:
        entry = Entry("W0/two", "a layer", with_two, {"N": 4}, **given)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(timing, "LEAST", 1e-5)
            patch.setattr(timing, "SPAN", 1e-5)
            return set(measuring.record(entry, None, None, settings)["modes"][FORWARD]["seconds"]) - {"mpnn"}

    one = measuring.Settings(rounds=1, threads=1)
    assert peers_of(one) == {"peer", "compiled"}
    assert peers_of(dataclasses.replace(one, compiled=False)) == {"peer"}
    assert peers_of(one, series=("W0-N", "N")) == {"peer"}
