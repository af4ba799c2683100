"""Neighbourhoods as attention implementations of transformers: padded batches equal single runs, caches go on."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.testing import assert_close

from helpers.huggingface import PADS, TOKENS, inputs, made, text, without_rounding
from mpnn import capture_weights, trace_kernels
from mpnn.interop.transformers import register
from mpnn.neighbours import AllTokens, Blocks, Global, Graph, Random, Window

pytest.importorskip("transformers")
EXACT = {"atol": 1e-10, "rtol": 1e-10}
RULES = {
    "all": AllTokens(causal=True),
    "window": Window(2, 0),
    "both sides": Window(1),
    "blocks": Blocks(3),
    "global": Window(1, 0) | Global(2),
    "random": Window(1, 0) | Random(2, seed=0),
}
for name, rule in RULES.items():
    register(f"tests-{name}", rule)
MORE = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "pad_token_id": 0}


def rows(given: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Each row alone, without its padding."""
    real = given["attention_mask"].bool()
    return [{"input_ids": ids[mask][None]} for ids, mask in zip(given["input_ids"], real, strict=True)]


def positions(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"position_ids": (given["attention_mask"].cumsum(-1) - 1).clamp(min=0)}


@pytest.mark.parametrize("padding", PADS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_padded_batches_are_single_runs(name, rule, padding):
    model, given = made(name, f"tests-{rule}"), text(padding)
    real = given["attention_mask"].bool()
    weight = torch.randn(int(real.sum()), 31, dtype=torch.float64)
    logits = model(**given, **positions(given)).logits[real]
    gradients = torch.autograd.grad((logits * weight).sum(), list(model.parameters()), allow_unused=True)
    alone = torch.cat([model(**row).logits[0] for row in rows(given)])
    assert_close(logits, alone, **EXACT)
    expected = torch.autograd.grad((alone * weight).sum(), list(model.parameters()), allow_unused=True)
    for got, wanted in zip(gradients, expected, strict=True):
        assert (got is None) == (wanted is None)
        if got is not None:
            assert_close(got, wanted, **EXACT)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_all_earlier_tokens_are_the_model_as_it_was(name, monkeypatch):
    without_rounding(monkeypatch)
    ours, theirs, given = made(name, "tests-all"), made(name, "eager"), text("left")
    theirs.load_state_dict(ours.state_dict())
    real = given["attention_mask"].bool()
    assert_close(ours(**given).logits[real], theirs(**given).logits[real], **EXACT)
    for beams in (1, 3):
        expected = theirs.generate(**given, **MORE, num_beams=beams)
        assert torch.equal(ours.generate(**given, **MORE, num_beams=beams), expected)


@pytest.mark.parametrize(
    "how", [{}, {"num_beams": 3}, {"cache_implementation": "static", "disable_compile": True}], ids=repr
)
@pytest.mark.parametrize("rule", ["window", "blocks", "global"])
def test_generation_of_padded_batches_is_that_of_single_runs(rule, how):
    model, given = made("llama", f"tests-{rule}"), text("left")
    got = model.generate(**given, **MORE, **how)[:, TOKENS:]
    beams = {k: v for k, v in how.items() if k == "num_beams"}
    for row, written in zip(rows(given), got, strict=True):
        alone = model.generate(**row, **MORE, **beams, use_cache=False)
        assert torch.equal(written, alone[0, row["input_ids"].shape[1] :])


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("padding", PADS)
@pytest.mark.parametrize("rule", [r for r in RULES if r != "random"])
def test_what_goes_on_after_the_padding_counts_tokens(rule, padding, kind):
    """A first part of 7 slots, padded at a side, then 3 tokens at once, then one: in single runs nothing is between."""
    from transformers import DynamicCache, StaticCache

    model, first = made("llama", f"tests-{rule}"), text(padding)
    ids = torch.cat([first["input_ids"], torch.randint(1, 31, (3, 4))], 1)
    whole = {"input_ids": ids, "attention_mask": torch.nn.functional.pad(first["attention_mask"], (0, 4), value=1)}
    place = positions(whole)["position_ids"]
    cache = (
        DynamicCache(config=model.config) if kind == "dynamic" else StaticCache(config=model.config, max_cache_len=14)
    )
    logits = []
    for part in (slice(0, 7), slice(7, 10), slice(10, 11)):
        mask = whole["attention_mask"][:, : part.stop]
        given = {"attention_mask": mask, "position_ids": place[:, part], "cache": cache, "use_cache": True}
        logits.append(model(ids[:, part], **given).logits)
    real = whole["attention_mask"].bool()
    alone = torch.cat([model(**row, use_cache=False).logits[0] for row in rows(whole)])
    assert_close(torch.cat(logits, 1)[real], alone, **EXACT)


def test_a_window_is_that_of_mistral_in_a_cache_of_its_own(monkeypatch):
    without_rounding(monkeypatch)
    mistral, ours = made("mistral", "eager", sliding_window=3), made("mistral", "tests-all", sliding_window=3)
    ours.load_state_dict(mistral.state_dict())
    given = text("left")
    assert torch.equal(ours.generate(**given, **MORE), mistral.generate(**given, **MORE))


def test_cross_attention_sees_all_its_sources():
    ours, theirs, given = made("t5", "tests-window"), made("t5", "tests-all"), inputs("t5", "left")
    theirs.load_state_dict(ours.state_dict())
    given["decoder_input_ids"], given["decoder_attention_mask"] = (
        given["decoder_" + n][:, :2] for n in ("input_ids", "attention_mask")
    )
    hidden = {"encoder_outputs": ours.encoder(given["input_ids"], attention_mask=given["attention_mask"])}
    given = {k: v for k, v in given.items() if k != "input_ids"} | hidden
    assert_close(ours(**given).logits, theirs(**given).logits, **EXACT)  # two tokens are in one window


def test_dropout_acts_in_training_only():
    model, given = made("llama", "tests-window", dropout=0.5), text("left")
    assert torch.equal(model(**given).logits, model(**given).logits)
    model.train()
    assert not torch.allclose(model(**given).logits, model(**given).logits)


def test_weights_and_kernels():
    model, given = made("llama", "tests-window"), text("left")
    with trace_kernels(model) as kernels, capture_weights(model) as weights:
        attentions = model(**given, **positions(given), output_attentions=True).attentions
    assert set(kernels) == set(weights) == {f"model.layers.{i}.self_attn" for i in range(2)}
    assert set(kernels.values()) == {"tiles"}
    real = given["attention_mask"].bool()
    single = model(**rows(given)[2], output_attentions=True).attentions
    for whole, alone in zip(attentions, single, strict=True):
        assert whole.shape == (3, 4, TOKENS, TOKENS)
        assert_close(whole.sum(-1).transpose(1, 2)[real], torch.ones(int(real.sum()), 4, dtype=torch.float64))
        assert (whole.transpose(1, 2)[~real] == 0).all()
        assert_close(whole[2, :, real[2]][..., real[2]], alone[0], **EXACT)


def test_several_sequences_in_a_row():
    model, ids = made("llama", "tests-window"), text("none")["input_ids"][:1]
    places = torch.tensor([[0, 1, 2, 3, 0, 1, 2]])
    got = model(ids, position_ids=places, use_cache=False).logits[0]
    alone = [model(part).logits[0] for part in (ids[:, :4], ids[:, 4:])]
    assert_close(got, torch.cat(alone), **EXACT)
    blocks = made("llama", "tests-blocks")
    with pytest.raises(ValueError, match=r"Blocks\(3\), which counts tokens from the start of a sequence"):
        blocks(ids, position_ids=places, use_cache=False)
    with pytest.raises(ValueError, match="cu_seq_lens_q, several sequences in one row, would be ignored"):
        model(ids, cu_seq_lens_q=torch.tensor([0, 4, 7]))


def test_a_name_has_one_rule():
    register("tests-window", Window(2, 0))
    with pytest.raises(
        ValueError, match=r"'tests-window' is Window\(2, 0\) already; take another name for Window\(3, 0\)"
    ):
        register("tests-window", Window(3, 0))
    with pytest.raises(ValueError, match="'sdpa' is an implementation of transformers already"):
        register("sdpa", Window(3, 0))
    with pytest.raises(TypeError, match="expected neighbours to be"):
        register("tests-none", 3)
    with pytest.raises(ValueError, match=r"expected the edges in the rule, .* got Graph\(\): no call brings any"):
        register("tests-open", Graph())


def test_a_graph_names_tokens_by_their_place():
    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 3], [0, 1, 2, 3, 4, 5, 6, 5]])
    register("tests-graph", Graph(edges, TOKENS))
    model, given = made("bert", "tests-graph"), text("left")
    changed = given["input_ids"].clone()
    changed[:, 3] = (changed[:, 3] % 30) + 1
    apart = (model(**given).logits != model(**given | {"input_ids": changed}).logits).any(-1)
    assert apart[0].tolist() == [False, False, False, True, False, True, False]
    assert apart[2].tolist() == [False] * 3 + [True] + [False] * 3  # 3 is padding there


def test_importing_needs_no_transformers():
    code = """
import sys
import mpnn.interop
assert "transformers" not in sys.modules
sys.modules["transformers"] = None
try:
    mpnn.interop.transformers.register("x", mpnn.neighbours.Window(1))
except ModuleNotFoundError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'mpnn[hf]'" in found


@pytest.mark.parametrize("padding", ["left", "right"])
def test_compiled_in_one_graph(padding):
    model, given = made("llama", "tests-blocks"), text(padding) | {"use_cache": False}
    with torch.no_grad():
        expected = model(**given).logits
        got = torch.compile(model, fullgraph=True, backend="eager")(**given).logits
    real = given["attention_mask"].bool()
    assert_close(got[real], expected[real], **EXACT)
