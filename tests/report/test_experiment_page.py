"""The page of an experiment: made from committed records, whole, alone, and opened in a browser."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from helpers import browser
from mpnn.experiments.claims import Outcome
from mpnn.experiments.claims.chart import HeatMap, Line, Lines, Rows
from mpnn.report.charts import draw
from mpnn.report.claims import show_claims, verdict
from mpnn.report.claims_page import _told, claims_page, effort

COMMITTED = Path(__file__).resolve().parents[2] / "results" / "claims"
real_browser = pytest.mark.skipif(browser.BROWSER is None, reason=browser.MISSING)


def committed(name, folder):
    return dataclasses.replace(Outcome.read(COMMITTED / name), folder=folder)


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    return committed("heads", tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def made(heads):
    return claims_page(heads)


def test_it_has_the_verdict_the_checks_the_table_the_pictures_and_the_configuration(heads, made):
    text = made.read_text(encoding="utf-8")
    assert all(f">{title}</h2>" in text for title in ("Verdict", "Results", "Every part", "Configuration", "Machine"))
    assert f"Verdict: {heads.verdict.word}." in text and heads.claim.says in text
    for check in heads.verdict.checks:
        mean, interval = check.numbers()
        assert f">{check.says}</th>" in text and f">{mean}</td>" in text and f">{interval}</td>" in text
    shown = heads.claim.table(heads.records)
    assert all(f">{cell}</td>" in text for row in shown.rows for cell in row[1:])
    assert text.count("<svg") == len(heads.claim.charts(heads.records))
    assert "mpnn experiment heads" in text and "experiment: heads" in text and heads.about["machine"] in text
    assert text.count('scope="row"') >= len(heads.records) + len(shown.rows) + len(heads.verdict.checks)


def test_the_command_line_writes_it_and_says_so(heads, capsys):
    (heads.folder / "index.html").unlink(missing_ok=True)
    show_claims(heads)
    assert "index.html, picture.png, results.json" in capsys.readouterr().out
    assert (heads.folder / "index.html").exists()


def test_one_that_is_not_finished_has_no_page(tmp_path, capsys):
    whole = committed("heads", tmp_path)
    show_claims(dataclasses.replace(whole, records=whole.records[:3]))
    assert "index.html" not in capsys.readouterr().out and not list(tmp_path.iterdir())


def test_one_seed_has_no_interval_and_says_so(heads, tmp_path):
    first = [one for one in heads.records if one["seed"] == 0]
    one = dataclasses.replace(heads, folder=tmp_path, records=first, parts=len(first))
    text = claims_page(one).read_text(encoding="utf-8")
    assert "one seed, no interval" in text and "(one seed, no interval), above" in verdict(one)
    assert not re.search(r"\binf\b", text + verdict(one))


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({}, "12 s of one core"),
        ({"workers": 2, "wall_seconds": 7.1, "parts_run": 5}, "12 s of one core"),
        ({"workers": 2, "wall_seconds": 7.1, "parts_run": 12}, "7 s with 2 workers, 12 s of one core in all"),
        ({"workers": 1, "wall_seconds": 7.1, "parts_run": 12}, "7 s with 1 worker, 12 s of one core in all"),
    ],
)
def test_the_time_by_the_clock_is_told_only_where_it_was_seen(about, said, heads):
    records = [{**one, "part_cpu": 1.0} for one in heads.records]
    assert effort(dataclasses.replace(heads, records=records, about=about)) == said


def test_charts_are_told_in_words():
    assert _told(Lines("a", "x", "y", [Line("CNN", [1, 2], [3.0, 4.0])])) == "CNN from 3 to 4"
    assert _told(Rows("a", "x", [("one", [1.0, 2.0]), ("none", [])])) == "one 1.5"
    assert _told(HeatMap("a", ["p", "q"], ["r"], [[0.0, 1.0]], [["", "1"]])) == "r 1"


def test_published_figures_are_marked_beside_the_names():
    drawn = draw([Rows("a", "x", [("one", [1.0]), ("two", [2.0])], marks={"two": 2.5})])
    (line,) = [line for line in drawn.axes[0].lines if line.get_marker() == "D"]
    assert list(line.get_xdata()) == [2.5] and list(line.get_ydata()) == [1]
    assert [text.get_text() for text in drawn.axes[0].get_legend().get_texts()] == ["published"]


@real_browser
def test_a_browser_shows_it_and_asks_for_nothing(heads, made, tmp_path):
    assert browser.requests(made, tmp_path) == []
    shown = browser.dom(made, tmp_path)
    assert shown.count("<svg") == len(heads.claim.charts(heads.records)) and shown.count("<h2") == 5
