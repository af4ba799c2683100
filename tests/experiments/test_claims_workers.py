"""Parts at once in processes of their own: the same records, nothing left behind, an honest end."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mpnn
from mpnn import cli
from mpnn.data import UsageError
from mpnn.experiments.claims import CLAIMS, Claim, Outcome, Size, experiment
from mpnn.experiments.claims.chart import Rows, Table
from mpnn.experiments.claims.decide import Check, t_interval
from mpnn.experiments.claims.pool import at_once
from mpnn.experiments.progress import Progress

CHILDREN = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
in_proc = pytest.mark.skipif(not CHILDREN.exists(), reason=f"looks for processes in {CHILDREN}")
TIMES = ("part_seconds", "part_cpu")


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def measured(outcome):
    return [{name: value for name, value in one.items() if name not in TIMES} for one in outcome.records]


def test_the_records_do_not_depend_on_the_workers(tmp_path):
    alone, many = (
        experiment("landmine", quick=True, quiet=True, workers=n, folder=tmp_path / str(n)) for n in (None, 2)
    )
    assert measured(alone) == measured(many) and len(many.records) == 8
    assert (alone.about["workers"], many.about["workers"]) == (1, 2) and many.about["parts_run"] == 8


def here(setting, size, advance):
    """A part that says who ran it."""
    advance(1, None)
    return {"process": float(os.getpid())}


def first_of(setting, size, advance):
    """The first part ends after the last one, so that another worker has to do the others."""
    if setting["seed"] == 3:
        Path("last").touch()
    deadline = time.monotonic() + 60
    while setting["seed"] == 0 and not Path("last").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return here(setting, size, advance)


def ended(setting, size, advance):
    os._exit(3)


def refused(setting, size, advance):
    raise UsageError(f"seed {setting['seed']} is refused")


def claim(run, **options):
    return Claim(
        "counted",
        "It counts.",
        Size(4, 7),
        Size(2, 1, quick=True),
        lambda size: [{"seed": seed} for seed in range(size.seeds)],
        run,
        lambda records: [Check("process", t_interval([one["process"] for one in records]), "above", 0.5)],
        lambda records: Table(["seed"], [[str(one["seed"])] for one in records]),
        lambda records: [Rows("a", "b", [("c", [one["process"] for one in records])])],
        **options,
    )


def test_two_processes_share_the_parts_and_the_records_keep_their_order(monkeypatch):
    monkeypatch.setitem(CLAIMS, "counted", claim(first_of))
    made = experiment("counted", quiet=True, workers=2)
    assert [one["seed"] for one in made.records] == [0, 1, 2, 3]
    processes = [one["process"] for one in made.records]
    assert len(set(processes)) == 2 and os.getpid() not in processes
    assert processes[1] == processes[2] == processes[3]  # one of them had the long part


def test_what_is_timed_runs_here(monkeypatch):
    monkeypatch.setitem(CLAIMS, "counted", claim(here, alone=True))
    with pytest.raises(UsageError, match="one after the other"):
        experiment("counted", quiet=True, workers=2)
    assert not Path("runs").exists()
    made = experiment("counted", quiet=True)
    assert {one["process"] for one in made.records} == {os.getpid()} and made.about["workers"] == 1
    assert all(CLAIMS[name].alone for name in ("cost", "long-range"))


def test_a_finished_run_says_who_made_it_and_is_not_run_again(monkeypatch, capsys):
    monkeypatch.setitem(CLAIMS, "counted", claim(here, alone=True))
    made = experiment("counted", quiet=True)
    written = (made.folder / "results.json").read_text()
    monkeypatch.setitem(CLAIMS, "counted", claim(ended))
    again = experiment("counted", workers=2)
    assert again.about == made.about and (made.folder / "results.json").read_text() == written
    assert "4 of 4 parts are read from runs/counted" in " ".join(capsys.readouterr().err.split())


def test_a_worker_that_is_ended_is_told(monkeypatch):
    monkeypatch.setitem(CLAIMS, "counted", claim(ended))
    with pytest.raises(UsageError, match="workers: one of them was ended from outside"):
        experiment("counted", quiet=True, workers=2)


def test_a_mistake_in_a_part_comes_through_and_leaves_no_process():
    with pytest.raises(UsageError, match="seed 0 is refused"):
        list(at_once(refused, {"a": {"seed": 0}}, Size(1, 1), Progress(1, show=False), 1))
    assert not multiprocessing.active_children()


def long(setting, size, advance):
    """All but the first part take a minute."""
    time.sleep(60 if setting["seed"] else 0)
    return {"seed": setting["seed"]}


def test_no_worker_goes_on_for_a_caller_that_has_left():
    made = at_once(long, {str(seed): {"seed": seed} for seed in range(3)}, Size(1, 1), Progress(1, show=False), 1)
    assert next(made)[1]["seed"] == 0
    started = time.monotonic()
    made.close()
    assert time.monotonic() - started < 40 and not multiprocessing.active_children()


@pytest.mark.parametrize(("options", "workers"), [((), 3), (("--workers", "1"), 1), (("--quick",), None)])
def test_the_command_takes_the_cores(options, workers, monkeypatch):
    seen = {}
    monkeypatch.setattr("mpnn.experiments.about.cores", lambda: 3)
    monkeypatch.setattr(cli, "_call", lambda command, given: seen.update(given))
    assert cli.main(["experiment", "heads", *options]) == 0 and seen["workers"] == workers


def test_none_is_no_number_of_workers():
    with pytest.raises(UsageError, match="workers: expected at least 1, got 0"):
        experiment("heads", workers=0)


def program(tmp_path, *options):
    """The command in a process of its own, whose first parts are done when this returns."""
    command = [sys.executable, "-m", "mpnn", "experiment", "heads", "--steps", "60", "--workers", "2", "--name", "a"]
    # From another folder, where a relative path to the package would lead nowhere.
    found = os.pathsep.join([str(Path(mpnn.__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")])
    running = subprocess.Popen(
        [*command, *options], cwd=tmp_path, env={**os.environ, "PYTHONPATH": found}, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not list(Path(tmp_path, "runs", "a", "parts").glob("*.json")):
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text()
    return running, [int(word) for word in children.split()]


def gone(processes):
    deadline = time.monotonic() + 20
    while alive := [one for one in processes if Path(f"/proc/{one}").exists()]:
        assert time.monotonic() < deadline, f"still there: {alive}"
        time.sleep(0.1)
    return True


@in_proc
def test_ctrl_c_keeps_what_is_finished_and_ends_the_workers(tmp_path):
    running, workers = program(tmp_path)
    running.send_signal(signal.SIGINT)
    errors = running.communicate(timeout=60)[1]
    assert running.returncode == 130 and "the same command goes on" in errors and "Traceback" not in errors
    assert len(workers) >= 2 and gone(workers)
    kept = len(list((tmp_path / "runs" / "a" / "parts").glob("*.json")))
    assert kept >= 1 and len(Outcome.read(tmp_path / "runs" / "a").records) == kept
    assert json.loads((tmp_path / "runs" / "a" / "results.json").read_text())["about"]["parts_run"] == kept


@in_proc
def test_workers_end_with_the_process_that_started_them(tmp_path):
    running, workers = program(tmp_path, "--quiet")
    running.kill()
    running.communicate(timeout=60)
    assert len(workers) >= 2 and gone(workers)
