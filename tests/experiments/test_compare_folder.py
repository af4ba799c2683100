from __future__ import annotations

import pytest
import yaml

from mpnn.data import UsageError
from mpnn.experiments.folder import RunFolder

CONFIG = {"dataset": "digits", "steps": 5, "models": ("mlp", "cnn"), "budget": None}


def test_what_is_finished_is_read_by_the_next_one(tmp_path):
    first = RunFolder(tmp_path / "a", CONFIG)
    assert first.finished("mlp-0") is None
    first.finish("mlp-0", {"accuracy": 0.1 + 0.2, "name": "é"})
    assert RunFolder(tmp_path / "a", CONFIG).finished("mlp-0") == {"accuracy": 0.1 + 0.2, "name": "é"}
    assert RunFolder(tmp_path / "a", CONFIG).finished("mlp-1") is None


def test_the_configuration_is_a_file_that_the_command_reads(tmp_path):
    RunFolder(tmp_path / "a", CONFIG)
    assert yaml.safe_load((tmp_path / "a" / "config.yaml").read_text()) == {**CONFIG, "models": ["mlp", "cnn"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 6}, r"holds a run with steps 5 \(asked for: 6\); choose another --name"),
        ({"models": ("mlp",)}, r"models \['mlp', 'cnn'\] \(asked for: \['mlp'\]\)"),
        ({"budget": 7, "dataset": "x"}, r"dataset digits \(asked for: x\), budget None \(asked for: 7\)"),
        ({"more": 1}, r"more None \(asked for: 1\)"),
    ],
)
def test_another_configuration_is_refused_by_its_fields(change, message, tmp_path):
    RunFolder(tmp_path / "a", CONFIG)
    with pytest.raises(UsageError, match=message):
        RunFolder(tmp_path / "a", {**CONFIG, **change})


def test_restart_throws_the_old_run_away(tmp_path):
    RunFolder(tmp_path / "a", CONFIG).finish("mlp-0", {})
    again = RunFolder(tmp_path / "a", {**CONFIG, "steps": 6}, restart=True)
    assert again.finished("mlp-0") is None
    RunFolder(tmp_path / "a", {**CONFIG, "steps": 6})


@pytest.mark.parametrize("restart", [True, False])
def test_a_folder_with_other_files_is_left_alone(restart, tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UsageError, match=r"holds other files and no run"):
        RunFolder(tmp_path, CONFIG, restart=restart)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("place", ["file", "file/run"])
def test_a_place_that_is_no_folder_is_named(place, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=rf"cannot write to .*{place}: .*; choose another --folder"):
        RunFolder(tmp_path / place, CONFIG)


def test_an_empty_folder_is_fine(tmp_path):
    RunFolder(tmp_path, CONFIG).finish("a", {})


def test_a_damaged_configuration_is_named(tmp_path):
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(UsageError, match=r"config\.yaml is not a configuration"):
        RunFolder(tmp_path, CONFIG)
