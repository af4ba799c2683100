"""Every `>>>` in mpnn runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "mpnn").rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name: str) -> None:
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for case in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name)):
        runner.run(case, out=report.append)
    assert runner.tries > 0, f"{name} has examples that doctest does not find"
    assert runner.failures == 0, "".join(report)
