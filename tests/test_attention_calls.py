"""What a call of attention may bring besides tokens: a score bias, keys and values apart, one set as two."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mpnn import MessagePassing, attend, use_kernels
from mpnn.neighbours import KNN, AllTokens, Blocks, Full, Global, Graph, Grid, Neighbours, Window
from mpnn.positions import Rotary
from mpnn.weights import AdditiveScore, EdgeLearned, QKSoftmax

EXACT = {"rtol": 1e-11, "atol": 1e-11}
EDGES = torch.tensor([[2, 0, 0, 1, 1, 4, 3, 1, 4, 0], [1, 1, 1, 0, 1, 4, 0, 2, 2, 2]])
RULES: dict[str, Neighbours] = {
    "AllTokens": AllTokens(),
    "causal": AllTokens(causal=True),
    "Full": Full(5),
    "Window": Window(1),
    "Window | Global": Window(1) | Global(1),
    "Blocks": Blocks(2),
    "Grid": Grid(5, 3),
    "Graph": Graph(EDGES, 5, self_loops="add"),
}


def layer_and_heads(rule: Neighbours) -> tuple[MessagePassing, Tensor, list[Tensor]]:
    """A layer, tokens, and the layer's queries, keys and values of them by head."""
    layer = MessagePassing(rule, QKSoftmax(8, heads=2)).double()
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    weight: Any = layer.weight
    heads = [m(x).unflatten(-1, (2, 4)).transpose(-3, -2) for m in (weight.query, weight.key, weight.value)]
    return layer, x, heads


@pytest.mark.parametrize("shape", [(5, 5), (2, 5, 5), (3, 1, 5, 5), (3, 2, 1, 5)])
@pytest.mark.parametrize("name", RULES)
def test_a_score_bias_is_that_of_attend(name: str, shape: tuple[int, ...]) -> None:
    layer, x, heads = layer_and_heads(RULES[name])
    bias = torch.randn(shape, dtype=torch.float64)
    found, grads = [], []
    for alone in (False, True):
        given = bias.clone().requires_grad_()
        if alone:
            with use_kernels("reference"):
                y = attend(*heads, RULES[name], score_bias=given)
            y = layer.weight.output(y.transpose(-3, -2).flatten(-2))  # type: ignore[misc, operator]
        else:
            y = layer(x, score_bias=given)
            assert not torch.allclose(y, layer(x))
        found.append(y)
        grads.append(torch.autograd.grad(y.sin().sum(), [given, layer.weight.key.weight], retain_graph=True))
    torch.testing.assert_close(*found, **EXACT)
    torch.testing.assert_close(grads[1], grads[0], **EXACT)


def test_a_bias_of_edges() -> None:
    layer = MessagePassing(Graph(self_loops="replace"), QKSoftmax(8, heads=2)).double()
    x, bias = torch.randn(5, 8, dtype=torch.float64), torch.randn(10, 2, dtype=torch.float64)
    y, edges = layer(x, EDGES, score_bias=bias, return_weights=True)
    plain, before = layer(x, EDGES, return_weights=True)
    change = (edges.weight / before.weight).log()
    row = torch.where(edges.index[:, None] < 0, 0, bias[edges.index])  # an added loop has none
    centred = change - row
    for target in range(5):  # the softmax takes a constant of each target away
        mine = centred[edges.target == target]
        torch.testing.assert_close(mine, mine[:1].expand_as(mine), **EXACT)
    assert not torch.allclose(y, plain)


@pytest.mark.parametrize("name", [n for n in RULES if n not in ("Full", "Graph")])
@pytest.mark.parametrize("masked", [False, True])
def test_keys_and_values_apart(name: str, masked: bool) -> None:
    rule = RULES[name]
    apart = MessagePassing(rule, QKSoftmax(8, heads=2, source_channels=(6, 4))).double()
    x, keys, values = (torch.randn(3, 5, c, dtype=torch.float64) for c in (8, 6, 4))
    given = {"mask": torch.rand(3, 5) < 0.7} if masked else {}
    joined = apart(x, source=torch.cat([keys, values], -1), **given)
    torch.testing.assert_close(apart(x, source=(keys, values), **given), joined, **EXACT)
    one = MessagePassing(rule, QKSoftmax(8, heads=2)).double()
    source = torch.randn(3, 5, 8, dtype=torch.float64)
    torch.testing.assert_close(one(x, source=(source, source), **given), one(x, source=source, **given), **EXACT)
    if masked:
        lost = (~given["mask"])[..., None]
        dirty = [t.masked_fill(lost, torch.nan) for t in (keys, values)]
        assert torch.equal(apart(x, source=tuple(dirty), **given), apart(x, source=(keys, values), **given))


@pytest.mark.parametrize("rule", [AllTokens(), Window(1), KNN(2), Graph(EDGES, 5, self_loops="add")], ids=str)
def test_one_set_as_sources_with_a_mask_and_targets_without(rule: Neighbours) -> None:
    weight = QKSoftmax(8, heads=2, position=Rotary(4))
    layer = MessagePassing(rule, weight).double()
    x, mask = torch.randn(5, 8, dtype=torch.float64), torch.tensor([True, True, False, True, True])
    y = layer(x, source=x, mask=mask)
    if not rule.reads_tokens:  # a mask takes tokens from the neighbours of a KNN before they are counted
        torch.testing.assert_close(y, layer(x, pair_mask=mask, positions=mask.cumsum(0) - 1), **EXACT)
    torch.testing.assert_close(y[mask], layer(x, mask=mask)[mask], **EXACT)
    torch.testing.assert_close(layer(x, source=x), layer(x), **EXACT)
    batch = torch.tensor([0, 0, 0, 1, 1])
    if not isinstance(rule, Graph):
        torch.testing.assert_close(layer(x, source=x, batch=batch), layer(x, batch=batch), **EXACT)


@pytest.mark.parametrize("masked", ["none", "mask", "pairs", "bias", "all"])
@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("rule", [AllTokens(), Full(5)], ids=str)
def test_the_weights_of_all_pairs_are_those_of_the_edges(rule: Neighbours, kv_heads: int, masked: str) -> None:
    """Of all pairs one product makes the weights; a window as wide as the tokens makes them pair by pair."""
    weight = QKSoftmax(8, heads=2, kv_heads=kv_heads).double()
    layer, listed = MessagePassing(rule, weight), MessagePassing(Window(5), weight)
    x, everything = torch.randn(3, 5, 8, dtype=torch.float64), masked == "all"
    given: dict[str, Any] = {}
    if masked in ("mask", "all"):
        given["mask"] = (torch.rand(3, 5) < 0.6).index_fill(0, torch.tensor([1]), False)
    if masked in ("pairs", "all"):
        given["pair_mask"] = torch.rand(2, 5, 5) < 0.6
    if masked in ("bias", "all"):
        given["score_bias"] = torch.randn(3, 2, 5, 5, dtype=torch.float64)
    found = [m(x, **given, return_weights=True)[1] for m in (layer, listed)]
    assert torch.equal(found[0].source, found[1].source) and torch.equal(found[0].target, found[1].target)
    torch.testing.assert_close(found[0].weight, found[1].weight, **EXACT)
    grads = [torch.autograd.grad(f.weight.square().sum(), weight.key.weight)[0] for f in found]
    torch.testing.assert_close(*grads, **EXACT)
    assert not grads[0].isnan().any() and (grads[0].any() or everything)


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"score_bias": torch.ones(5, 5).bool()},
        TypeError,
        "score_bias of a floating dtype, got torch.bool; .*pair_mask=",
    ),
    ({"score_bias": torch.ones(4, 5)}, ValueError, r"score_bias to broadcast to \(..., heads, N, M\).*got \(4, 5\)"),
    ({"score_bias": 1.0}, TypeError, r"score_bias to be a tensor \(..., heads, N, M\), got float"),
    ({"source": [torch.ones(5, 8)]}, TypeError, r"source to be a tensor .*\(keys, values\), got list of Tensor"),
    ({"source": (torch.ones(5, 8), 1)}, TypeError, r"source to be a tensor .*, got tuple of Tensor, int"),
    ({"source": (torch.ones(5, 8), torch.ones(4, 8))}, ValueError, r"values of shape \(5, 8\), .*, got \(4, 8\)"),
    ({"source": (torch.ones(5, 8), torch.ones(5, 6))}, ValueError, r"values of shape \(5, 8\), .*, got \(5, 6\)"),
    ({"source": (torch.ones(5, 6), torch.ones(5, 8))}, ValueError, r"x_source of shape \(..., N, 8\).*, got \(5, 6\)"),
    ({"source": (torch.ones(5, 8), torch.ones(5, 8).double())}, TypeError, "values of dtype torch.float32"),
]


@pytest.mark.parametrize(("given", "error", "words"), WRONG)
def test_wrong_calls(given: dict, error: type[Exception], words: str) -> None:
    layer = MessagePassing(AllTokens(), QKSoftmax(8, heads=2))
    for call in (layer, layer.plan):
        with pytest.raises(error, match=words):
            call(torch.ones(5, 8), **given)


def test_what_would_be_ignored() -> None:
    layer = MessagePassing(AllTokens(), EdgeLearned(4, 4, AdditiveScore(4, 2), heads=2, normalise="softmax"))
    x = torch.ones(5, 4)
    with pytest.raises(ValueError, match="score_bias would be ignored by EdgeLearned"):
        layer(x, score_bias=torch.ones(5, 5))
    with pytest.raises(TypeError, match=r"source to be a tensor .* for EdgeLearned, got tuple of Tensor, Tensor"):
        layer(x, source=(x, x))
