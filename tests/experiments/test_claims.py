"""Each experiment runs at its quick size, goes on after an interruption, and writes what can be read again."""

from __future__ import annotations

import csv
import dataclasses
import json

import pytest

from mpnn.cli import main
from mpnn.data import UsageError
from mpnn.experiments.claims import CLAIMS, Claim, Outcome, Size, experiment
from mpnn.experiments.claims.chart import HeatMap, Line, Lines, Rows, Table
from mpnn.experiments.claims.decide import Check, t_interval
from mpnn.experiments.compare import Interrupted
from mpnn.report.charts import draw


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", CLAIMS)
def test_a_quick_run_ends_with_a_verdict_a_table_and_a_picture(name, capsys, tmp_path):
    assert main(["experiment", name, "--quick", "--quiet"]) == 0
    out, err = capsys.readouterr()
    claim = CLAIMS[name]
    assert " ".join(claim.says.split()) in " ".join(out.split()) and "Verdict: " in out and not err
    folder = tmp_path / "runs" / f"{name}-quick"
    assert (folder / "picture.png").stat().st_size > 10_000
    read = Outcome.read(folder)
    assert read.complete and len(read.records) == len(claim.parts(claim.quick)) == read.parts
    assert json.loads((folder / "results.json").read_text())["verdict"]["word"] == read.verdict.word
    with open(folder / "results.csv", encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == read.parts
    shown = claim.table(read.records)
    assert shown.rows and all(len(row) == len(shown.head) for row in shown.rows)


@pytest.mark.parametrize("name", CLAIMS)
def test_the_default_size_is_more_than_the_quick_one_and_its_parts_have_names_of_their_own(name):
    from mpnn.experiments.claims.run import key

    claim = CLAIMS[name]
    parts = claim.parts(claim.size)
    assert len(parts) > len(claim.parts(claim.quick)) and len({key(part) for part in parts}) == len(parts)
    assert {part["seed"] for part in parts} >= set(range(claim.size.seeds)) and claim.size.seeds > 2


class Counted:
    """A claim of three parts that notes what it runs, and is stopped where it is told to."""

    def __init__(self, stop=None):
        self.ran, self.stop = [], stop

    def run(self, setting, size, advance):
        if setting["seed"] == self.stop:
            raise KeyboardInterrupt
        self.ran.append(setting["seed"])
        return {"accuracy": 0.9 + setting["seed"] / 100}

    def claim(self):
        return Claim(
            "counted",
            "It counts.",
            Size(3, 7),
            Size(2, 1, quick=True),
            lambda size: [{"seed": seed} for seed in range(size.seeds)],
            self.run,
            lambda records: [Check("accuracy", t_interval([one["accuracy"] for one in records]), "above", 0.5)],
            lambda records: Table(["seed", "accuracy"], [[str(one["seed"]), "a"] for one in records]),
            lambda records: [Rows("a", "b", [("c", [one["accuracy"] for one in records])])],
        )


@pytest.fixture
def listed(monkeypatch):
    def put(counted):
        monkeypatch.setitem(CLAIMS, "counted", counted.claim())

    return put


def test_after_an_interruption_the_rest_is_run(listed):
    first = Counted(stop=2)
    listed(first)
    with pytest.raises(Interrupted) as stopped:
        experiment("counted", quiet=True)
    result = stopped.value.result
    assert not result.complete and result.verdict.word == "undecided" and "2 of 3" in result.verdict.note
    assert json.loads((result.folder / "results.json").read_text())["verdict"]["word"] == "undecided"
    second = Counted()
    listed(second)
    done = experiment("counted", quiet=True)
    assert first.ran == [0, 1] and second.ran == [2] and done.verdict.word == "holds"
    listed(again := Counted())
    assert experiment("counted", quiet=True).records == done.records and again.ran == []
    assert experiment("counted", quiet=True, restart=True).complete and again.ran == [0, 1, 2]


def test_the_command_says_how_to_go_on(listed, capsys):
    listed(Counted(stop=1))
    assert main(["experiment", "counted", "--workers", "1"]) == 130
    out, err = capsys.readouterr()
    assert "the same command goes on" in err and "1 of 3 parts are finished" in out


def test_seeds_and_steps_are_options_and_part_of_the_name(listed):
    listed(Counted())
    made = experiment("counted", seeds=2, steps=9, quiet=True)
    assert made.folder.name == "counted-9steps-2seeds"
    assert made.config == {"experiment": "counted", "seeds": 2, "steps": 9, "quick": False}
    assert experiment("counted", quick=True, quiet=True).folder.name == "counted-quick"
    with pytest.raises(UsageError, match=r"seeds 2 \(asked for: 3\)"):
        experiment("counted", name=made.folder.name, quiet=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("permutatoin",),
            "unknown experiment 'permutatoin': did you mean 'permutation'? Known: permutation, landmine",
        ),
        (("heads", "--seeds", "0"), "seeds: expected at least 1, got 0"),
        (("cost", "--steps", "5"), "steps: cost trains nothing, so it has none; leave it out"),
        (("heads", "--name", "a/b"), "name: expected the name of a folder, got 'a/b'"),
    ],
)
def test_mistakes_are_told(arguments, message, capsys):
    assert main(["experiment", *arguments]) == 2
    out, err = capsys.readouterr()
    assert message in err and not out and "Traceback" not in err


def test_without_a_name_the_claims_are_listed(capsys):
    assert main(["experiment"]) == 0
    out, _ = capsys.readouterr()
    flat = " ".join(out.split())
    assert all(f"{claim.name} {' '.join(claim.says.split())}" in flat for claim in CLAIMS.values())


def test_the_help_has_the_word_and_the_options(capsys):
    with pytest.raises(SystemExit):
        main(["experiment", "--help"])
    out, _ = capsys.readouterr()
    assert "the claim to put to the test" in out
    assert all(
        f"--{option}" in out for option in ("seeds", "steps", "workers", "quick", "name", "folder", "restart", "quiet")
    )


def test_charts_are_drawn_as_they_say():
    charts = [
        Lines("a", "x", "y", [Line("CNN", [1, 2], [3.0, 4.0], [2, 3], [4, 5])], True, True, levels=((3.5, "level"),)),
        Rows("b", "z", [("one", [1.0, 2.0]), ("two", [3.0])], levels=((2.0, "bound"),)),
        HeatMap("c", ["p", "q"], ["r"], [[0.0, 1.0]], [["0", "1"]], "across", "down"),
    ]
    drawn = draw(charts, "the claim")
    lines, rows, heat = drawn.axes
    assert [list(map(float, part)) for part in lines.lines[0].get_data()] == [[1, 2], [3, 4]]
    assert [text.get_text() for text in rows.get_yticklabels()] == ["one", "two"]
    assert heat.images[0].get_array().tolist() == [[0, 1]] and [t.get_text() for t in heat.texts] == ["0", "1"]
    assert [axes.get_title(loc="left") for axes in drawn.axes] == ["a", "b", "c"]


def test_a_claim_is_plain_data():
    assert all(dataclasses.is_dataclass(claim) and claim.says.endswith(".") for claim in CLAIMS.values())
