"""Modules that stand for value, output and root: inner widths of their own, joined heads, scaled identities."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mpnn import MessagePassing
from mpnn.neighbours import Graph
from mpnn.pairs import Pairs
from mpnn.weights import (
    AdditiveScore,
    EdgeLearned,
    EdgeNetwork,
    HeadMean,
    HeadSum,
    QKSoftmax,
    ScaledIdentity,
    SharedKernel,
    Static,
    Weight,
)

INDEX = torch.tensor([[0, 1, 1, 2, 3, 3], [1, 0, 0, 2, 1, 0]])


def tokens(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_heads_are_averaged_or_summed() -> None:
    x = tokens(3, 6)
    torch.testing.assert_close(HeadMean(2, 3)(x), (x[:, :3] + x[:, 3:]) / 2)
    torch.testing.assert_close(HeadSum(2, 3)(x), x[:, :3] + x[:, 3:])


@pytest.mark.parametrize("kernel", ["reference", "native", "edge_softmax", "segment"])
@pytest.mark.parametrize("join", [HeadMean, HeadSum])
def test_heads_of_their_own_width_on_every_kernel(kernel: str, join: type[HeadMean]) -> None:
    if kernel == "segment":
        pytest.importorskip("torch_scatter", reason="the segment kernel needs torch_scatter")
    value = nn.Linear(4, 6, bias=False)
    network = AdditiveScore(6, heads=2)
    rule = EdgeLearned(4, 3, network, heads=2, normalise="softmax", value=value, output=join(2, 3))
    layer = MessagePassing(Graph(), rule, kernel=kernel).double()
    assert (rule.before, rule.after, tuple(rule.bias.shape)) == (6, 6, (3,))
    x = tokens(4, 4)
    v = value(x).view(4, 2, 3)
    score = nn.functional.leaky_relu(
        (v[INDEX[0]] * network.source).sum(-1) + (v[INDEX[1]] * network.target).sum(-1), 0.2
    )
    dense = torch.zeros(4, 4, 2, dtype=torch.float64).index_put((INDEX[1], INDEX[0]), score.exp(), accumulate=True)
    weight = dense / dense.sum(1, keepdim=True).clamp(min=1e-300)
    joined = torch.einsum("ijh,jhd->ihd", weight, v).sum(1) / (2 if join is HeadMean else 1)
    expected = joined + rule.bias
    y = layer(x, INDEX)
    torch.testing.assert_close(y, expected)
    ours, theirs = (torch.autograd.grad(t.square().sum(), (x, value.weight)) for t in (y, expected))
    torch.testing.assert_close(ours, theirs)


def test_value_and_output_meet_at_a_width_of_their_own() -> None:
    value, output = nn.Linear(4, 5, bias=False), nn.Linear(5, 3)
    rule = EdgeLearned(4, 3, nn.Linear(2, 5), groups=5, value=value, output=output)
    assert (rule.before, rule.after, rule.bias) == (5, 5, None)
    layer = MessagePassing(Graph(), rule).double()
    x, attr = tokens(4, 4), tokens(6, 2)
    messages = value(x)[INDEX[0]] * rule.network(attr)
    torch.testing.assert_close(
        layer(x, INDEX, attr), output(torch.zeros(4, 5).double().index_add(0, INDEX[1], messages))
    )


def test_queries_and_keys_with_averaged_heads() -> None:
    rule = QKSoftmax(4, 2, head_channels=3, out_channels=3, output=HeadMean(2, 3), root=True)
    layer = MessagePassing(Graph(), rule).double()
    x = tokens(4, 4)
    concatenated = MessagePassing(Graph(), QKSoftmax(4, 2, head_channels=3, output=False)).double()
    concatenated.load_state_dict({k: v for k, v in layer.state_dict().items() if "root" not in k})
    torch.testing.assert_close(layer(x, INDEX), concatenated(x, INDEX).view(4, 2, 3).mean(1) + rule.root(x))


def test_a_scaled_identity_stands_for_root_at_any_width() -> None:
    rule = SharedKernel(None, None, fixed=True, root=ScaledIdentity(0.5), bias=False)
    layer = MessagePassing(Graph(), rule).double()
    for width in (1, 4):
        x = tokens(4, width)
        torch.testing.assert_close(layer(x, INDEX), torch.zeros_like(x).index_add(0, INDEX[1], x[INDEX[0]]) + 1.5 * x)
    with torch.no_grad():
        rule.root.eps.fill_(7.0)
    layer.reset_parameters()
    assert rule.root.eps.item() == 0.5
    assert not list(ScaledIdentity(trained=False).parameters()) and list(
        ScaledIdentity(trained=False).state_dict()
    ) == ["eps"]


@pytest.mark.parametrize("kernel", ["native", "edge_softmax"])
def test_one_set_seen_by_two_projections_on_every_kernel(kernel: str) -> None:
    rule = EdgeLearned(4, 6, AdditiveScore(6, heads=2, target_channels=4), heads=2, normalise="softmax")
    x = tokens(4, 4)
    found = []
    for name in ("reference", kernel):
        y = MessagePassing(Graph(), rule.double(), kernel=name)(x, INDEX)
        found.append((y, torch.autograd.grad(y.square().sum(), [x, *rule.parameters()])))
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-10)
    assert found[0][1][-1].any()  # the projection's gradient


def test_tokens_of_two_sets_have_a_projection_each() -> None:
    network = AdditiveScore(6, heads=2, target_channels=5)
    rule = EdgeLearned(4, 6, network, heads=2, normalise="softmax", bias=False)
    layer = MessagePassing(Graph(), rule).double()
    source, target = tokens(4, 4), tokens(3, 5)
    v, t = rule.value(source).view(4, 2, 3), network.projection(target).view(3, 2, 3)
    score = (v * network.source).sum(-1)[INDEX[0]] + (t * network.target).sum(-1)[INDEX[1]]
    dense = torch.zeros(3, 4, 2, dtype=torch.float64)
    dense = dense.index_put((INDEX[1], INDEX[0]), nn.functional.leaky_relu(score, 0.2).exp(), accumulate=True)
    weight = dense / dense.sum(1, keepdim=True)
    torch.testing.assert_close(layer((source, target), INDEX), torch.einsum("ijh,jhd->ihd", weight, v).flatten(1))


class Shift(EdgeNetwork):
    """An edge that weighs 2 and takes the target from its source's value."""

    reads_target, reads_offset = True, False

    def __init__(self, groups: int | None) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, pairs: Pairs) -> Tensor:
        width = 1 if self.groups is None else self.groups
        return pairs.x_source.new_full((len(pairs), width), 2.0)

    def edge_value(self, pairs: Pairs) -> Tensor:
        return -pairs.x_target.unsqueeze(-2) if self.groups is None else -pairs.x_target


@pytest.mark.parametrize("family", ["heads", "groups"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("kernel", ["reference", "segment", None])
def test_what_an_edge_adds_to_its_sources_value(family: str, reduce: str, kernel: str | None) -> None:
    if kernel == "segment":
        pytest.importorskip("torch_scatter", reason="the segment kernel needs torch_scatter")
    given = {"heads": 1, "value": False} if family == "heads" else {"groups": 4}
    rule = EdgeLearned(4, 4, Shift(None if family == "heads" else 4), reduce=reduce, bias=False, **given)
    layer, x = MessagePassing(Graph(), rule, kernel=kernel).double(), tokens(4, 4)
    y = layer(x, INDEX)
    for i in range(4):
        each = 2 * (x[INDEX[0][INDEX[1] == i]] - x[i])
        if not len(each):
            expected = torch.zeros(4, dtype=torch.float64)
        else:
            expected = each.amax(0) if reduce == "max" else getattr(each, reduce)(0)
        torch.testing.assert_close(y[i], expected)
    reasons = layer.plan(x, INDEX).reasons["spmm"]
    assert any("add to their source's value" in why for why in reasons)


class Own(Weight):
    """A person's own rule whose edges add something."""

    heads = 1

    def per_edge(self, pairs: Pairs) -> Tensor:
        return pairs.x_source.new_ones(len(pairs), 1)

    def edge_value(self, pairs: Pairs) -> Tensor:
        return pairs.x_source.new_ones(len(pairs), 1, 1)


def test_a_persons_own_rule_adds_on_whichever_kernel_is_chosen() -> None:
    y = MessagePassing(Graph(), Own(bias=False))(torch.zeros(4, 2), INDEX)
    torch.testing.assert_close(y, torch.tensor([[3.0], [2.0], [1.0], [0.0]]).expand(4, 2))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: SharedKernel(4, 3, output=nn.ReLU()), "or an nn.Linear, got ReLU; a module in its place"),
        (lambda: SharedKernel(4, 3, heads=1, output=HeadMean(2, 4)), r"output to be a Linear\(8, 3\), got \(8, 4\)"),
        (lambda: SharedKernel(4, 3, heads=1, value=nn.Linear(4, 6)), r"a Linear\(4, 3\), got \(4, 6\)"),
        (lambda: SharedKernel(4, 3, root=3), "expected root to be True, False or an nn.Linear, got int"),
        (lambda: SharedKernel(None, None, fixed=True), "no width with in_channels=None; pass bias=False"),
        (lambda: SharedKernel(None, None, bias=False), "expected in_channels to be"),
        (lambda: EdgeLearned(None, None, nn.Linear(2, 1), heads=1), "no width with in_channels=None; pass bias=False"),
        (lambda: EdgeLearned(None, None, nn.Linear(2, 1), bias=False), "expected in_channels to be"),
        (
            lambda: SharedKernel(None, None, fixed=True, bias=False, root=nn.Linear(2, 2)),
            "expected in_channels and out_channels with root=, got None",
        ),
        (lambda: HeadMean(0, 2), "expected heads ≥ 1"),
    ],
)  # fmt: skip
def test_refused(make: object, text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        make()  # type: ignore[operator]


def test_static_keeps_its_widths() -> None:
    assert Static(2, 3, value=False, groups=1).before == 2
