"""Files that are either the old one or the new one, never half of each."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A path to write to, which takes the place of `path` when the block ends, and vanishes if it fails.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "a.txt") as new:
    ...         _ = new.write_text("whole")
    ...     (Path(folder) / "a.txt").read_text()
    'whole'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, since a rename is atomic only inside one file system; the suffix stays for writers that look.
    new = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        yield new
        with open(new, "rb") as written:
            os.fsync(written.fileno())
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    with replacing(path) as new:
        new.write_text(text, encoding="utf-8")


def data_folder() -> Path:
    """Where made and downloaded data is kept: `$MPNN_DATA`, else the user's cache folder."""
    if os.environ.get("MPNN_DATA"):
        return Path(os.environ["MPNN_DATA"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mpnn"
