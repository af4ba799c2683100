"""The public names of a lazy package: loaded where they are read, and never the module that bears the same name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    "program",
    [
        "import mpnn; assert callable(mpnn.attend) and mpnn.neighbours.Window and mpnn.Tokens",
        "import mpnn.attend, mpnn; assert callable(mpnn.attend)",
        "import mpnn.interop\nfrom mpnn import attend, MessagePassing\nassert callable(attend)",
        "import mpnn.data.load, mpnn.data; assert callable(mpnn.data.load)",
        "from mpnn import *; assert callable(attend) and Plan",
        "from mpnn.data import *; assert callable(load) and SOURCES",
        "import mpnn, pickle; assert pickle.loads(pickle.dumps(mpnn.attend)) is mpnn.attend",
    ],
)
def test_each_way_of_importing(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_an_unknown_name_is_an_attribute_error() -> None:
    import mpnn

    with pytest.raises(AttributeError, match="module 'mpnn' has no attribute 'atend'"):
        str(mpnn.atend)
    assert set(mpnn.__all__) <= set(dir(mpnn)) and not hasattr(mpnn, "__wrapped__")
    with pytest.raises(ImportError, match="cannot import name 'Windo'"):
        exec("from mpnn import Windo")


def test_a_name_may_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    import mpnn.data

    monkeypatch.setattr(mpnn.data, "load", len)
    assert mpnn.data.load is len
