"""The folder of a run: what was asked for, and what is finished."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpnn.data.errors import UsageError, require
from mpnn.data.files import write_text


def folder_name(name: str) -> str:
    """The name of a run, if a folder can have it.

    Raises:
        UsageError: nothing, or a path.

    >>> folder_name("mnist1d-5seeds")
    'mnist1d-5seeds'
    """
    if name in ("", "..") or name != Path(name).name:
        raise UsageError(f"name: expected the name of a folder, got {name!r}; say where with folder")
    return name


class RunFolder:
    """A folder that belongs to one configuration and keeps each finished part of the work as a file of its own.

    A part is written whole or not at all, so a run that was stopped goes on where it was: what is finished is read, the
    rest is done.

    Args:
        path: made if it is not there.
        config: plain values; a folder of another configuration is refused.
        restart: throw away what the folder holds.

    Raises:
        UsageError: the folder belongs to another configuration (the differing fields are named), or holds other files.
    """

    def __init__(self, path: str | Path, config: Mapping[str, Any], *, restart: bool = False) -> None:
        yaml = require("yaml", purpose="writing the configuration")
        self.path = Path(path)
        file = self.path / "config.yaml"
        # Through the text, so that what is compared is what a file can hold: tuples are lists, for one.
        text = yaml.safe_dump(json.loads(json.dumps(dict(config))), sort_keys=False, allow_unicode=True)
        if self.path.is_dir() and not file.exists() and any(self.path.iterdir()):
            raise UsageError(f"{self.path} holds other files and no run; choose another --name or --folder")
        if restart and file.exists():
            shutil.rmtree(self.path)
        if file.exists():
            self._same(yaml.safe_load(file.read_text(encoding="utf-8")), yaml.safe_load(text))
        else:
            try:
                write_text(file, text)
            except OSError as error:
                raise UsageError(f"cannot write to {self.path}: {error.strerror}; choose another --folder") from error

    def _same(self, old: Any, new: Mapping[str, Any]) -> None:
        if not isinstance(old, dict):
            raise UsageError(f"{self.path / 'config.yaml'} is not a configuration; choose another --name")
        self.check("a run", old, new)

    def check(self, what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Refuse what the folder holds if it is not what is asked for now, and name the fields that differ."""
        fields = [field for field in {**old, **new} if old.get(field) != new.get(field)]
        if fields:
            raise UsageError(
                f"{self.path} holds {what} with "
                + ", ".join(f"{field} {old.get(field)} (asked for: {new.get(field)})" for field in fields)
                + "; choose another --name, or start it anew with --restart"
            )

    def _part(self, key: str) -> Path:
        return self.path / "parts" / f"{key}.json"

    def finished(self, key: str) -> dict[str, Any] | None:
        """What was written for a part, None if it is not done."""
        if not self._part(key).exists():
            return None
        record: dict[str, Any] = json.loads(self._part(key).read_text(encoding="utf-8"))
        return record

    def finish(self, key: str, record: Mapping[str, Any]) -> None:
        """Write a part, at once and atomically."""
        write_text(self._part(key), json.dumps(dict(record), ensure_ascii=False) + "\n")
