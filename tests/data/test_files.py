from __future__ import annotations

import json

import pytest

from mpnn.data.errors import UsageError, one_of, require
from mpnn.data.files import data_folder, replacing, write_text


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "results.json"
    write_text(path, "old")

    def fail():
        with replacing(path) as new:
            new.write_text("half of the n")
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        fail()
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_write_replaces_and_makes_folders(tmp_path):
    path = tmp_path / "a" / "b" / "é.json"
    write_text(path, "1")
    write_text(path, '"é"')
    assert json.loads(path.read_text(encoding="utf-8")) == "é" and list(path.parent.iterdir()) == [path]


def test_the_new_file_has_the_suffix_that_writers_look_at(tmp_path):
    with replacing(tmp_path / "picture.png") as new:
        assert new.suffix == ".png" and new.parent == tmp_path
        new.touch()


def test_data_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("MPNN_DATA", raising=False)
    assert data_folder() == tmp_path / "mpnn"
    monkeypatch.setenv("MPNN_DATA", str(tmp_path / "here"))
    assert data_folder() == tmp_path / "here"


def test_one_of_suggests_only_what_is_near():
    with pytest.raises(
        UsageError, match=r"^unknown model 'Transformr': did you mean 'transformer'\? Known: mlp, transformer$"
    ):
        one_of("Transformr", ["mlp", "transformer"], "model")
    with pytest.raises(UsageError, match=r"^unknown model 'zebra': Known: mlp$"):
        one_of("zebra", ["mlp"], "model")


def test_require_tells_a_missing_library_from_a_broken_one(tmp_path, monkeypatch):
    (tmp_path / "broken_library.py").write_text("import something_it_lacks")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="something_it_lacks"):
        require("broken_library", purpose="a test")
    with pytest.raises(
        UsageError, match=r"^a test needs no_such_library, which is not installed; pip install 'mpnn\[train\]'$"
    ):
        require("no_such_library.part", purpose="a test")
