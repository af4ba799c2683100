"""What README.md says is so: its Python runs and prints what stands below it, its commands, files and tables exist.

So does the Python of the pages in docs/.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import inspect
import io
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {"README.md": 4, "docs/pictures.md": 1}  # and how many outputs stand there at least


def blocks_of(page):
    return re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


BLOCKS = blocks_of("README.md")


def fenced(language):
    return [body for name, body in BLOCKS if name == language]


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="README.md shows the plan of a torch with MKL")
@pytest.mark.parametrize("page", PAGES)
def test_python_runs_and_prints_what_stands_below_it(page, tmp_path, monkeypatch):
    """One session from top to bottom, as a reader types it."""
    monkeypatch.setenv("MPNN_DATA", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)  # pictures and pages are written where the reader stands
    session = {"__name__": "readme"}
    seen, blocks = 0, blocks_of(page)
    for (language, body), (below, printed) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if language != "python":
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(body, page, "exec"), session)
        if out.getvalue():
            assert below == "text", f"no output stands below\n{body}"
            assert without_libraries(out.getvalue()) == printed
            seen += 1
    assert seen >= PAGES[page]


def without_libraries(printed):
    """A plan names the libraries that are missing; README.md shows one where all are there. Blanks at ends go."""
    return re.sub(r"^  not \w+: \w+ is not installed.*\n| +$", "", printed, flags=re.MULTILINE)


def test_the_quick_start_is_short():
    assert len(fenced("python")[0].strip().splitlines()) <= 15


def test_signatures_of_the_models():
    import mpnn.models

    lines = re.findall(r"^(\w+)\((.*)\)$", "\n".join(fenced("text")), re.MULTILINE)
    assert {"MLP", "CNN", "GNN", "Transformer", "Network"} <= {name for name, _ in lines}
    for name, arguments in lines:
        written = ast.parse(f"def f({arguments}): pass").body[0].args
        real = inspect.signature(getattr(mpnn.models, name)).parameters.values()
        assert [a.arg for a in written.args] == [p.name for p in real if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert [a.arg for a in written.kwonlyargs] == [p.name for p in real if p.kind is p.KEYWORD_ONLY]
        defaults = [None if d is None else ast.unparse(d) for d in written.kw_defaults]
        expected = [shown(p.default) for p in real if p.kind is p.KEYWORD_ONLY]
        assert defaults == expected, name


def shown(default):
    if default is inspect.Parameter.empty:
        return None
    return default.__name__ if callable(default) else repr(default)


def commands():
    lines = [line.partition("#")[0].strip() for body in fenced("bash") for line in body.splitlines()]
    return [line for line in lines if line]


@pytest.mark.parametrize("line", [c for c in commands() if c.startswith("mpnn ")])
def test_commands_are_known(line, tmp_path, monkeypatch):
    """Parsed, not run: every command and option exists."""
    from mpnn import cli

    words = shlex.split(line.partition(">")[0])[1:]
    if "--config" in words:
        config = tmp_path / words[words.index("--config") + 1]
        config.write_text("dataset: digits\n", encoding="utf-8")
        monkeypatch.chdir(tmp_path)
    if words[-1] in ("--help", "--print_config"):
        with contextlib.redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit, match="0"):
            cli.main(words)
        assert out.getvalue()
        return
    assert cli._parser(words).parse_args(words).subcommand == words[0]


def test_make_targets_and_extras_exist():
    makefile = (ROOT / "Makefile").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    targets = {shlex.split(line)[1] for line in commands() if line.startswith("make ")}
    assert {"compare", "test"} <= targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    named = set(re.findall(r'pip install [^\n`]*?"\.\[(\w+)\]"', TEXT))
    assert "train" in named and named <= set(extras)


def test_kernels_are_those_of_the_plan():
    from mpnn.plan import NAMES

    section = TEXT.partition("## How a call runs")[2].partition("\n## ")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == NAMES


def test_files_and_links_exist():
    named = re.findall(r"`((?:examples|mpnn|docs|benchmarks)/[\w./]*)`", TEXT)
    linked = [link for link in re.findall(r"\]\(([^)#]+)\)", TEXT) if "://" not in link]
    assert len(named) > 8 and len(linked) >= 2
    assert [path for path in (*named, *linked) if not (ROOT / path).exists()] == []


@pytest.fixture(scope="module")
def make_tables():
    spec = importlib.util.spec_from_file_location("make_tables", ROOT / "docs" / "make_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_are_those_of_the_program(make_tables):
    blocks = {"atlas": make_tables.atlas(), "results": make_tables.results(ROOT / "results")}
    assert make_tables.rewritten(TEXT, blocks) == TEXT, "run python docs/make_tables.py"
    text, blocks = (ROOT / "docs/verify.md").read_text(), {"verify": make_tables.verified(ROOT / "results/verify.json")}
    assert make_tables.rewritten(text, blocks) == text, "run python docs/make_tables.py"


def test_the_table_of_results_has_the_numbers_of_the_runs(make_tables, tmp_path, monkeypatch):
    from mpnn.experiments import compare

    monkeypatch.setenv("MPNN_DATA", str(tmp_path / "data"))
    options = {"models": "logistic,mlp", "steps": 2, "seeds": 2, "published": True, "quiet": True}
    plain = compare(**options, folder=tmp_path / "results", name="a")
    assert "shuffled" not in make_tables.results(tmp_path / "results")
    shuffled = compare(**options, folder=tmp_path / "results", name="b", shuffle_positions=True)
    made = make_tables.results(tmp_path / "results")
    head, _, *rows = [line.strip("| ").split(" | ") for line in made.splitlines() if line.startswith("|")]
    assert [cells[0] for cells in rows] == ["logistic", "MLP"]
    for cells, one, other, published in zip(
        rows, plain.contestants, shuffled.contestants, ("32 %", "68 %"), strict=True
    ):
        found = dict(zip(head[2:], cells[2:], strict=True))
        assert cells[1] == f"{one.parameters:,}"
        assert found["test accuracy"] == f"{100 * one.mean:.1f} ± {100 * one.sd:.1f} %"
        assert found["with shuffled positions"] == f"{100 * other.mean:.1f} ± {100 * other.sd:.1f} %"
        assert cells.count(published) == 2
    command = "mpnn compare --published --steps 2 --seeds 2 --models logistic,mlp"
    assert f"Made by `{command}` and `{command} --shuffle-positions`; " in made
    assert "(results/a/accuracy.png)" in made and "(results/b/accuracy.png)" in made


def test_no_result_is_said(make_tables, tmp_path):
    assert "mpnn compare --published --folder results" in make_tables.results(tmp_path)
