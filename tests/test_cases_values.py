"""Cases 1 to 6: values that are known to go wrong, on every kernel that can run them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.calls import product, trial
from helpers.cases import PLACES, RULES
from helpers.over import over
from kernel_choice import able
from mpnn import MessagePassing, use_kernels
from mpnn.neighbours import AllTokens, Full, Graph, Grid, Window
from mpnn.weights import AdditiveScore, EdgeLearned, EdgeNetwork, QKSoftmax, SharedKernel, Static, Weight


def index(*pairs: tuple[int, int]) -> Tensor:
    return torch.tensor(pairs).reshape(-1, 2).t().contiguous()


class Ones(EdgeNetwork):
    """A weight of 1 for every edge, as a network says it."""

    def forward(self, pairs: Any) -> Tensor:
        return torch.ones(len(pairs), 1, dtype=pairs.x_source.dtype)


def ones(rule: Weight) -> Weight:
    with torch.no_grad():
        for parameter in rule.parameters():
            parameter.fill_(1)
    return rule


# Rules of one channel whose weight is 1: a message is the source's number.
UNIT: dict[str, Callable[..., Weight]] = {
    "fixed": lambda **k: SharedKernel(1, 1, fixed=True, bias=False, **k),
    "shared": lambda **k: SharedKernel(1, 1, bias=False, **k),
    "shared heads": lambda **k: SharedKernel(1, 1, heads=1, value=False, bias=False, **k),
    "network": lambda **k: EdgeLearned(1, 1, Ones(), bias=False, **k),
    "network heads": lambda **k: EdgeLearned(1, 1, Ones(), heads=1, value=False, bias=False, **k),
}


def unit(rule: str, **options: Any) -> MessagePassing:
    layer = MessagePassing(Graph(), UNIT[rule](**options))
    ones(layer.weight)
    return layer


@pytest.mark.parametrize("rule", UNIT)
def test_case_1_a_negative_degree_is_an_error(rule: str) -> None:
    layer = MessagePassing(Graph(self_loops="add"), UNIT[rule](normalise="symmetric"))
    x, edges, weight = torch.ones(2, 1), index((0, 1)), torch.tensor([-2.0])
    for kernel in able(layer, x, edges, edge_weight=weight):
        with use_kernels(kernel), pytest.raises(ValueError, match=r"expected degrees ≥ 0.*negative degree, got -1$"):
            layer(x, edges, edge_weight=weight)


def test_case_1_a_negative_degree_is_an_error_when_compiled() -> None:
    layer = MessagePassing(Graph(self_loops="add"), SharedKernel(1, 1, normalise="symmetric"))
    run = torch.compile(layer, fullgraph=True, backend="eager")
    assert run(torch.ones(2, 1), index((0, 1)), edge_weight=torch.tensor([2.0])).isfinite().all()
    with pytest.raises(RuntimeError, match=r"expected degrees ≥ 0.*negative degree"):
        run(torch.ones(2, 1), index((0, 1)), edge_weight=torch.tensor([-2.0]))


@pytest.mark.parametrize("weight", [None, torch.ones(1)])
def test_case_1_a_degree_of_zero_leaves_the_bias(weight: Tensor | None) -> None:
    layer = MessagePassing(Graph(), SharedKernel(1, 1, normalise="symmetric"))
    nn.init.constant_(layer.weight.bias, 0.25)
    x = torch.ones(2, 1, requires_grad=True)
    for kernel in able(layer, x, index((0, 1)), edge_weight=weight):
        with use_kernels(kernel):
            y = layer(x, index((0, 1)), edge_weight=weight)
        assert y.tolist() == [[0.25], [0.25]], kernel
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert gradient.tolist() == [[0.0], [0.0]], kernel


@pytest.mark.parametrize("rule", UNIT)
def test_case_2_a_maximum_of_negative_messages(rule: str) -> None:
    layer = unit(rule, reduce="max")
    x = torch.tensor([[-0.1], [-0.2], [-0.3]], requires_grad=True)
    edges = index((0, 0), (1, 1), (2, 0))
    for kernel in able(layer, x, edges):
        with use_kernels(kernel):
            y = layer(x, edges)
        assert torch.equal(y.detach(), torch.tensor([[-0.1], [-0.2], [0.0]])), kernel
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert gradient.tolist() == [[1.0], [1.0], [0.0]], kernel
        (gradient,) = torch.autograd.grad(layer(x, edges)[2].sum(), x)
        assert gradient.tolist() == [[0.0], [0.0], [0.0]], kernel


@pytest.mark.parametrize("rule", UNIT)
@pytest.mark.parametrize(
    ("values", "expected"), [((2, 2, 1), (0.5, 0.5, 0)), ((3, 3, 3), (1 / 3,) * 3), ((0, 0, -1), (0.5, 0.5, 0))]
)
def test_case_3_tied_maxima_share_the_gradient(rule: str, values: tuple, expected: tuple) -> None:
    layer = unit(rule, reduce="max")
    x = torch.tensor(values, dtype=torch.float32)[:, None].requires_grad_()
    edges = index((0, 0), (1, 0), (2, 0))
    for kernel in able(layer, x, edges):
        with use_kernels(kernel):
            y = layer(x, edges)
        assert y[:, 0].tolist() == [max(values), 0, 0], kernel
        (gradient,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(gradient[:, 0], torch.tensor(expected, dtype=torch.float32), rtol=0, atol=1e-6)


def biased(bias: bool) -> dict[str, MessagePassing]:
    """Layers of every rule with all its linear maps."""
    network = AdditiveScore(4, 2)
    return {
        "static": MessagePassing(Full(3), Static(2, 4, value=True, output=True, root=True, bias=bias)),
        "static bare": MessagePassing(Grid(3), Static(2, 4, bias=bias)),
        "shared": MessagePassing(Graph(), SharedKernel(2, 4, value=True, output=True, root=True, bias=bias)),
        "shared bare": MessagePassing(Window(1), SharedKernel(2, 4, bias=bias)),
        "fixed": MessagePassing(Graph(), SharedKernel(2, 4, fixed=True, output=True, root=True, bias=bias)),
        "network": MessagePassing(Graph(), EdgeLearned(2, 4, network, heads=2, output=True, root=True, bias=bias)),
        "network bare": MessagePassing(Graph(), EdgeLearned(2, 4, network, heads=2, bias=bias)),
        "attention": MessagePassing(AllTokens(), QKSoftmax(4, 2, bias=bias)),
        "attention root": MessagePassing(Graph(), QKSoftmax(4, 2, root=True, output=False, edge_channels=2, bias=bias)),
    }


@pytest.mark.parametrize("name", biased(True))
def test_case_4_without_bias_there_is_none(name: str) -> None:
    with_bias, without = biased(True)[name], biased(False)[name]
    assert [k for k, _ in without.named_parameters() if "bias" in k] == []
    extra = sorted(k for k in with_bias.state_dict() if "bias" in k)
    assert extra
    with pytest.raises(RuntimeError, match="Unexpected key") as refusal:
        without.load_state_dict(with_bias.state_dict())
    assert all(f'"{k}"' in str(refusal.value) for k in extra)
    x = torch.zeros(3, without.weight.in_channels)
    given = {"edge_index": index((0, 1))} if isinstance(without.neighbours, Graph) else {}
    given |= {"edge_attr": torch.zeros(1, 2)} if without.weight.edge_channels else {}
    assert not without(x, **given).any(), "zeros in, zeros out"


def test_case_4_the_projections_may_keep_theirs() -> None:
    layer = MessagePassing(AllTokens(), QKSoftmax(4, 2, bias=False, qkv_bias=True))
    names = [k for k, _ in layer.named_parameters() if k.endswith("bias")]
    assert names == ["weight.query.bias", "weight.key.bias", "weight.value.bias"]


RULES_5 = {
    "GAT": lambda: EdgeLearned(2, 4, AdditiveScore(4, 2), heads=2, normalise="softmax", dropout=0.9),
    "attention": lambda: QKSoftmax(2, 2, head_channels=2, dropout=0.9),
    "TransformerConv": lambda: QKSoftmax(2, 2, head_channels=2, dropout=0.9, root=True, output=False, out_channels=4),
}


@pytest.mark.parametrize("rule", RULES_5)
@pytest.mark.parametrize(
    ("loops", "source", "target", "rows"),
    [
        (None, [0, 0, 2], [1, 1, 2], [0, 1, 2]),
        ("add", [0, 0, 2, 0, 1], [1, 1, 2, 0, 1], [0, 1, 2, -1, -1]),
        ("replace", [0, 0, 0, 1, 2], [1, 1, 0, 1, 2], [0, 1, -1, -1, -1]),
    ],
)
def test_case_5_weights_of_duplicate_edges(
    rule: str, loops: str | None, source: list, target: list, rows: list
) -> None:
    layer = MessagePassing(Graph(self_loops=loops), RULES_5[rule]())
    x, edges = torch.randn(3, 2), index((0, 1), (0, 1), (2, 2))
    assert layer.training
    plain = MessagePassing(Graph(self_loops=loops), layer.weight).eval()
    for kernel in able(layer, x, edges):
        with use_kernels(kernel):
            _, found = layer(x, edges, return_weights=True)
            _, sure = plain(x, edges, return_weights=True)
        assert found.source.tolist() == source and found.target.tolist() == target and found.index.tolist() == rows
        assert found.weight.shape == (len(source), 2)
        total = torch.zeros(3, 2).index_add(0, found.target, found.weight)
        seen = torch.tensor([[float(i in target)] * 2 for i in range(3)])
        torch.testing.assert_close(total, seen)
        torch.testing.assert_close(found.weight, sure.weight)
        torch.testing.assert_close(found.weight[0], found.weight[1])


SUMS = [(p, r) for p, r in product("few") if RULES[r].make(PLACES[p].make()).normalise != "softmax"]


@over(SUMS)
def test_case_6_no_edge_weights_are_edge_weights_of_one(place: str, rule: str) -> None:
    made = trial(place, rule)
    with torch.no_grad():
        _, edges = made(return_weights=True)
        count = len(edges.source) if edges.index is None else int((edges.index >= 0).sum())
        given = made.tensors.get("edge_index", getattr(made.layer.neighbours, "edge_index", None))
        one = torch.ones(count if given is None else given.shape[1], dtype=torch.float64)
        x, arguments = made.bound()
        for kernel in [*made.able(), "reference"]:
            with use_kernels(kernel):
                plain = made()
            for other in able(made.layer, x, **arguments, edge_weight=one):
                with use_kernels(other):
                    torch.testing.assert_close(made(edge_weight=one), plain, rtol=1e-11, atol=1e-11)
