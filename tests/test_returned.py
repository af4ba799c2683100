"""return_weights and capture_weights: the edges really used, in order, with the weights that make the output."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.calls import Trial, product, seen, trial
from helpers.cases import PLACES
from helpers.oracle_pairs import pairs_of
from helpers.over import over
from kernel_choice import able
from mpnn import MessagePassing, attend, capture_weights, use_kernels
from mpnn.models import CNN, GNN, MLP, Transformer
from mpnn.neighbours import AllTokens, Graph, Window
from mpnn.weights import AdditiveScore, EdgeLearned, QKSoftmax, SharedKernel, Weight

FEW = product("few")


def ends(made: Trial) -> tuple[Tensor, Tensor | None]:
    """(source, target) tokens of a call, cleaned; target is None where the layer has its own."""
    rule = made.layer.neighbours
    cleaned = []
    for end in ("source", "target"):
        x, mask = made.tensors.get(end), made.tensors.get(f"{end} mask")
        cleaned.append(x if x is None or mask is None else x.masked_fill(~mask[..., None], 0))
    source, target = cleaned
    if target is None and rule.target_count(source.shape[-2], grid_of(made)) is None:
        target = source
    return source, target


def grid_of(made: Trial) -> Any:
    return None if made.grid is None else SimpleNamespace(grid=made.grid)


def recomputed(made: Trial, edges: Any) -> Tensor:
    """The equation from the edges that a call returned: y_i = output(reduce_j w_ij value_j) + root + bias."""
    rule: Weight = made.layer.weight
    source, target = ends(made)
    parts = getattr(rule, "split", None)  # a source token that is keys and values side by side
    sent = source if parts is None else source.split(parts, -1)[1]
    values = sent if rule.value is None else rule.value(sent)
    sent = values.index_select(-2, edges.source)  # (..., E, C)
    if rule.groups is not None:
        blocks = sent.unflatten(-1, (rule.groups, -1))
        messages = torch.einsum("...egoi,...egi->...ego", edges.weight, blocks).flatten(-2)
    else:
        kv_heads = getattr(rule, "kv_heads", rule.heads)
        blocks = sent.unflatten(-1, (kv_heads, -1)).repeat_interleave(rule.heads // kv_heads, -2)
        if isinstance(rule, QKSoftmax) and rule.edge is not None:
            row = torch.arange(len(edges.source)) if edges.index is None else edges.index
            attr = made.tensors["edge_attr"].index_select(-2, row)
            blocks = blocks + rule.edge(attr).unflatten(-1, (rule.heads, -1))
        messages = (edges.weight[..., None] * blocks).flatten(-2)
    n = count(made)
    rows = []
    for i in range(n):
        mine = messages[..., edges.target == i, :]
        if rule.reduce == "max":
            there = kept(made, edges)[..., edges.target == i, None]
            mine = mine.masked_fill(~there, -torch.inf)
            top = mine.amax(-2) if mine.shape[-2] else mine.sum(-2)
            rows.append(top.masked_fill(top == -torch.inf, 0))
        elif rule.reduce == "mean":
            there = kept(made, edges)[..., edges.target == i].sum(-1, keepdim=True)
            rows.append(mine.sum(-2) / there.clamp(min=1))
        else:
            rows.append(mine.sum(-2))
    y = torch.stack(rows, -2)
    y = y if rule.output is None else rule.output(y)
    y = y if rule.bias is None else y + rule.bias
    if rule.root is None:
        return y
    if target is None:
        target = source.index_select(-2, made.layer.neighbours.centres(grid_of(made), source.device))
    return y + rule.root(target)


def count(made: Trial) -> int:
    source, target = ends(made)
    own = made.layer.neighbours.target_count(source.shape[-2], grid_of(made))
    return own if own is not None else target.shape[-2]


def kept(made: Trial, edges: Any) -> Tensor:
    """Which of the edges no mask removes: (..., E)."""
    mask = torch.ones(len(edges.source), dtype=torch.bool)
    target_mask = made.tensors.get("target mask")
    if target_mask is None and "target" not in made.tensors and ends(made)[1] is not None:
        target_mask = made.tensors.get("source mask")
    for side, at in ((made.tensors.get("source mask"), edges.source), (target_mask, edges.target)):
        mask = mask if side is None else mask & side.index_select(-1, at)
    return mask


def listed(place: str, made: Trial) -> list[Any]:
    p = PLACES[place]
    graph = {k: made.tensors.get(k) for k in ("edge_index", "edge_type")} | seen(made.tensors)
    sources = made.tensors["source"].shape[-2]
    return pairs_of(made.layer.neighbours, count(made), sources, batch=p.batch, grid=made.grid, **graph)


@over(FEW)
def test_order_index_and_shapes(place: str, rule: str) -> None:
    made = trial(place, rule)
    weight, lead = made.layer.weight, made.tensors["source"].shape[:-2]
    pairs = listed(place, made)
    for kernel in [*made.able(), "reference"]:
        with use_kernels(kernel):
            y, edges = made(return_weights=True)
            assert torch.equal(y, made()), "asking for the weights changes the output"
        assert edges.source.dtype == edges.target.dtype == torch.int64
        assert list(zip(edges.source.tolist(), edges.target.tolist(), strict=True)) == [
            (p.source, p.target) for p in pairs
        ]
        if isinstance(made.layer.neighbours, Graph):
            assert edges.index.tolist() == [p.row for p in pairs]
        shape = (weight.heads,)
        if weight.groups is not None:
            shape = (weight.groups, weight.after // weight.groups, weight.before // weight.groups)
        assert edges.weight.shape == (*lead, len(pairs), *shape)
        assert edges.weight.dtype == torch.float64


# The mean attributes of added loops are held by the tests against PyG.
PLAIN = [(p, r) for p, r in FEW if not (r in ("TransformerConv", "GAT edges", "GATv2") and "loops" in p)]


@pytest.mark.parametrize("mask", [None, "batched"])
@over(PLAIN)
def test_the_output_is_made_of_what_is_returned(place: str, rule: str, mask: str | None) -> None:
    """Value and gradients: what flows through the weights that were returned is what flows through the layer."""
    made = trial(place, rule, mask=mask)
    y, edges = made(return_weights=True)
    told = recomputed(made, edges)
    torch.testing.assert_close(told, y, rtol=0, atol=1e-12)
    leaves, up = list(made.leaves.values()), torch.randn_like(y)
    ours = torch.autograd.grad(y, leaves, up, materialize_grads=True, retain_graph=True)
    theirs = torch.autograd.grad(told, leaves, up, materialize_grads=True)
    for name, a, b in zip(made.leaves, ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10, msg=name)


@pytest.mark.parametrize("pair_mask", [None, "heads"])
@over(FEW)
def test_masked_pairs_have_weight_0_and_softmax_sums_to_1(place: str, rule: str, pair_mask: str | None) -> None:
    made = trial(place, rule, mask="batched", pair_mask=pair_mask)
    for kernel in [*made.able(), "reference"]:
        with use_kernels(kernel), torch.no_grad():
            _, edges = made(return_weights=True)
        weight = edges.weight.flatten(-3) if made.layer.weight.groups is not None else edges.weight  # (..., E, k)
        there = kept(made, edges)[..., None]
        if pair_mask is not None:  # which has one entry for all groups, or one for each head
            pairs = made.tensors["pair_mask"]
            at = edges.target * pairs.shape[-1] + edges.source
            there = there & pairs.flatten(-2).index_select(-1, at).transpose(-2, -1)
        there = there.expand_as(weight)
        assert not weight[~there].any(), kernel
        if made.layer.weight.normalise == "softmax":
            rows = weight.new_zeros(*weight.shape[:-2], count(made), weight.shape[-1])
            total = rows.index_add(-2, edges.target, weight)
            some = rows.index_add(-2, edges.target, there.double()) > 0
            torch.testing.assert_close(total, some.double(), rtol=0, atol=1e-12)
            assert (weight >= 0).all()


@pytest.mark.parametrize("loops", ["add", "replace"])
def test_masked_nodes_get_no_loop(loops: str) -> None:
    layer = MessagePassing(
        Graph(self_loops=loops), EdgeLearned(2, 4, AdditiveScore(4, 2), heads=2, normalise="softmax")
    )
    index, mask = torch.tensor([[0, 1, 2], [1, 2, 2]]), torch.tensor([True, True, False, False])
    x = torch.randn(4, 2)
    for kernel in able(layer, x, index, mask=mask):
        with use_kernels(kernel):
            _, edges = layer(x, index, mask=mask, return_weights=True)
        rows = [0, 1, 2, -1, -1] if loops == "add" else [0, 1, -1, -1]
        assert edges.index.tolist() == rows
        assert edges.source[edges.index < 0].tolist() == [0, 1]
        assert not edges.weight[~mask[edges.target]].any()


@pytest.mark.parametrize("lead", [(), (2,)])
def test_no_nodes_return_no_weights(lead: tuple[int, ...]) -> None:
    layer = MessagePassing(Graph(torch.zeros(2, 0, dtype=torch.int64), 0, self_loops="add"), SharedKernel(2, 2))
    y, edges = layer(torch.ones(*lead, 0, 2), mask=torch.ones(*lead, 0).bool(), return_weights=True)
    assert y.shape == (*lead, 0, 2) and edges.weight.shape == (*lead, 0, 1, 2, 2)


def test_weights_of_a_batch_follow_each_sample() -> None:
    layer = MessagePassing(Graph(), EdgeLearned(2, 4, AdditiveScore(4, 2), heads=2, normalise="softmax"))
    index, x = torch.tensor([[0, 1, 0, 2], [1, 2, 2, 0]]), torch.randn(3, 2, 4, 2)
    _, together = layer(x, index, return_weights=True)
    assert together.weight.shape == (3, 2, 4, 2)
    for b, c in [(0, 0), (1, 1), (2, 0)]:
        torch.testing.assert_close(together.weight[b, c], layer(x[b, c], index, return_weights=True)[1].weight)


@pytest.mark.parametrize(
    "rule", [AllTokens(), AllTokens(causal=True), Window(1), Graph(torch.tensor([[2, 0, 1], [0, 0, 2]]), 4)], ids=str
)
def test_attend_returns_its_weights(rule: Any) -> None:
    q, k, v = (torch.randn(2, h, 4, 3, dtype=torch.float64, requires_grad=True) for h in (4, 2, 2))
    y, edges = attend(q, k, v, rule, return_weights=True)
    assert torch.equal(y, attend(q, k, v, rule))
    assert edges.weight.shape == (2, len(edges.source), 4)
    told = edges.weight.transpose(-2, -1)[..., None] * v.repeat_interleave(2, 1)[..., edges.source, :]
    told = torch.zeros_like(y).index_add(-2, edges.target, told)
    torch.testing.assert_close(told, y, rtol=0, atol=1e-12)
    for a, b in zip(
        *(torch.autograd.grad(t.square().sum(), (q, k, v), retain_graph=True) for t in (y, told)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize("masked", [False, True])
def test_a_row_that_a_bias_blanks_has_weights_of_0(masked: bool) -> None:
    """Alone, or where the masks leave it one source."""
    q, k = (torch.randn(1, 3, 2, requires_grad=True) for _ in range(2))
    bias = torch.zeros(3, 3)
    bias[1, 1 if masked else slice(None)] = -torch.inf
    mask = torch.tensor([[1, 1, 1], [0, 1, 0], [0, 0, 0]]).bool() if masked else None
    found = [
        attend(q, k, k, r, score_bias=bias, pair_mask=mask, return_weights=True)[1].weight
        for r in (AllTokens(), Window(2))
    ]
    torch.testing.assert_close(*found)
    assert not found[0][3:6].any()
    torch.testing.assert_close(*(torch.autograd.grad(w.square().sum(), (q, k)) for w in found))


INDEX = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]])
MODELS: dict[str, tuple[Any, tuple, int]] = {
    "mlp": (lambda: MLP((4, 5, 3)), (torch.ones(2, 4),), 2),
    "cnn": (lambda: CNN(1, (4, 4), 3, size=(4, 4)), (torch.ones(2, 16, 1),), 2),
    "gnn": (lambda: GNN(2, (4, 4, 4), 3, residual=True), (torch.randn(3, 2), INDEX), 3),
    "transformer": (lambda: Transformer(2, 8, 2, 3), (torch.randn(2, 5, 2),), 2),
}


@pytest.mark.parametrize("name", MODELS)
def test_capture_changes_nothing(name: str) -> None:
    make, arguments, layers = MODELS[name]
    model = make()
    expected = model(*arguments)
    with capture_weights(model) as found:
        y = model(*arguments)
        model(*arguments)
    assert torch.equal(y, expected)
    modules = dict(model.named_modules())
    assert list(found) == [n for n, m in modules.items() if isinstance(m, MessagePassing)]
    assert len(found) == layers and all(len(calls) == 2 for calls in found.values())
    assert not any(call.weight.requires_grad for calls in found.values() for call in calls)
    after = model(*arguments)
    assert torch.equal(after, expected) and all(len(calls) == 2 for calls in found.values()), "it stops at its end"
    y.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_capture_gives_what_the_layers_return() -> None:
    first, second = MessagePassing(Graph(), SharedKernel(2, 4)), MessagePassing(Graph(), QKSoftmax(4, 2, dropout=0.5))

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.parts = first, nn.ModuleList([second])

        def forward(self, x: Tensor) -> Tensor:
            return self.parts[0](self.parts[0](self.first(x, INDEX), INDEX), INDEX)

    model, x = Two().train(), torch.randn(3, 2)
    torch.manual_seed(0)
    plain = model(x)
    torch.manual_seed(0)
    with capture_weights(model) as found:
        assert torch.equal(model(x), plain), "the same random numbers"
    assert {name: len(calls) for name, calls in found.items()} == {"first": 1, "parts.0": 2}
    hidden, told = first(x, INDEX, return_weights=True)
    torch.testing.assert_close(found["first"][0].weight, told.weight)
    torch.testing.assert_close(found["parts.0"][0].weight, second(hidden, INDEX, return_weights=True)[1].weight)
    assert torch.equal(found["parts.0"][0].index, torch.arange(4))


def test_capture_inside_capture_and_of_a_shared_layer() -> None:
    layer = MessagePassing(AllTokens(), QKSoftmax(4, 2))
    model, x = nn.Sequential(layer, nn.Identity(), layer), torch.randn(3, 4)
    with capture_weights(model) as outer, capture_weights(layer) as inner:
        model(x)
        MessagePassing(AllTokens(), QKSoftmax(4, 2))(x)
    assert sum(map(len, outer.values())) == 2
    assert [len(calls) for calls in inner.values()] == [2]


def test_captured_weights_know_the_sizes_and_the_family() -> None:
    """Tokens without an edge count too, which no list of edges tells; the families' shapes can look alike."""
    x, index = torch.randn(6, 2, 6, 4), torch.tensor([[0, 1], [2, 2]])
    _, attention = MessagePassing(Graph(), QKSoftmax(4, 2))(x, index, return_weights=True)
    assert attention.size == (6, 6) and attention.family == "heads"
    layer = MessagePassing(Graph(), SharedKernel(4, 3))
    _, kernel = layer(x[0, 0], index, return_weights=True)
    assert kernel.size == (6, 6) and kernel.family == "groups"
    cnn = CNN(1, (2,), 3, size=(9,), stride=2, padding=1)
    with capture_weights(cnn) as found:
        cnn(torch.randn(9, 1))
    assert found["blocks.0.layer"][0].size == (5, 9)
