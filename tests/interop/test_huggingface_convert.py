"""Converted models of transformers give the same logits and gradients, and go back."""

from __future__ import annotations

import copy
import pickle
import re

import pytest
import torch
from torch.testing import assert_close

from helpers.huggingface import IMAGES, MAKERS, inputs, made, values, without_rounding
from mpnn import capture_weights, trace_kernels
from mpnn.interop import convert, revert
from mpnn.interop.drop_in import DropIn

pytest.importorskip("transformers")
EXACT = {"atol": 1e-10, "rtol": 1e-10}
ATTENTIONS = {"vit": 2, "swin": 3, "resnet": 0, "convnext": 0, "bert": 2, "gpt2": 2, "llama": 2, "mistral": 2, "t5": 6}
CASES = [
    (name, implementation, padding)
    for name in MAKERS
    for implementation in (("sdpa",) if name in ("resnet", "convnext") else ("eager", "sdpa"))
    for padding in (("none",) if name in IMAGES else ("none", "left", "right"))
]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("name", "implementation", "padding"), CASES)
def test_the_same_logits_and_gradients(name, implementation, padding, training, monkeypatch):
    without_rounding(monkeypatch)
    model, given = made(name, implementation).train(training), inputs(name, padding)
    before = copy.deepcopy(model)
    report = convert(model)
    assert sum(row.kind == "attention" for row in report.converted) == ATTENTIONS[name]
    assert not report.left
    expected, gradients = values(before, given)
    got, found = values(model, given)
    assert_close(got, expected, **EXACT)
    assert found.keys() == gradients.keys()
    for parameter, gradient in gradients.items():
        assert_close(found[parameter], gradient, msg=lambda text, p=parameter: f"{p}: {text}", **EXACT)


@pytest.mark.parametrize("name", MAKERS)
def test_checkpoints_load_both_ways_and_revert_is_exact(name):
    model, other, given = made(name), made(name), inputs(name)
    before = model(**given).logits
    convert(model)
    assert model.state_dict().keys() == other.state_dict().keys()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(**given).logits, before)
    convert(other)
    other.load_state_dict(made(name).state_dict())
    model.load_state_dict(other.state_dict())
    assert torch.equal(model(**given).logits, other(**given).logits)
    revert(model)
    assert not any(isinstance(module, DropIn) for module in model.modules())
    assert torch.equal(revert(other) and other(**given).logits, model(**given).logits)


def test_a_converted_model_keeps_its_classes_and_copies_and_pickles():
    model, given = made("llama"), inputs("llama", "left")
    names = [type(module).__name__ for module in model.modules()]
    convert(model)
    assert [type(m).__name__ for n, m in model.named_modules() if ".core" not in n] == names
    assert model.config._attn_implementation == "sdpa"
    expected = model(**given).logits
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(**given).logits, expected)
        assert isinstance(other.model.layers[0].self_attn, DropIn)


@pytest.mark.parametrize("name", ["vit", "gpt2", "llama", "bert"])
def test_listeners_hear_it_by_the_names_of_the_layers(name):
    model, given = made(name, "eager"), inputs(name)
    report = convert(model, example=given)
    attentions = [row for row in report.converted if row.kind == "attention"]
    assert {row.kernel for row in attentions} == {"sdpa"}
    expected = model(**given, output_attentions=True).attentions
    with capture_weights(model) as weights, trace_kernels(model) as kernels:
        model(**given)
    for row, dense in zip(attentions, expected, strict=True):
        assert kernels[row.name] == "sdpa"
        (edges,) = weights[row.name]
        assert_close(edges.weight.transpose(-2, -1), dense[:, :, edges.target, edges.source])


@pytest.mark.parametrize("name", ["vit", "bert", "gpt2", "llama", "t5", "swin"])
@pytest.mark.parametrize("how", ["argument", "config"])
def test_output_attentions(name, how, monkeypatch):
    without_rounding(monkeypatch)
    model, given = made(name, "eager"), inputs(name, "left")
    asked = {"output_attentions": True} if how == "argument" else {}
    model.config.output_attentions = how == "config"
    if name == "t5" and how == "config":
        model.encoder.config.output_attentions = model.decoder.config.output_attentions = True
    expected = model(**given, **asked)
    convert(model)
    got = model(**given, **asked)
    keys = [key for key in expected if "attentions" in key]
    assert sum(len(expected[key]) for key in keys) >= 2 or (name, how) == (
        "gpt2",
        "config",
    )  # GPT-2 does not ask its config
    for key in keys:
        assert_close(got[key], expected[key], **EXACT)


def test_dropout_acts_in_training_only():
    model, given = made("llama", dropout=0.5), inputs("llama")
    expected = model(**given).logits
    convert(model)
    assert_close(model(**given).logits, expected, **EXACT)
    model.train()
    assert not torch.allclose(model(**given).logits, model(**given).logits)


def test_what_has_no_counterpart_is_left_and_named():
    from transformers import BloomConfig, BloomModel, GptOssConfig, GptOssModel

    report = convert(BloomModel(BloomConfig(vocab_size=9, hidden_size=8, n_layer=1, n_head=2)))
    assert [(row.layer, row.left) for row in report.left] == [
        (
            "BloomAttention",
            "BloomAttention computes its attention by itself, not through transformers' attention interface",
        )
    ]
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
    }
    model = GptOssModel(GptOssConfig(vocab_size=9, intermediate_size=8, num_local_experts=2, **sizes))
    assert re.search("sinks: ", convert(model).left[0].left)
    model = made("gpt2", "eager", reorder_and_upcast_attn=True)
    assert {row.left.split(":")[0] for row in convert(model).left} == {"reorder_and_upcast_attn"}


def test_a_keyword_that_would_be_ignored_is_refused():
    model, given = made("llama"), inputs("llama")
    convert(model)
    with pytest.raises(ValueError, match=r"softcap=3.0 of LlamaAttention has no counterpart: its scores are capped"):
        model(**given, softcap=3.0)
