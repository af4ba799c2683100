"""Other rules in converted models: the model of the same weights under a mask of the rule's pairs."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from helpers.huggingface import inputs, made, text, values, without_rounding
from mpnn import trace_kernels
from mpnn.interop import convert, swap
from mpnn.neighbours import KNN, AllTokens, Blocks, Edges, Global, Graph, Neighbours, Random, Window

pytest.importorskip("transformers")
EXACT = {"atol": 1e-10, "rtol": 1e-10}


def pairs(rule: Neighbours, real: torch.Tensor, causal: bool) -> torch.Tensor:
    """bool (B, 1, N, N): the rule over the real tokens of each row, and a loop of every padding row to itself."""
    mask = torch.eye(real.shape[1], dtype=torch.bool).repeat(len(real), 1, 1)
    for row, tokens in enumerate(real):
        at = tokens.nonzero().squeeze(-1)
        edges = rule.edges(len(at), len(at))
        mask[row][at] = False
        mask[row, at[edges.target], at[edges.source]] = True
    return (mask & (torch.ones_like(mask).tril() if causal else True))[:, None]


def added(mask: torch.Tensor) -> torch.Tensor:
    """The mask as eager attention takes it."""
    zero = torch.zeros((), dtype=torch.float64)
    return torch.where(mask, zero, torch.finfo(zero.dtype).min)


def converted_with(model: torch.nn.Module, rule: Neighbours, **where) -> torch.nn.Module:
    convert(model)
    assert swap(model, neighbours=rule, **where)
    return model


CAUSAL = [
    Window(2, 0),
    Window(1),
    Blocks(3),
    Window(1, 0) | Global(1),
    AllTokens(),
    AllTokens(causal=True),
    Window(0) | Random(2, 0),
]


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("rule", CAUSAL, ids=repr)
def test_llama_under_a_rule_is_llama_under_its_mask(rule, implementation, padding, monkeypatch):
    without_rounding(monkeypatch)
    model, given = made("llama", implementation), text(padding)
    real = given["attention_mask"].bool()
    positions = (real.long().cumsum(-1) - 1).clamp(min=0)
    mask = pairs(rule, real, causal=True)
    if implementation == "eager":
        mask = added(mask)
    expected = model(given["input_ids"], attention_mask=mask, position_ids=positions).logits
    if rule != AllTokens():
        converted_with(model, rule)
    got = model(**given, position_ids=positions).logits
    assert_close(got[real], expected[real], **EXACT)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_gradients_under_a_window_are_those_under_its_mask(padding, implementation, monkeypatch):
    without_rounding(monkeypatch)
    model, given = made("llama", implementation), text(padding)
    real = given["attention_mask"].bool()
    given["position_ids"] = (real.long().cumsum(-1) - 1).clamp(min=0)
    mask = pairs(Window(2, 0), real, causal=True)
    if implementation == "eager":
        mask = added(mask)

    def gradients(attention_mask):
        logits = model(**given | {"attention_mask": attention_mask}).logits[real]
        return torch.autograd.grad(
            (logits * torch.linspace(-1, 1, logits.numel()).view_as(logits)).sum(), list(model.parameters())
        )

    expected = gradients(mask)
    converted_with(model, Window(2, 0))
    assert_close(gradients(given["attention_mask"]), expected, **EXACT)


@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_llama_with_a_window_is_mistral(implementation, padding, monkeypatch):
    without_rounding(monkeypatch)
    mistral, llama = made("mistral", "eager", sliding_window=3), made("llama", implementation)
    llama.load_state_dict(mistral.state_dict())
    converted_with(llama, Window(2, 0))
    given = text(padding)
    real = given["attention_mask"].bool()
    assert_close(llama(**given).logits[real], mistral(**given).logits[real], **EXACT)
    more = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    for beams in (1, 3):
        expected = mistral.generate(**given, **more, num_beams=beams)
        assert torch.equal(llama.generate(**given, **more, num_beams=beams), expected)


@pytest.mark.parametrize(
    "rule", [Window(2), Blocks(3) | Global(1), Window(1, 0) | Global(2), Blocks(2, halo=1)], ids=repr
)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_rule_under_generate_is_the_same_with_and_without_a_cache(rule, implementation):
    model = converted_with(made("llama", implementation), rule)
    more = {
        "max_new_tokens": 5,
        "min_new_tokens": 5,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_logits": True,
    }
    given = text("left")
    plain = model.generate(**given, **more, use_cache=False)
    for how in ({"use_cache": True}, {"cache_implementation": "static", "disable_compile": True}):
        cached = model.generate(**given, **more, **how)
        assert torch.equal(cached.sequences, plain.sequences)
        assert_close(torch.stack(cached.logits), torch.stack(plain.logits), atol=1e-5, rtol=1e-5)


def test_random_neighbours_go_without_a_cache():
    model = converted_with(made("llama"), Window(1, 0) | Random(2, seed=0))
    with pytest.raises(ValueError, match=r"draws anew for every number of tokens.*pass use_cache=False"):
        model.generate(**text("none"), max_new_tokens=3)
    assert model.generate(**text("none"), max_new_tokens=3, use_cache=False).shape[1] > 7


@pytest.mark.parametrize("padding", ["none", "right"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_bert_with_bigbirds_pattern(implementation, padding, monkeypatch):
    without_rounding(monkeypatch)
    model, given = made("bert", implementation), text(padding)
    real, rule = given["attention_mask"].bool(), Window(1) | Global(1) | Random(1, seed=3)
    mask = pairs(rule, real, causal=False)
    if implementation == "eager":
        mask = added(mask)
    expected = model(given["input_ids"], attention_mask=mask).logits
    assert_close(converted_with(model, rule)(**given).logits[real], expected[real], **EXACT)


def neighbourhood(side: int, reach: int) -> Graph:
    """Edges of a grid between cells at most ``reach`` apart, numbered after the class token."""
    cell = torch.cartesian_prod(torch.arange(side), torch.arange(side))
    near = ((cell[:, None] - cell).abs() <= reach).all(-1)
    return Graph(near.nonzero().T.flip(0) + 1, side * side + 1)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_vit_with_neighbourhoods_and_its_class_token(implementation, monkeypatch):
    without_rounding(monkeypatch)
    model, given = made("vit", implementation), inputs("vit")
    rule = neighbourhood(3, 1) | Global(1)
    i = torch.arange(9)
    near = ((i[:, None] // 3 - i // 3).abs() <= 1) & ((i[:, None] % 3 - i % 3).abs() <= 1)
    mask = torch.ones(10, 10, dtype=torch.bool)
    mask[1:, 1:] = near
    assert not near.all()
    mask = mask if implementation == "sdpa" else added(mask)
    expected, gradients = values(model, given | {"attention_mask": mask[None, None]})
    convert(model)
    assert len(swap(model, neighbours=rule)) == 2
    got, found = values(model, given)
    assert_close(got, expected, **EXACT)
    for name, gradient in gradients.items():
        assert_close(found[name], gradient, **EXACT)


def test_where_chooses_and_cross_attention_is_left_alone():
    model = made("t5")
    convert(model)
    assert sorted(swap(model, neighbours=Window(1))) == sorted(
        f"{side}.block.{i}.layer.0.SelfAttention" for side in ("encoder", "decoder") for i in range(2)
    )
    model = made("llama")
    convert(model)
    assert swap(model, neighbours=Window(1, 0), where="model.layers.1*") == ["model.layers.1.self_attn"]
    with trace_kernels(model) as kernels:
        model(**text("none"))
    assert kernels == {"model.layers.0.self_attn": "sdpa", "model.layers.1.self_attn": "tiles"}
    with pytest.raises(ValueError, match="cannot take KNN"):
        swap(model, neighbours=KNN(2))


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_t5_under_a_window_keeps_its_position_bias(implementation, monkeypatch):
    without_rounding(monkeypatch)
    model, given = made("t5", implementation), inputs("t5")
    rule = Window(1)
    mask = pairs(rule, given["attention_mask"].bool(), causal=False)
    hidden = {"input_ids": given["input_ids"]}
    mask = mask if implementation == "sdpa" else added(mask)
    expected = model.encoder(**hidden, attention_mask=mask).last_hidden_state
    convert(model)
    swap(model, neighbours=rule, where="encoder*")
    assert_close(model.encoder(**hidden).last_hidden_state, expected, **EXACT)


class Others(Neighbours):
    """A person's own rule: all but the token before."""

    def edges(self, targets, sources, *, rows=None, tokens=None):
        pair = torch.cartesian_prod(torch.arange(targets)[rows or slice(None)], torch.arange(sources))
        pair = pair[pair[:, 0] != pair[:, 1] + 1]
        return Edges(pair[:, 1], pair[:, 0])


def test_a_persons_own_rule_restarts_in_each_row(monkeypatch):
    model, given = made("bert"), text("left")
    real = given["attention_mask"].bool()
    given["position_ids"] = (real.long().cumsum(-1) - 1).clamp(min=0)
    mask = pairs(Others(), real, causal=False)
    expected = model(**given | {"attention_mask": mask}).logits
    assert_close(converted_with(model, Others())(**given).logits[real], expected[real], **EXACT)


def test_another_mask_is_intersected_with_the_rule():
    model, given = made("llama"), text("none")
    odd = torch.rand(3, 1, 7, 7) < 0.6
    odd |= torch.eye(7, dtype=torch.bool)
    band = pairs(Window(2, 0), torch.ones(3, 7, dtype=torch.bool), causal=True)
    expected = model(given["input_ids"], attention_mask=odd & band).logits
    converted_with(model, Window(2, 0))
    assert_close(model(given["input_ids"], attention_mask=odd).logits, expected, **EXACT)
