from __future__ import annotations

import re
import shlex

import pytest
import yaml

from mpnn import cli
from mpnn.cli import main
from mpnn.experiments.expressions import split
from mpnn.experiments.sweep_job import SweepJob


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPNN_DATA", str(tmp_path_factory.getbasetemp() / "data"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def run(capsys, *arguments):
    """The exit code, the output and the error output of a command."""
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = stop.code
    return code, *capsys.readouterr()


QUICK = ("sweep", "--quick", "--steps", "2", "--channels", "8", "--depth", "1", "--positions", "none")
RULES = ("--neighbours", "Window(2), AllTokens()", "--weight", "SharedKernel, QKSoftmax")


def test_it_ends_with_a_table_and_leaves_its_files(capsys, tmp_path):
    code, out, err = run(capsys, *QUICK, *RULES, "--name", "a")
    assert code == 0 and " Window(2) × QKSoftmax " in out and "refused  digits: AllTokens() × SharedKernel" in out
    written = {"index.html", "heatmap.png", "results.json", "results.csv", "config.yaml"}
    assert written <= {path.name for path in (tmp_path / "runs" / "a").iterdir()}
    assert "seed 0" in err and "refused" in err
    # The configuration that it left asks for the same: nothing is trained again.
    code, out, err = run(capsys, "sweep", "--config", "runs/a/config.yaml", "--name", "a", "--quiet")
    assert code == 0 and not err


def test_a_file_has_a_rule_a_line(capsys, tmp_path):
    code, out, _ = run(capsys, *QUICK, *RULES, "--print_config")
    assert code == 0 and yaml.safe_load(out)["neighbours"] == "Window(2), AllTokens()"
    (tmp_path / "mine.yaml").write_text(
        "neighbours:\n- Grid((8, 8), 3)\n- Window(1)\nweight: [QKSoftmax]\nsteps: 1\nseeds: 1\n"
    )
    code, out, _ = run(capsys, "sweep", "--config", "mine.yaml", "--channels", "8", "--positions", "none", "--quiet")
    assert code == 0 and " Grid((8, 8), 3) × QKSoftmax " in out


def test_help_teaches_the_expressions(capsys):
    code, out, _ = run(capsys, "sweep", "--help")
    assert code == 0
    for part in (
        "mpnn sweep --quick",
        "Window(2) | Global(1)",
        "How to write rules",
        "grid and tokens are the data's",
        "t intervals",
    ):
        assert part in out
    words = "dataset neighbours weight positions seeds steps channels depth heads budget quick name folder restart"
    for option in f"{words} threads quiet config".split():
        lines = out.splitlines()
        (line,) = [i for i, text in enumerate(lines) if re.match(f"  --{option}[ ,]", text)]
        assert len(lines[line].strip().split("  ", 1)) == 2 or lines[line + 1].startswith(" " * 20), option
    assert max(map(len, out.splitlines())) <= 120


def test_the_examples_of_the_help_are_read():
    text = cli.COMMANDS["sweep"].examples.replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.startswith("  mpnn sweep") and "yaml" not in line]
    assert len(lines) == 4
    for line in lines:
        words = shlex.split(line.partition("   a first look")[0])[1:]
        given = vars(cli._parser(words).parse_args(words)["sweep"])
        rules = {name: tuple(split(given[name], name)) for name in ("neighbours", "weight", "positions", "dataset")}
        SweepJob(**rules, seeds=1, steps=1, channels=32, depth=2, heads=4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--neighbours", "Windo(2)"), "did you mean 'Window'"),
        (("--neighbours", "Window(2"), "cannot read 'Window(2'"),
        (("--neighbours", "open('/etc/passwd').read()"), "is not allowed"),
        (("--weigth", "QKSoftmax"), "did you mean --weight?"),
        (("--seeds", "two"), "--seeds: expected a whole number, got 'two'"),
        (("--dataset", "mnits1d"), "did you mean 'mnist1d'"),
        (("--positions", "rotray"), "did you mean 'rotary'"),
        (("--weight", "Static", "--neighbours", "AllTokens()", "--positions", "none"), "every combination is refused"),
    ],
)
def test_mistakes_end_with_two_and_no_traceback(arguments, message, capsys, tmp_path):
    code, out, err = run(capsys, "sweep", *arguments)
    assert code == 2 and not out and message in err and err.startswith("error: ") and "Traceback" not in err
    assert not (tmp_path / "runs").exists()
