"""nn.MultiheadAttention as message passing: both ways, and its drop-in under every mask and layout of the original."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.bridged import EXACT, assert_bits, assert_drop_in, assert_same, converted, differentiated
from mpnn import MessagePassing, attend, capture_weights, trace_kernels
from mpnn.interop import convert, from_layer, swap, to_layer
from mpnn.neighbours import AllTokens, Window
from mpnn.positions import ALiBi
from mpnn.weights import QKSoftmax

LAYERS: dict[str, dict[str, Any]] = {
    "packed": {"embed_dim": 8, "num_heads": 2},
    "one head": {"embed_dim": 6, "num_heads": 1},
    "no bias": {"embed_dim": 8, "num_heads": 4, "bias": False},
    "separate": {"embed_dim": 24, "num_heads": 4, "kdim": 10, "vdim": 12},
    "separate, no bias": {"embed_dim": 24, "num_heads": 4, "kdim": 10, "vdim": 12, "bias": False},
    "one other width": {"embed_dim": 8, "num_heads": 2, "kdim": 6, "vdim": 6},
}
LAYOUTS = ("batch first", "batch second", "unbatched")
B, N, M = 3, 5, 4


def made(name: str, layout: str = "batch first", **options: Any) -> nn.MultiheadAttention:
    layer = nn.MultiheadAttention(**LAYERS[name], batch_first=layout == "batch first", **options).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn_like(p) / 2)  # biases too
    return layer


def tokens(layer: nn.MultiheadAttention, tie: str, layout: str) -> list[Tensor]:
    """query, key, value, of which some are one tensor."""

    def draw(n: int, width: int) -> Tensor:
        shape = {"batch first": (B, n, width), "batch second": (n, B, width), "unbatched": (n, width)}[layout]
        return torch.randn(shape, dtype=torch.float64)

    query = draw(N, layer.embed_dim)
    if tie == "self":
        return [query] * 3
    key = draw(M, layer.kdim)
    return [query, key, key if tie == "memory" else draw(M, layer.vdim)]


def ties(layer: nn.MultiheadAttention) -> list[str]:
    if layer.kdim != layer.vdim:
        return ["three"]
    return ["memory", "three"] if layer.kdim != layer.embed_dim else ["self", "memory", "three"]


def one_left(keep: Tensor) -> Tensor:
    """A mask that leaves every row its first source: the original has no number for a row without any."""
    keep[..., 0] = True
    return ~keep


def masks(kind: str, heads: int, layout: str, n: int, m: int) -> dict[str, Any]:
    lead = () if layout == "unbatched" else (B,)
    every = heads * (B if lead else 1)
    keep = one_left(torch.rand(*lead, m) < 0.6)
    pairs, each = one_left(torch.rand(n, m) < 0.6), one_left(torch.rand(every, n, m) < 0.6)
    floats = torch.randn(n, m, dtype=torch.float64)
    return {
        "none": {},
        "padding": {"key_padding_mask": keep},
        "padding of floats": {"key_padding_mask": torch.randn(*lead, m, dtype=torch.float64)},
        "padding of -inf": {"key_padding_mask": torch.zeros(*lead, m).double().masked_fill(keep, -torch.inf)},
        "pairs": {"attn_mask": pairs},
        "pairs of floats": {"attn_mask": floats.masked_fill(pairs, -torch.inf)},
        "pairs of each head": {"attn_mask": each},
        "floats of each head": {"attn_mask": torch.randn(every, n, m, dtype=torch.float64)},
        "padding and pairs": {"key_padding_mask": keep, "attn_mask": pairs},
        "floats twice": {"key_padding_mask": torch.randn(*lead, m).double(), "attn_mask": floats},
        "causal": {"attn_mask": nn.Transformer.generate_square_subsequent_mask(n).double()[:, :m], "is_causal": True},
    }[kind]


MASKS = (
    "none", "padding", "padding of floats", "padding of -inf", "pairs", "pairs of floats", "pairs of each head",
    "floats of each head", "padding and pairs", "floats twice", "causal",
)  # fmt: skip


ASKED: tuple[dict[str, Any], ...] = ({"need_weights": False}, {}, {"average_attn_weights": False})


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", LAYERS)
def test_the_drop_in_is_the_original(name: str, layout: str, kind: str) -> None:
    layer = made(name, layout)
    for tie in ties(layer):
        inputs = tokens(layer, tie, layout)
        axis = 0 if layout in ("batch second", "unbatched") else 1
        given = masks(kind, layer.num_heads, layout, inputs[0].shape[axis], inputs[1].shape[axis])
        if kind == "causal" and tie != "self":
            given.pop("is_causal")  # the original's flag is for a square mask
        asked = ASKED[(MASKS.index(kind) + ties(layer).index(tie)) % 3]
        assert_drop_in(layer, lambda m, *t, more=given | asked: m(*t, **more), inputs)


@pytest.mark.parametrize("name", LAYERS)
def test_both_ways(name: str) -> None:
    for training, batch_first, dropout in ((True, True, 0.1), (False, False, 0.0)):
        layer = made(name, "batch first" if batch_first else "batch second", dropout=dropout).train(training)
        layer.out_proj.weight.requires_grad_(False)
        core = from_layer(layer)
        assert isinstance(core, MessagePassing) and core.training is training
        back = to_layer(core)
        assert back.batch_first is batch_first and back.dropout == dropout
        assert (back.kdim, back.vdim) == (layer.kdim, layer.vdim)
        assert_bits(layer, back)
        for p in core.parameters():
            p.data.zero_()
        assert all(p.any() for p in layer.parameters())  # copied, not shared


@pytest.mark.parametrize("name", LAYERS)
def test_the_core_alone(name: str) -> None:
    layer = made(name)
    core = from_layer(layer)
    query, key, value = tokens(layer, ties(layer)[-1], "batch first")
    wanted = layer(query, key, value, need_weights=False)[0]
    torch.testing.assert_close(core(query, source=(key, value)), wanted, **EXACT)
    if core.weight.split is not None:
        torch.testing.assert_close(core(query, source=torch.cat([key, value], -1)), wanted, **EXACT)
    elif layer.kdim == layer.embed_dim:
        torch.testing.assert_close(core(query), layer(query, query, query, need_weights=False)[0], **EXACT)


def test_a_shared_core_stands_in_the_layers_memory() -> None:
    layer = made("packed")
    layer.in_proj_weight.requires_grad_(False)
    core = from_layer(layer, share=True)
    assert core.weight.output.weight is layer.out_proj.weight
    assert not core.weight.query.weight.requires_grad and core.weight.query.bias.requires_grad
    with torch.no_grad():
        core.weight.key.weight.fill_(3)
        layer.in_proj_bias.fill_(4)
    assert bool((layer.in_proj_weight[8:16] == 3).all()) and not bool((layer.in_proj_weight[:8] == 3).any())
    assert bool((core.weight.value.bias == 4).all())
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    torch.testing.assert_close(core(x), layer(x, x, x)[0], **EXACT)


def test_a_mask_of_ours_says_the_opposite() -> None:
    """Case 7: queries of zero, values 10 and 20; True takes part here and is excluded there."""
    q, v = torch.zeros(1, 2, 1), torch.tensor([[[10.0], [20.0]]])
    takes_part = torch.tensor([[True, False], [True, True]])
    wanted = torch.tensor([10.0, 15.0])
    assert torch.equal(attend(q, q, v, AllTokens(), pair_mask=takes_part).flatten(), wanted)
    pairs = attend(q.expand(2, 1, 2, 1), q.expand(2, 1, 2, 1), v.expand(2, 1, 2, 1), AllTokens(), mask=takes_part)
    assert torch.equal(pairs.squeeze(), torch.tensor([[10.0, 10.0], [15.0, 15.0]]))
    layer = nn.MultiheadAttention(1, 1, bias=False, batch_first=True)
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.tensor([[0.0], [0.0], [1.0]]))
        layer.out_proj.weight.fill_(1)
    core = from_layer(layer)
    x = torch.tensor([[[10.0], [20.0]]])
    assert torch.equal(core(x, pair_mask=takes_part).flatten(), wanted)
    assert torch.equal(layer(x, x, x, attn_mask=~takes_part)[0].flatten(), wanted)
    twin = converted(layer)
    assert torch.equal(twin(x, x, x, attn_mask=~takes_part)[0].flatten(), wanted)
    both = x.expand(2, 2, 1)
    rows = twin(both, both, both, key_padding_mask=~takes_part)[0].squeeze()
    assert torch.equal(rows, torch.tensor([[10.0, 10.0], [15.0, 15.0]]))
    swapped = to_layer(from_layer(layer))
    assert torch.equal(swapped(x, x, x, attn_mask=~takes_part)[0].flatten(), wanted)


def test_a_query_that_sees_nobody() -> None:
    layer = made("packed")
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    nobody = torch.tensor([[False] * 4, [True] * 4])
    assert layer(x, x, x, key_padding_mask=nobody)[0][1].isnan().all()  # the original's
    y, weights = converted(layer)(x, x, x, key_padding_mask=nobody)
    assert torch.equal(y[1], layer.out_proj.bias.expand(4, 8)) and not weights[1].any()
    torch.testing.assert_close(y[0], layer(x, x, x)[0][0], **EXACT)


def test_padded_rows_hold_the_originals_numbers() -> None:
    layer = made("packed")
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    pad = torch.tensor([[False] * 4, [False, False, True, True]])
    y = converted(layer)(x, x, x, key_padding_mask=pad, need_weights=False)[0]
    assert y[1, 2:].any()
    torch.testing.assert_close(y, layer(x, x, x, key_padding_mask=pad, need_weights=False)[0], **EXACT)


@pytest.mark.parametrize("name", ["packed", "one head", "no bias"])
def test_the_fused_path_of_inference(name: str) -> None:
    layer = made(name).eval()
    twin = converted(layer)
    x = torch.randn(B, N, layer.embed_dim, dtype=torch.float64)
    for kind in ("none", "padding", "pairs", "pairs of each head"):
        given = masks(kind, layer.num_heads, "batch first", N, N)
        for needed in (False, True):
            with torch.no_grad():
                a, b = (m(x, x, x, need_weights=needed, **given) for m in (layer, twin))
            torch.testing.assert_close(b[0], a[0], **EXACT)
            assert (a[1] is None) == (b[1] is None)
            if needed:
                torch.testing.assert_close(b[1], a[1], **EXACT)


def test_gradients_reach_a_float_mask() -> None:
    layer = made("packed")
    twin = converted(layer)
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    mask = torch.randn(4, 4, dtype=torch.float64).masked_fill(torch.eye(4) > 0, -torch.inf)
    grads = []
    for m in (layer, twin):
        leaf = mask.clone().requires_grad_()
        m(x, x, x, attn_mask=leaf)[0].sin().sum().backward()
        grads.append(leaf.grad)
    assert grads[0].any()
    torch.testing.assert_close(grads[1], grads[0], **EXACT)


def test_weights_are_made_only_where_they_are_asked_for() -> None:
    twin = converted(made("packed"))
    x = torch.randn(2, 64, 8, dtype=torch.float64)
    sizes = []

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            sizes.extend(t.numel() for t in (result if isinstance(result, tuple) else (result,)) if torch.is_tensor(t))
            return result

    with torch.no_grad(), Largest():
        without = twin(x, x, x, need_weights=False)
    assert without[1] is None and max(sizes) < 64 * 64
    with torch.no_grad(), Largest():
        asked = twin(x, x, x)
    assert asked[1] is not None and max(sizes) >= 2 * 64 * 64
    torch.testing.assert_close(asked[0], without[0], **EXACT)


def test_dropout_acts_in_training_only() -> None:
    layer = made("packed", dropout=0.5)
    twin = converted(layer)
    x = torch.randn(2, 16, 8, dtype=torch.float64)
    torch.testing.assert_close(twin.eval()(x, x, x)[0], layer.eval()(x, x, x)[0], **EXACT)
    twin.train()
    assert not torch.allclose(twin(x, x, x)[0], twin(x, x, x)[0])
    mean = torch.stack([twin(x, x, x, need_weights=False)[0] for _ in range(400)]).mean(0)
    torch.testing.assert_close(mean, layer.eval()(x, x, x)[0], rtol=0.3, atol=0.6)


def test_other_neighbours() -> None:
    layer = made("packed")
    twin = converted(layer)
    assert swap(twin, neighbours=Window(1)) == [""]
    place = torch.arange(N)
    band = (place[:, None] - place).abs() > 1
    pad = torch.tensor([[False] * N, [False] * (N - 1) + [True], [False] * N])
    for given in ({}, {"key_padding_mask": pad}):
        x = torch.randn(B, N, 8, dtype=torch.float64)
        one = differentiated(layer, lambda m, x, more=given: m(x, x, x, attn_mask=band, **more), [x])
        assert_same(one, differentiated(twin, lambda m, x, more=given: m(x, x, x, **more), [x]))


def test_it_can_be_watched() -> None:
    twin = converted(made("packed"))
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    with capture_weights(twin) as seen, trace_kernels(twin) as kernels:
        _, weights = twin(x, x, x, average_attn_weights=False)
    assert kernels == {"core": "sdpa"}
    assert torch.equal(seen["core"][0].weight.transpose(-2, -1).unflatten(-1, (4, 4)), weights)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"add_bias_kv": True}, "add_bias_kv=True: bias_k"), ({"add_zero_attn": True}, "add_zero_attn=True")],
)
def test_a_token_of_its_own_is_refused(options: dict, words: str) -> None:
    layer = nn.MultiheadAttention(8, 2, **options)
    before = type(layer), copy.deepcopy(layer.state_dict())
    with pytest.raises(ValueError, match=words):
        from_layer(layer)
    report = convert(layer)
    assert not report.converted and words in report.left[0].left
    assert type(layer) is before[0] and layer.state_dict().keys() == before[1].keys()


@pytest.mark.parametrize(
    ("weight", "rule", "words"),
    [
        (QKSoftmax(8, 2, kv_heads=1), AllTokens(), "kv_heads"),
        (QKSoftmax(8, 2, head_channels=6), AllTokens(), "head_channels"),
        (QKSoftmax(8, 2, output=False), AllTokens(), "output"),
        (QKSoftmax(8, 2, scale=1.0), AllTokens(), "scale"),
        (QKSoftmax(8, 2, score_bias=ALiBi(2)), AllTokens(), "ALiBi"),
        (QKSoftmax(8, 2, qkv_bias=False), AllTokens(), "query.bias|output.bias"),
        (QKSoftmax(8, 2, root=True), AllTokens(), "root"),
        (QKSoftmax(8, 2, out_channels=6), AllTokens(), "out_channels"),
        (QKSoftmax(8, 2), AllTokens(causal=True), "causal"),
        (QKSoftmax(8, 2), Window(2), "needs AllTokens"),
    ],
)
def test_what_no_layer_computes_is_refused(weight: QKSoftmax, rule: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"no layer computes this, got .*: .*({words})"):
        to_layer(MessagePassing(rule, weight))


def test_hand_built_attention_is_a_layer() -> None:
    core = MessagePassing(AllTokens(), QKSoftmax(8, 2, source_channels=(6, 4), dropout=0.25)).double()
    layer = to_layer(core)
    assert layer.batch_first and layer.dropout == 0.25 and (layer.kdim, layer.vdim) == (6, 4)
    q, k, v = (torch.randn(2, n, c, dtype=torch.float64) for n, c in ((3, 8), (5, 6), (5, 4)))
    torch.testing.assert_close(layer.eval()(q, k, v)[0], core.eval()(q, source=(k, v)), **EXACT)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"is_causal": True}, RuntimeError, "attn_mask with is_causal=True"),
        (
            {"attn_mask": torch.ones(3, 4).bool()},
            ValueError,
            r"attn_mask of shape \(4, 4\) or \(4, 4, 4\), got \(3, 4\)",
        ),
        ({"key_padding_mask": torch.ones(4, 2).bool()}, ValueError, r"key_padding_mask of shape \(2, 4\), got"),
        ({"attn_mask": torch.ones(4, 4).long()}, TypeError, "attn_mask to be a bool tensor .*got torch.int64"),
        ({"key_padding_mask": [True]}, TypeError, "key_padding_mask to be a bool tensor .*got list"),
    ],
)
def test_wrong_calls(given: dict, error: type[Exception], words: str) -> None:
    twin = converted(made("packed"))
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    with pytest.raises(error, match=words):
        twin(x, x, x, **given)
    with pytest.raises(ValueError, match="all 2-D"):
        twin(x, x[0], x[0])
