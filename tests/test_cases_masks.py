"""Cases 7 to 14: masks, on every kernel that can run them."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.calls import Trial, product, trial
from helpers.cases import PLACES
from helpers.over import over
from kernel_choice import able, on_each
from mpnn import MessagePassing, Tokens, attend, use_kernels
from mpnn.models import Transformer
from mpnn.neighbours import AllTokens, Full, Graph, Grid, Window
from mpnn.positions import ScoreBias
from mpnn.weights import AdditiveScore, EdgeLearned, QKSoftmax, SharedKernel, Static, Weight

T, N = True, False


def test_case_7_true_takes_part() -> None:
    q, v = torch.zeros(1, 2, 1), torch.tensor([[[10.0], [20.0]]])
    mask = torch.tensor([[T, N], [T, T]])
    for kernel, y in on_each(lambda: attend(q, q, v, AllTokens(), pair_mask=mask)):
        assert y.flatten().tolist() == [10, 15], kernel
    two = q.expand(2, 1, 2, 1), q.expand(2, 1, 2, 1), v.expand(2, 1, 2, 1)
    for kernel, y in on_each(lambda: attend(*two, AllTokens(), mask=mask)):
        assert y.flatten(1).tolist() == [[10, 10], [15, 15]], kernel
    torch_says = nn.MultiheadAttention(1, 1, bias=False, batch_first=True)
    with torch.no_grad():
        torch_says.in_proj_weight.copy_(torch.tensor([[0.0], [0.0], [1.0]]))
        torch_says.out_proj.weight.fill_(1)
        opposite = torch_says(v, v, v, attn_mask=~mask)[0]
    assert opposite.flatten().tolist() == [10, 15], "torch's True removes a pair"


WRONG_MASKS = [torch.ones(4), torch.ones(4, dtype=torch.int64), torch.ones(4, dtype=torch.uint8)]


@pytest.mark.parametrize("mask", WRONG_MASKS, ids=lambda m: str(m.dtype))
def test_case_8_masks_are_bool(mask: Tensor) -> None:
    x, q = torch.zeros(4, 6), torch.zeros(2, 4, 3)
    says = f"expected {{}} of dtype bool .*, got {mask.dtype}; pass a bool mask, or .*score_bias="
    attention, conv = MessagePassing(AllTokens(), QKSoftmax(6, 2)), MessagePassing(Grid(4), SharedKernel(6, 6))
    for call in (
        lambda: attention(x, mask=mask),
        lambda: conv(x, mask=mask),
        lambda: attend(q, q, q, AllTokens(), mask=mask),
        lambda: Tokens(x, mask=mask),
        lambda: attention((x, x), mask=mask),
        lambda: Transformer(6, 8, 1, 2)(x, mask=mask),
    ):
        with pytest.raises(TypeError, match=says.format("mask")):
            call()
    for call in (
        lambda: attention(x, pair_mask=mask.expand(4, 4)),
        lambda: conv(x, pair_mask=mask.expand(4, 4)),
        lambda: attend(q, q, q, AllTokens(), pair_mask=mask.expand(4, 4)),
        lambda: Transformer(6, 8, 1, 2)(x, pair_mask=mask.expand(4, 4)),
    ):
        with pytest.raises(TypeError, match=says.format("pair_mask")):
            call()


def kernels(made: Trial) -> list[str]:
    return [*made.able(), "reference"]


def gradients(y: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    found = torch.autograd.grad(y, list(leaves.values()), materialize_grads=True, retain_graph=True)
    return dict(zip(leaves, found, strict=True))


def of_nothing(made: Trial, targets: Tensor | None, out: tuple[int, ...]) -> Tensor:
    """What is left where the aggregate is 0: the biases, and the root of the targets' own tokens."""
    rule = made.layer.weight
    y = torch.zeros(out, dtype=torch.float64)
    for bias in (rule.bias, None if rule.output is None else rule.output.bias):
        y = y if bias is None else y + bias
    if rule.root is not None:
        y = y + (
            rule.root(torch.zeros(1, rule.root.in_features, dtype=torch.float64))
            if targets is None
            else rule.root(targets)
        )
    return y


BATCHED = [(p, r) for p, r in product("few") if not PLACES[p].alone]


@over(BATCHED)
def test_case_9_a_sample_without_tokens(place: str, rule: str) -> None:
    made = trial(place, rule)
    sources = made.leaves["source"].shape[-2]
    mask = torch.stack([torch.ones(sources), torch.zeros(sources)]).bool()
    targets = made.leaves["target"][1] if "target" in made.leaves else None
    x, arguments = made.bound()
    for kernel in able(made.layer, x, **arguments, mask=mask):
        with use_kernels(kernel):
            y, edges = made(mask=mask, return_weights=True)
            alone = made()
        torch.testing.assert_close(y[1], of_nothing(made, targets, y[1].shape), rtol=0, atol=1e-14)
        if made.layer.weight.normalise != "symmetric" or made.layer.neighbours.__class__ is not Graph:
            torch.testing.assert_close(y[0], alone[0], rtol=0, atol=1e-12)
        assert edges.weight.shape[0] == 2 and not edges.weight[1].any()
        for loss in (y.square().sum(), y[0].square().sum()):
            assert all(g.isfinite().all() for g in gradients(loss, made.leaves).values()), kernel
        assert not gradients(y[1].sum(), {"source": made.leaves["source"]})["source"].any()


NO_SOURCES: dict[str, tuple[Any, Any]] = {
    "attention": (lambda: AllTokens(), lambda: QKSoftmax(4, 2)),
    "causal attention": (lambda: AllTokens(causal=True), lambda: QKSoftmax(4, 2)),
    "window attention": (lambda: Window(1), lambda: QKSoftmax(4, 2)),
    "graph attention": (lambda: Graph(), lambda: QKSoftmax(4, 2)),
    "additive": (lambda: AllTokens(), lambda: EdgeLearned(4, 4, AdditiveScore(4, 2), heads=2, normalise="softmax")),
    "additive graph": (lambda: Graph(), lambda: EdgeLearned(4, 4, AdditiveScore(4, 2), heads=2, normalise="softmax")),
    "graph convolution": (lambda: Graph(), lambda: SharedKernel(4, 4)),
    "graph maximum": (lambda: Graph(), lambda: SharedKernel(4, 4, reduce="max")),
    "graph mean": (lambda: Graph(), lambda: SharedKernel(4, 4, fixed=True, reduce="mean", output=True)),
    "window": (lambda: Window(1), lambda: SharedKernel(4, 4)),
    "mixing": (lambda: AllTokens(max_tokens=3), lambda: Static(4, 4, heads=2)),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_SOURCES)
def test_case_9_no_sources_at_all(name: str) -> None:
    rule, weight = (make() for make in NO_SOURCES[name])
    layer = MessagePassing(rule, weight)
    bias = weight.bias if weight.output is None else weight.output.bias
    nn.init.normal_(bias)
    source, x = torch.zeros(2, 0, 4, requires_grad=True), torch.randn(2, 3, 4, requires_grad=True)
    given = {"edge_index": torch.zeros(2, 0, dtype=torch.int64)} if isinstance(rule, Graph) else {}
    for kernel in able(layer, x, **given, source=source):
        with use_kernels(kernel):
            y, edges = layer(x, **given, source=source, return_weights=True)
        assert torch.equal(y, bias.expand(2, 3, 4)), kernel
        assert edges.source.numel() == 0 and edges.weight.numel() == 0
        wanted = {"x": x, "source": source, **dict(layer.named_parameters())}
        found = gradients(y.sum(), wanted)
        assert not any(g.any() for k, g in found.items() if not k.endswith("bias")), kernel
        assert all(g.isfinite().all() for g in found.values())


CAUSAL: dict[str, Weight] = {
    "attention": QKSoftmax(6, 2),
    "additive": EdgeLearned(6, 6, AdditiveScore(6, 2), heads=2, normalise="softmax"),
}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("weight", CAUSAL)
def test_case_10_causal_and_padded(weight: str, weights: bool, padded: bool) -> None:
    rules = {"causal": AllTokens(causal=True), "window": Window(4, 0), "pairs": AllTokens()}
    layers = {name: MessagePassing(rule, copy.deepcopy(CAUSAL[weight])).double() for name, rule in rules.items()}
    for layer in layers.values():
        layer.load_state_dict(layers["causal"].state_dict())
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    other = torch.cat([x[:, :4], torch.randn(2, 1, 6, dtype=torch.float64)], 1)
    mask = torch.tensor([[T, T, T, T, T], [N, N, T, T, T]]) if padded else None
    lower = torch.ones(5, 5).tril().bool()
    combined = lower if mask is None else lower & mask[:, None, None]
    real = torch.ones(2, 5, dtype=torch.bool) if mask is None else mask

    def run(name: str, given: Tensor) -> Tensor:
        options = {"mask": mask} if name != "pairs" else {"pair_mask": combined}
        out = layers[name](given, return_weights=weights, **options)
        if not weights:
            return out
        edges = out[1]
        assert not edges.weight[..., edges.source > edges.target, :].any()
        total = edges.weight.new_zeros(2, 5, 2).index_add(1, edges.target, edges.weight)
        torch.testing.assert_close(total[real], torch.ones_like(total[real]))
        return out[0]

    expected = None
    for name in rules:
        for kernel, y in on_each(lambda name=name: run(name, x)):
            expected = y if expected is None else expected
            torch.testing.assert_close(y[real], expected[real], rtol=0, atol=1e-12, msg=f"{name} on {kernel}")
            with use_kernels(kernel):
                assert torch.equal(run(name, other)[:, :4], y[:, :4]), "the last token is not seen before"
    if weight == "attention":
        rule = layers["causal"].weight
        q, k, v = (p(x).unflatten(-1, (2, 3)).transpose(1, 2) for p in (rule.query, rule.key, rule.value))
        alone = ~combined.expand(2, 2, 5, 5).any(-1, keepdim=True)
        told = F.scaled_dot_product_attention(q, k, v, combined | alone).transpose(1, 2).flatten(2)
        torch.testing.assert_close(expected[real], rule.output(told)[real], rtol=0, atol=1e-12)


def masked_leaves(made: Trial) -> list[tuple[Tensor, Tensor]]:
    """(tensor over tokens, its mask) of a call."""
    ends = [(end, name) for end in ("source", "target") for name in (end, f"{end} coordinates") if name in made.leaves]
    return [(made.leaves[name], made.tensors[f"{end} mask"]) for end, name in ends]


@over(product("few"))
def test_case_11_what_a_mask_removes_is_not_seen(place: str, rule: str) -> None:
    made = trial(place, rule, mask="batched")
    hidden = [(leaf, ~mask[..., None].expand_as(leaf)) for leaf, mask in masked_leaves(made)]
    hidden = [(leaf, where) for leaf, where in hidden if where.any()]
    assert masked_leaves(made)
    for kernel in kernels(made):
        seen = None
        for fill in (0.0, 1e10, math.inf, math.nan):
            with torch.no_grad():
                for leaf, where in hidden:
                    leaf.masked_fill_(where, fill)
            with use_kernels(kernel):
                y = made()
            found = {"output": y.detach()} | gradients(y.square().sum(), made.leaves)
            seen = found if seen is None else seen
            assert all(t.isfinite().all() for t in found.values()), (kernel, fill)
            assert [k for k in seen if not torch.equal(seen[k], found[k])] == [], (kernel, fill)
        for leaf, where in hidden:
            assert not next(found[k] for k, t in made.leaves.items() if t is leaf)[where].any()


BIAS = torch.randn(3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
EACH = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)) < 0.7


@pytest.mark.parametrize("rule", [AllTokens(), AllTokens(causal=True), Full(4), Window(2), Grid((2, 2), 3)], ids=str)
@pytest.mark.parametrize("given", ["pair mask", "float bias", "no bias"])
def test_case_12_evaluation_equals_training_without_dropout(rule: Any, given: str) -> None:
    class Given(ScoreBias):
        heads = 3

        def forward(self, target: Tensor, source: Tensor) -> Tensor:
            return BIAS[:, target, source].movedim(0, -1)

    weight = QKSoftmax(6, 3, bias=given != "no bias", score_bias=Given() if given == "float bias" else None)
    layer = MessagePassing(rule, weight).double()
    x = torch.randn(2, 4, 6, dtype=torch.float64, requires_grad=True)
    options = {"pair_mask": EACH} if given == "pair mask" else {}
    answers = []
    for kernel in able(layer, x, **options):
        with use_kernels(kernel):
            answers.append(layer.train()(x, **options).detach())
            with torch.no_grad():
                answers.append(layer.eval()(x, **options))
            with torch.inference_mode():
                answers.append(layer(x, **options).clone())
    for answer in answers:
        torch.testing.assert_close(answer, answers[0], rtol=0, atol=1e-13)


DROPPED: dict[str, Any] = {
    "attention": lambda p: MessagePassing(AllTokens(), QKSoftmax(6, 2, dropout=p)),
    "causal": lambda p: MessagePassing(AllTokens(causal=True), QKSoftmax(6, 2, dropout=p)),
    "fixed set": lambda p: MessagePassing(Full(5), QKSoftmax(6, 2, dropout=p)),
    "window": lambda p: MessagePassing(Window(1), QKSoftmax(6, 2, dropout=p)),
    "grid": lambda p: MessagePassing(Grid(5), QKSoftmax(6, 2, dropout=p)),
    "graph": lambda p: MessagePassing(Graph(), QKSoftmax(6, 2, dropout=p)),
    "additive": lambda p: MessagePassing(
        Graph(), EdgeLearned(6, 6, AdditiveScore(6, 2), heads=2, normalise="softmax", dropout=p)
    ),
    "network": lambda p: MessagePassing(
        AllTokens(), EdgeLearned(6, 6, AdditiveScore(6, 2), heads=2, dropout=p)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DROPPED)
def test_case_13_no_dropout_in_evaluation(name: str) -> None:
    layer, plain = DROPPED[name](0.9).eval(), DROPPED[name](0.0).eval()
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(5, 6)
    edges = {"edge_index": torch.tensor([[0, 1, 2, 2, 4], [1, 1, 0, 3, 3]])} if name in ("graph", "additive") else {}
    for kernel in able(layer, x, **edges):
        with use_kernels(kernel):
            expected = plain(x, **edges)
            for again in (layer, layer, copy.deepcopy(layer)):
                assert torch.equal(again(x, **edges), expected), kernel
    compiled = torch.compile(copy.deepcopy(layer), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, **edges), plain(x, **edges))
    torch.testing.assert_close(compiled(x, **edges), plain(x, **edges))
    dropped = layer.train()
    assert not torch.allclose(dropped(x, **edges), plain(x, **edges)), "in training it drops"


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", ["attention", "additive", "mixing", "graph"])
def test_case_14_cross_attention_to_one_source(name: str, batch: int) -> None:
    additive = EdgeLearned(6, 6, AdditiveScore(6, 2), heads=2, normalise="softmax")
    rules: dict[str, Any] = {
        "attention": (AllTokens(), QKSoftmax(6, 2)),
        "additive": (AllTokens(), additive),
        "mixing": (AllTokens(max_tokens=4), Static(6, 6, heads=2, normalise="softmax", output=True)),
        "graph": (Graph(torch.tensor([[0, 1] * 4, [0, 0, 1, 1, 2, 2, 3, 3]]), (2, 4)), additive),
    }
    rule, weight = rules[name]
    layer = MessagePassing(rule, weight)
    x, source = torch.randn(4, 6).expand(batch, 4, 6), torch.randn(2, 6).expand(batch, 2, 6)
    mask = torch.tensor([T, N]).expand(batch, 2)
    value = weight.value(source[0, 0])
    expected = value if weight.output is None else weight.output(value)
    expected = expected if weight.bias is None else expected + weight.bias
    for given in (mask, mask[0]):
        for kernel in able(layer, x, source=source, mask=given):
            with use_kernels(kernel):
                y, edges = layer(x, source=source, mask=given, return_weights=True)
            torch.testing.assert_close(y, expected.expand(batch, 4, 6), msg=kernel)
            assert (
                edges.weight[..., edges.source == 0, :].eq(1).all()
                and not edges.weight[..., edges.source == 1, :].any()
            )
