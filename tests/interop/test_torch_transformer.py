"""torch's Transformer layers as residual blocks, and whole models of them converted."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.bridged import EXACT, assert_bits, assert_drop_in, assert_same, converted, differentiated
from mpnn import MessagePassing
from mpnn.interop import convert, from_layer, revert, swap, to_layer
from mpnn.models import ResidualBlock
from mpnn.neighbours import AllTokens, Window
from mpnn.tokens import Tokens
from mpnn.weights import QKSoftmax

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")

ENCODER, DECODER = nn.TransformerEncoderLayer, nn.TransformerDecoderLayer
OPTIONS: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "pre-norm": {"norm_first": True},
    "gelu": {"activation": "gelu"},
    "a module": {"activation": nn.PReLU(), "norm_first": True},
    "a function": {"activation": torch.tanh},
    "no bias": {"bias": False},
    "no bias, pre-norm": {"bias": False, "norm_first": True, "layer_norm_eps": 1e-3},
    "odd heads": {"nhead": 3, "d_model": 6},
}
LAYOUTS = ("batch first", "batch second", "unbatched")
B, N, M = 3, 5, 4


def made(kind: type, option: str, layout: str = "batch first", dropout: float = 0.0) -> Any:
    sizes = {"d_model": 8, "nhead": 2, "dim_feedforward": 12, "dropout": dropout}
    options = sizes | copy.deepcopy(OPTIONS[option])
    layer = kind(**options, batch_first=layout == "batch first").double()
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(torch.randn_like(p) / 4)
    return layer


def draw(layer: Any, n: int, layout: str) -> Tensor:
    width = layer.self_attn.embed_dim
    shape = {"batch first": (B, n, width), "batch second": (n, B, width), "unbatched": (n, width)}[layout]
    return torch.randn(shape, dtype=torch.float64)


def padding(n: int, layout: str) -> Tensor:
    mask = torch.zeros(B, n, dtype=torch.bool)
    mask[1, -1] = mask[2, -2:] = True
    return mask[2] if layout == "unbatched" else mask


def band(n: int, m: int, reach: int = 1) -> Tensor:
    return (torch.arange(n)[:, None] - torch.arange(m)).abs() > reach


def encoder_masks(layout: str) -> dict[str, dict[str, Any]]:
    causal = nn.Transformer.generate_square_subsequent_mask(N).double()
    return {
        "none": {},
        "padding": {"src_key_padding_mask": padding(N, layout)},
        "pairs": {"src_mask": band(N, N)},
        "both": {"src_mask": band(N, N, 2), "src_key_padding_mask": padding(N, layout)},
        "causal": {"src_mask": causal, "is_causal": True},
        "floats": {"src_mask": torch.randn(N, N, dtype=torch.float64)},
    }


@pytest.mark.parametrize("kind", encoder_masks("batch first"))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("option", OPTIONS)
def test_an_encoder_layer(option: str, layout: str, kind: str) -> None:
    layer = made(ENCODER, option, layout)
    given = encoder_masks(layout)[kind]
    twin = assert_drop_in(layer, lambda m, x: m(x, **given), [draw(layer, N, layout)])
    for m in (layer, twin):
        m.eval()
    x = draw(layer, N, layout)
    if kind == "floats":
        return  # the original's one fused operation takes every float but 0 for True, and gives NaN here
    with torch.no_grad():  # where the original computes everything in one fused operation
        a, b = layer(x, **given), twin(x, **given)
    torch.testing.assert_close(b, a, **EXACT)


def decoder_masks(layout: str) -> dict[str, dict[str, Any]]:
    causal = nn.Transformer.generate_square_subsequent_mask(N).double()
    return {
        "none": {},
        "padding": {"tgt_key_padding_mask": padding(N, layout), "memory_key_padding_mask": padding(M, layout)},
        "pairs": {"tgt_mask": band(N, N), "memory_mask": band(N, M, 2)},
        "causal": {"tgt_mask": causal, "tgt_is_causal": True, "memory_key_padding_mask": padding(M, layout)},
    }


@pytest.mark.parametrize("kind", decoder_masks("batch first"))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("option", OPTIONS)
def test_a_decoder_layer(option: str, layout: str, kind: str) -> None:
    layer = made(DECODER, option, layout)
    given = decoder_masks(layout)[kind]
    assert_drop_in(layer, lambda m, x, y: m(x, y, **given), [draw(layer, N, layout), draw(layer, M, layout)])


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", [ENCODER, DECODER])
def test_both_ways(kind: type, option: str) -> None:
    for layout, training, dropout in (("batch first", True, 0.25), ("batch second", False, 0.0)):
        layer = made(kind, option, layout, dropout).train(training)
        layer.linear1.weight.requires_grad_(False)
        layer.dropout.p = dropout / 2
        core = from_layer(layer)
        assert isinstance(core, ResidualBlock)
        back = to_layer(core)
        assert_bits(layer, back)
        assert back.self_attn.batch_first == (layout == "batch first")
        assert back.activation is layer.activation or isinstance(layer.activation, nn.Module)
        assert back.activation_relu_or_gelu == layer.activation_relu_or_gelu if kind is ENCODER else True


@pytest.mark.parametrize("option", OPTIONS)
def test_the_blocks_alone(option: str) -> None:
    encoder, decoder = made(ENCODER, option), made(DECODER, option)
    x, memory, pad = draw(encoder, N, "batch first"), draw(encoder, M, "batch first"), padding(M, "batch first")
    block = from_layer(encoder)
    torch.testing.assert_close(block(x), encoder(x), **EXACT)
    torch.testing.assert_close(block(x, pair_mask=~band(N, N)), encoder(x, src_mask=band(N, N)), **EXACT)
    wanted = decoder(x, memory, memory_key_padding_mask=pad)
    block = from_layer(decoder)
    torch.testing.assert_close(block(x, memory=Tokens(memory, mask=~pad)), wanted, **EXACT)
    with pytest.raises(ValueError, match="expected memory="):
        block(x)


def test_every_dropout_acts() -> None:
    """With one of the places of dropout at 1, the block is what the layer is: each place is where torch has it."""
    for kind, places in ((ENCODER, ("dropout", "dropout12")), (DECODER, ("dropout", "dropout123"))):
        for place in (*places, "self_attn", "multihead_attn"):
            for norm in ("post-norm", "pre-norm"):
                layer = made(kind, norm)
                if not hasattr(layer, place.rstrip("123")):
                    continue
                if place.startswith("dropout"):
                    for digit in place.removeprefix("dropout") or ("",):
                        getattr(layer, f"dropout{digit}").p = 1.0
                else:
                    getattr(layer, place).dropout = 1.0
                inputs = [draw(layer, N, "batch first"), draw(layer, M, "batch first")][: 1 if kind is ENCODER else 2]
                twin = converted(layer)
                layer.train(), twin.train()
                torch.testing.assert_close(twin(*inputs), layer(*inputs), **EXACT)
                assert not torch.allclose(layer(*inputs), layer.eval()(*inputs))


@pytest.mark.parametrize("kind", [ENCODER, DECODER])
def test_dropout_that_is_changed_afterwards(kind: type) -> None:
    layer = made(kind, "pre-norm", dropout=0.5)
    inputs = [draw(layer, N, "batch first"), draw(layer, M, "batch first")][: 1 if kind is ENCODER else 2]
    twin = converted(layer)
    for m in (layer, twin):
        for part in m.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
        m.self_attn.dropout = 0.0
        if kind is DECODER:
            m.multihead_attn.dropout = 1.0
        m.train()
    torch.testing.assert_close(twin(*inputs), layer(*inputs), **EXACT)
    twin.dropout1.p = 0.25
    with pytest.raises(ValueError, match=r"expected one p of dropout1, .*, got \[0.0, 0.25\]"):
        twin(*inputs)


def transformer(**options: Any) -> nn.Transformer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about nested tensors that it will not use
        return nn.Transformer(8, 2, 2, 2, 12, 0.0, **options).double()


@pytest.mark.parametrize("options", [{"batch_first": True}, {}, {"batch_first": True, "norm_first": True}])
def test_a_whole_transformer(options: dict) -> None:
    model = transformer(**options)
    layout = "batch first" if options else "batch second"
    layer = model.encoder.layers[0]
    inputs = [draw(layer, M, layout), draw(layer, N, layout)]
    causal = model.generate_square_subsequent_mask(N).double()
    pad = padding(M, layout)
    for given in (
        {},
        {"tgt_mask": causal, "tgt_is_causal": True},
        {"src_mask": band(M, M), "tgt_mask": band(N, N), "memory_mask": band(N, M, 2)},
        {"src_key_padding_mask": pad, "memory_key_padding_mask": pad, "tgt_key_padding_mask": padding(N, layout)},
    ):
        twin = assert_drop_in(model, lambda m, x, y, more=given: m(x, y, **more), inputs)
        model.eval(), twin.eval()
        with torch.no_grad():
            torch.testing.assert_close(twin(*inputs, **given), model(*inputs, **given), **EXACT)
    report = convert(copy.deepcopy(model))
    assert [row.name for row in report.converted] == [f"{e}coder.layers.{i}" for e in ("en", "de") for i in (0, 1)]


def encoder(layers: int = 2, **options: Any) -> nn.TransformerEncoder:
    layer = ENCODER(8, 2, 12, 0.0, batch_first=True, **options)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=not options.get("norm_first", False)).double()


@pytest.mark.parametrize("options", [{}, {"norm_first": True}, {"activation": "gelu"}])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_an_encoder_and_its_fast_paths(options: dict, grad: bool, training: bool) -> None:
    model = encoder(**options).train(training)
    twin = converted(model)
    x = torch.randn(B, N, 8, dtype=torch.float64)
    ends, anywhere = padding(N, "batch first"), torch.zeros(B, N).bool().index_fill(1, torch.tensor([1]), True)
    for given in ({}, {"src_key_padding_mask": ends}, {"src_key_padding_mask": anywhere}, {"mask": band(N, N)}):
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(twin(x, **given), model(x, **given), **EXACT)


@pytest.mark.parametrize("grad", [True, False])
def test_other_neighbours_are_a_band_mask(grad: bool) -> None:
    """In inference torch would compute the layer around its attention; the rule holds there too."""
    model = encoder().eval()
    twin = converted(model)
    assert swap(twin, neighbours=Window(2), where="layers.*") == ["layers.0.layer", "layers.1.layer"]
    x = torch.randn(B, 9, 8, dtype=torch.float64)
    pad = torch.zeros(B, 9, dtype=torch.bool)
    pad[1, -2:] = True
    outside = band(9, 9, 2)
    with torch.set_grad_enabled(grad):
        torch.testing.assert_close(twin(x), model(x, mask=outside), **EXACT)
        y = model(x, mask=outside, src_key_padding_mask=pad)[~pad]  # given both, torch keeps padded rows
        torch.testing.assert_close(twin(x, src_key_padding_mask=pad)[~pad], y, **EXACT)
    if grad:
        one = differentiated(model, lambda m, t: m(t, mask=outside), [x])
        assert_same(one, differentiated(twin, lambda m, t: m(t), [x]))


class Own(nn.TransformerEncoderLayer):
    """A subclass may compute something else, so that only its attention is converted."""


@pytest.mark.parametrize("grad", [True, False])
def test_a_rule_inside_a_layer_that_is_not_ours(grad: bool) -> None:
    model = Own(8, 2, 12, 0.0, batch_first=True).double().eval()
    twin = copy.deepcopy(model)
    report = convert(twin)
    assert [(row.name, row.layer) for row in report.converted] == [("self_attn", "MultiheadAttention")]
    swap(twin, neighbours=Window(1))
    x, outside = torch.randn(B, N, 8, dtype=torch.float64), band(N, N)
    with torch.set_grad_enabled(grad):
        torch.testing.assert_close(twin(x), model(x, src_mask=outside), **EXACT)
    stack = nn.TransformerEncoder(Own(8, 2, 12, 0.0, batch_first=True), 2).double().eval()
    whole = converted(stack)
    pad = padding(N, "batch first")
    with torch.set_grad_enabled(grad):
        torch.testing.assert_close(whole(x, src_key_padding_mask=pad), stack(x, src_key_padding_mask=pad), **EXACT)
    revert(twin)
    assert twin.self_attn._qkv_same_embed_dim and type(twin.self_attn) is nn.MultiheadAttention
    torch.testing.assert_close(twin(x), model(x), **EXACT)


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "another norm": (lambda m: setattr(m, "norm1", nn.RMSNorm(8)), "norm1 is RMSNorm"),
    "another eps": (lambda m: setattr(m.norm2, "eps", 1e-3), "eps differs"),
    "another dropout": (lambda m: setattr(m.dropout2, "p", 0.5), "p differs"),
    "a bias less": (lambda m: setattr(m.linear2, "bias", None), "bias differs"),
    "a hook inside": (lambda m: m.linear1.register_forward_hook(lambda *_: None), "linear1 has hooks"),
    "zero attention": (lambda m: setattr(m.self_attn, "add_zero_attn", True), "self_attn: add_zero_attn"),
    "another linear": (lambda m: setattr(m, "linear1", nn.Identity()), "linear1 is Identity"),
    "buffers": (lambda m: setattr(m, "activation", nn.BatchNorm1d(5)), "activation has buffers"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_layer_is_refused_and_its_parts_are_converted(change: str) -> None:
    layer = made(ENCODER, "post-norm")
    CHANGES[change][0](layer)
    with pytest.raises(ValueError, match=CHANGES[change][1]):
        from_layer(layer)
    report = convert(layer)
    assert CHANGES[change][1] in report.left[0].left and type(layer) is ENCODER
    assert [row.name for row in report.converted] == ([] if change == "zero attention" else ["self_attn"])


def test_blocks_that_no_layer_computes() -> None:
    def block(**options: Any) -> ResidualBlock:
        return ResidualBlock(
            MessagePassing(AllTokens(), QKSoftmax(8, 2, bias=options.get("bias", True))), 8, 12, **options
        )

    layer = to_layer(block(activation=F.gelu, norm_first=False))
    assert isinstance(layer, ENCODER) and layer.activation is F.gelu and layer.activation_relu_or_gelu == 2
    assert isinstance(to_layer(block(cross=MessagePassing(AllTokens(), QKSoftmax(8, 2)))), DECODER)
    wrong = block()
    wrong.norm2.eps = 1e-2
    with pytest.raises(ValueError, match=r"no layer computes this, got ResidualBlock: .*norm2\.eps"):
        to_layer(wrong)
    windowed = ResidualBlock(MessagePassing(Window(1), QKSoftmax(8, 2)), 8, 12)
    with pytest.raises(ValueError, match=r"nn\.MultiheadAttention needs AllTokens × QKSoftmax"):
        to_layer(windowed)
    mixed = ResidualBlock(MessagePassing(AllTokens(), QKSoftmax(8, 2, bias=False)), 8, 12)
    layer, x = to_layer(mixed), torch.randn(B, N, 8)
    assert layer.self_attn.in_proj_bias is None and layer.linear1.bias is not None
    torch.testing.assert_close(layer(x), mixed(x))


def test_a_causal_hint_without_its_mask() -> None:
    x = torch.randn(B, N, 8, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="expected src_mask with is_causal=True"):
        converted(made(ENCODER, "post-norm"))(x, is_causal=True)
    with pytest.raises(RuntimeError, match="expected memory_mask with is_causal=True"):
        converted(made(DECODER, "post-norm"))(x, x, memory_is_causal=True)
