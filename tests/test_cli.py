from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import yaml

from mpnn import __version__, cli
from mpnn.cli import main


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


QUICK = ("compare", "--dataset", "digits", "--models", "logistic", "--steps", "3", "--seeds", "1")


def test_compare_prints_the_table_and_writes_the_files(capsys, tmp_path):
    code, out, err = run(capsys, *QUICK)
    assert code == 0 and "logistic" in out and "650" in out and "test accuracy" in err
    folder = tmp_path / "runs" / "digits-3steps-1seeds-logistic"
    written = {"results.json", "results.csv", "curves.png", "accuracy.png", "config.yaml", "index.html"}
    assert written <= {path.name for path in folder.iterdir()}


def test_quiet_prints_the_table_alone(capsys):
    code, out, err = run(capsys, *QUICK, "--quiet")
    assert code == 0 and out and not err


def test_the_written_configuration_repeats_the_run(capsys, tmp_path):
    run(capsys, *QUICK, "--name", "a")
    code, _, _ = run(capsys, "compare", "--config", "runs/a/config.yaml", "--name", "b")
    assert code == 0
    a, b = ((tmp_path / "runs" / name / "results.csv").read_text() for name in "ab")
    assert a.splitlines()[1].split(",")[:4] == b.splitlines()[1].split(",")[:4]


def test_printed_configuration_is_a_configuration(capsys, tmp_path):
    code, out, _ = run(capsys, *QUICK, "--shuffle-positions", "--print_config")
    assert code == 0
    printed = yaml.safe_load(out)
    assert printed["steps"] == 3 and printed["shuffle_positions"] is True and printed["models"] == "logistic"
    (tmp_path / "mine.yaml").write_text(out)
    assert run(capsys, "compare", "--config", "mine.yaml", "--quiet")[0] == 0


def test_options_override_the_file(capsys, tmp_path):
    (tmp_path / "mine.yaml").write_text("dataset: digits\nmodels: [logistic]\nsteps: 9\nseeds: 1\n")
    code, out, _ = run(capsys, "compare", "--config", "mine.yaml", "--steps", "2", "--quiet")
    assert code == 0 and "2 steps" in out


def test_help_describes_every_option_with_examples(capsys):
    code, out, _ = run(capsys, "compare", "--help")
    assert code == 0 and "mpnn compare --published" in out and out.startswith("usage: mpnn compare [")
    options = ("dataset", "models", "steps", "seeds", "budget", "shuffle-positions", "published", "kernel", "name")
    for option in (*options, "folder", "restart", "threads", "quiet", "config"):
        (line,) = [i for i, text in enumerate(out.splitlines()) if re.match(f"  --{option}[ ,]", text)]
        described = out.splitlines()[line].strip().split("  ", 1)
        assert len(described) == 2 or out.splitlines()[line + 1].startswith(" " * 20), option


def test_help_lists_the_commands(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0 and all(name in out for name in cli.COMMANDS)


def test_nothing_to_do_shows_the_help_and_is_a_mistake(capsys):
    code, out, err = run(capsys)
    assert code == 2 and not out and err.startswith("usage: mpnn") and all(name in err for name in cli.COMMANDS)


@pytest.mark.parametrize("words", [["--help"], ["--version"], []])
def test_the_overview_does_not_wait_for_torch(words):
    program = f"""
import sys
from mpnn.cli import main
try:
    main({words})
except SystemExit:
    pass
assert "torch" not in sys.modules and "numpy" not in sys.modules
"""
    root = os.path.dirname(os.path.dirname(cli.__file__))
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": root}, check=True)


def test_version(capsys):
    assert run(capsys, "--version")[:2] == (0, f"mpnn {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compere",), "did you mean compare?"),
        (("compare", "--stepz", "3"), "did you mean --steps?"),
        (("compare", "--steps", "many"), "--steps: expected a whole number, got 'many'"),
        (("compare", "--steps", "1.5"), "expected a whole number, got '1.5'"),
        (("compare", "--steps"), "--steps"),
        (("compare", "--steps", "0"), "steps: expected at least 1, got 0"),
        (("compare", "--dataset", "mnits1d"), "did you mean 'mnist1d'? Known: mnist1d, mnist5k, digits"),
        (("compare", "--models", "mlp,cnm"), "did you mean 'cnn'? Known: logistic, mlp, cnn, gnn, transformer"),
        (("compare", "--kernel", "linaer"), "did you mean 'linear'? Known: "),
        (("compare", "--kernel", "linear", "--models", "cnn", "--dataset", "digits"), "linear"),
        (("compare", "--config", "nowhere.yaml"), "nowhere.yaml"),
        (("compare", "--dataset", "digits", "--published"), "there is a protocol for mnist1d"),
    ],
)
def test_mistakes_end_with_two_a_line_and_no_traceback(arguments, message, capsys, tmp_path):
    code, out, err = run(capsys, *arguments)
    assert code == 2 and not out
    assert message in err and err.startswith("error: ") and "Traceback" not in err and len(err.splitlines()) <= 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepz: 3\n", "did you mean --steps?"),
        ("steps: many\n", "expected a whole number, got 'many'"),
        ("published: perhaps\n", "published: expected true or false, got 'perhaps'"),
        ("dataset: [1, 2]\n", "dataset"),
        ("a: [unclosed\n", "parsing config"),
    ],
)
def test_mistakes_in_a_file_are_told_the_same_way(text, message, capsys, tmp_path):
    (tmp_path / "mine.yaml").write_text(text)
    code, _, err = run(capsys, "compare", "--config", "mine.yaml")
    assert code == 2 and message in err and "Traceback" not in err


def test_a_folder_of_another_run_is_told_by_its_fields(capsys):
    run(capsys, *QUICK, "--name", "a")
    code, _, err = run(capsys, *QUICK, "--name", "a", "--seeds", "2")
    assert code == 2 and "seeds 1 (asked for: 2)" in err


@pytest.mark.parametrize("library", ["jsonargparse", "lightning", "rich", "matplotlib"])
def test_a_missing_library_names_the_extra(library, monkeypatch, capsys):
    importlib.import_module("lightning")  # it loads matplotlib where that is installed, and is to be there itself
    for name in [*sys.modules]:
        if name == library or name.startswith(f"{library}."):
            monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, library, None)
    code, _, err = run(capsys, *QUICK)
    assert code == 2 and f"needs {library}" in err and "pip install 'mpnn[train]'" in err


def test_a_fault_of_the_program_is_not_hidden(monkeypatch):
    def broken(*_, **__):
        raise ValueError("a fault")

    monkeypatch.setattr(importlib.import_module("mpnn.experiments.compare"), "fit", broken)
    with pytest.raises(ValueError, match="a fault"):
        main(QUICK)


def test_ctrl_c_says_how_to_go_on(tmp_path):
    command = [sys.executable, "-c", "import sys; from mpnn.cli import main; sys.exit(main())"]
    options = ["compare", "--dataset", "digits", "--models", "logistic,mlp", "--steps", "4000", "--name", "a"]
    root = os.path.dirname(os.path.dirname(cli.__file__))
    process = subprocess.Popen(
        [*command, *options], env={**os.environ, "PYTHONPATH": root}, stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    first = tmp_path / "runs" / "a" / "parts" / "logistic-0.json"
    until = time.monotonic() + 120
    while not first.exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err.decode()
    assert b"the same command goes on" in err and b"Traceback" not in err
    assert b"logistic" in out and b"not all finished" in out
    assert first.exists() and (tmp_path / "runs" / "a" / "accuracy.png").exists()
