"""Each example runs with --smoke, prints what it promises, and stays one idea of under 120 lines."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "examples"
# A pattern for each line that must be there, in this order.
PRINTS = {
    "four_layers": [
        r"nn\.Linear .* linear ",
        "reference",
        r"nn\.Conv2d .* conv ",
        "GCNConv .* spmm ",
        "MultiheadAttention .* sdpa ",
    ],
    "compare_four": [r"5 steps", r"MLP .*%.* linear", r"CNN .*%.* conv", r"GNN .*%.* spmm", r"Transformer .*%.* sdpa"],
    "llama_window": [
        "3 layers converted, 0 left",
        r"model\.layers\.2\.self_attn  LlamaAttention  attention",
        r"full, by .*\d MiB .* torch ",
        r"full, converted .*\d MiB .* sdpa ",
        r"window of 64 .*\d MiB .* tiles ",
    ],
    "long_context": [
        "Union × QKSoftmax .* 4096 targets",
        "→ merge ",
        "accuracy on 4,096 tokens after 2 steps: .*%",
        r"window \| global .*\d\.\d",
        "a mask over all",
    ],
    "swap_rules": [
        "Transformer .*%.* sdpa",
        "window attention .*%",
        "graph attention, GAT .*%",
        "graph network.*%.* spmm",
        "convolution .*%.* conv",
        "neighbourhood attention .*%",
    ],
    "vit_surgery": [
        r"4 layers converted, 0 left",
        r"layers\.2\.attention .* ViTAttention  attention .* sdpa",
        r"as it came .*% .* \d",
        r"converted: logits differ by \de.*%",
        r"5×5 patches and the class token .*%",
        r"the same, fine-tuned .*%",
    ],
    "your_own_rule": [
        r"largest difference from a loop: \d",
        "Powers × Aim  batch 1",
        "→ spmm",
        "Powers × SharedKernel .*%",
    ],
}
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.fixture(scope="module", autouse=True)
def data_folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPNN_DATA", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs_and_prints(name, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--smoke"])
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    lines = iter(capsys.readouterr().out.splitlines())
    for pattern in PRINTS[name]:
        assert any(re.search(pattern, line) for line in lines), f"{name} printed no line like {pattern!r} in its place"
    assert not list(tmp_path.iterdir()), f"{name} leaves files"


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_is_one_short_idea(name):
    lines = (FOLDER / f"{name}.py").read_text().splitlines()
    assert len(lines) < 120
    assert lines[0].startswith('"""')
    assert f"python examples/{name}.py" in (FOLDER / f"{name}.py").read_text()


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_wrong_option_is_no_traceback(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--nonsense"])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert "unrecognized arguments: --nonsense" in capsys.readouterr().err
