"""``mpnn verify``: its table is measured, and a layer that differs turns it red."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mpnn.cli import main
from mpnn.experiments.verify import cases
from mpnn.experiments.verify_case import LayerCase, verify_layer
from mpnn.interop.torch_linear import Linear

PYG = "GCN Graph SAGE GIN SG TAG Cheb LE ClusterGCN AGNN GAT GATv2 SuperGAT Transformer RGCN NN CF GMM FeaSt Hypergraph"
TORCH = "Linear Conv1d Conv2d Conv3d MultiheadAttention TransformerEncoderLayer TransformerDecoderLayer"


def test_every_layer_that_is_promised_is_checked() -> None:
    promised = {*TORCH.split(), *(f"{name}Conv" for name in f"{PYG} PointTransformer GPS".split())}
    assert set(cases()) == promised and all(cases().values())


def test_some_layers_agree_and_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "verify.json"
    assert main(["verify", "--layers", "Linear, SGConv", "--out", str(file)]) == 0
    record = json.loads(file.read_text())
    said = capsys.readouterr().out
    assert "2 of 2 layers agree" in said and f"Written to {file}" in said and record["versions"]["torch"]
    assert [(layer["layer"], layer["agrees"]) for layer in record["layers"]] == [("Linear", True), ("SGConv", True)]
    for case in record["layers"][0]["cases"]:
        assert case["value"] <= 1e-10 and case["gradient"] <= 1e-10 and case["same_bits"] and case["ratio"] > 0


def test_an_unknown_layer_is_a_mistake_that_lists_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--layers", "Conv2"]) == 2
    said = capsys.readouterr().err
    assert "unknown layer 'Conv2': did you mean 'Conv2d'?" in said and "GCNConv" in said


def test_names_with_a_space_between_are_a_mistake_that_says_commas(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["verify", "--layers", "Linear", "Conv1d"])
    said = capsys.readouterr().err
    assert (
        stop.value.code == 2
        and "unrecognized arguments: Conv1d; several values of an option are joined by commas" in said
    )


def test_a_folder_is_no_file_to_write_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--layers", "Linear", "--out", str(tmp_path)]) == 2
    assert f"expected --out to be a file, got the folder {tmp_path}" in capsys.readouterr().err


def test_another_value_turns_it_red(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Linear, "call", lambda self, layer, core, x: core(x) * (1 + 1e-9))
    with pytest.raises(SystemExit) as stop:
        main(["verify", "--layers", "Linear"])
    assert stop.value.code == 1 and "0 of 1 layer agrees" in capsys.readouterr().out


def test_another_gradient_is_seen_though_the_value_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(self, layer, core, x):  # type: ignore[no-untyped-def]
        y = core(x)
        return y + (x.sum() - x.sum().detach()) * 1e-6

    monkeypatch.setattr(Linear, "call", call)
    found = verify_layer(cases()["Linear"][0])
    assert found.value <= 1e-10 < found.gradient and not found.agrees


def test_a_layer_that_is_left_is_no_agreement() -> None:
    with pytest.raises(ValueError, match="expected MultiheadAttention to be converted, got: 0 layers converted"):
        verify_layer(
            LayerCase("add_zero_attn", lambda: torch.nn.MultiheadAttention(4, 2, add_zero_attn=True), lambda: ((), {}))
        )
