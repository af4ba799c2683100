"""Modules that fast kernels know by their parameters: who listens, or stands in their place, is not passed by."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from mpnn import MessagePassing, use_kernels
from mpnn.neighbours import AllTokens, Graph
from mpnn.weights import AdditiveScore, AdditiveScoreV2, EdgeLearned, QKSoftmax

EDGES = torch.tensor([[0, 1, 2, 3, 2, 3, 0, 1], [1, 2, 3, 0, 1, 2, 3, 0]])
ATTR = torch.randn(8, 3)


class Adapted(nn.Linear):
    """An adapter around a Linear, whose weight is still the old one's."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.sum(-1, keepdim=True)


def hooked(module: nn.Module) -> None:
    module.register_forward_hook(lambda module, given, y: 3 * y)


def own_forward(module: nn.Module) -> None:
    before = module.forward
    module.forward = lambda x: 3 * before(x)  # type: ignore[method-assign]


def adapted(module: nn.Module) -> None:
    module.__class__ = Adapted


ADDITIVE = (AdditiveScore, AdditiveScoreV2)


def of_the_same_name(module: nn.Module) -> None:
    """A class of a person's own that has our class's name, and another forward."""
    kind = type(module)
    module.__class__ = type(kind.__name__, (kind,), {"forward": lambda self, pairs: 3 * kind.forward(self, pairs)})


def own_activation(module: nn.Module) -> None:
    module.activation = torch.tanh  # type: ignore[assignment]


CASES: list[tuple[Callable, str, Callable]] = [
    (lambda: QKSoftmax(8, 2, edge_channels=3), "edge", change) for change in (hooked, own_forward, adapted)
]
CASES += [
    (lambda kind=kind: EdgeLearned(8, 8, kind(8, 2), heads=2, normalise="softmax"), "network", change)
    for kind in ADDITIVE
    for change in (hooked, own_forward, of_the_same_name)
]
CASES += [(lambda: EdgeLearned(8, 8, AdditiveScore(8, 2), heads=2, normalise="softmax"), "network", own_activation)]
CASES += [
    (
        lambda: EdgeLearned(8, 8, AdditiveScoreV2(8, 2), heads=2, normalise="softmax"),
        "network.activation",
        hooked,
    )
]


@pytest.mark.parametrize("built", [False, True], ids=["at the call", "remembered"])
@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_change_acts_on_every_kernel(number: int, built: bool) -> None:
    make, name, change = CASES[number]
    weight = make()
    attr = ATTR if name == "edge" else None
    layer = MessagePassing(Graph(EDGES, 4, attr=attr) if built else Graph(), weight)
    x = torch.randn(4, 8)
    given = () if built else (EDGES, attr)
    before = layer(x, *given)
    torch.testing.assert_close(layer(x, *given), before)
    change(weight.get_submodule(name))
    with use_kernels("reference"):
        expected = layer(x, *given)
    assert (expected - before).abs().max() > 1e-4
    for kernel in ("native", "edge_softmax", "segment", None):
        if kernel is None or not layer.plan(x, *given).reasons.get(kernel):
            with use_kernels(*([] if kernel is None else [kernel])):
                torch.testing.assert_close(layer(x, *given), expected, msg=lambda m, k=kernel: f"{k}: {m}")


ALL = {
    "additive": lambda: EdgeLearned(8, 8, AdditiveScore(8, 2), heads=2, normalise="softmax"),
    "edge features": lambda: EdgeLearned(8, 8, AdditiveScore(8, 2, edge_channels=3), heads=2, normalise="softmax"),
    "v2": lambda: EdgeLearned(8, 8, AdditiveScoreV2(8, 2), heads=2, normalise="softmax"),
}
CHANGES = [
    ("additive", "network", hooked),
    ("additive", "network", own_forward),
    ("additive", "network", of_the_same_name),
    ("additive", "network", own_activation),
    ("edge features", "network", hooked),
    ("edge features", "network.edge", hooked),
    ("v2", "network.activation", hooked),
]


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_the_change_acts_over_all_tokens(number: int) -> None:
    kind, name, change = CHANGES[number]
    layer = MessagePassing(AllTokens(), ALL[kind]()).double()
    x = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)
    given = {"edge_attr": torch.randn(16, 3, dtype=torch.float64)} if kind == "edge features" else {}
    before = layer(x, **given)
    change(layer.weight.get_submodule(name))

    def of(*kernels: str) -> tuple[Tensor, ...]:
        with use_kernels(*kernels):
            y = layer(x, **given)
        return y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])

    expected = of("reference")
    assert (expected[0] - before).abs().max() > 1e-4
    assert layer.plan(x, **given).kernel == "pairwise"
    for kernels in ((), ("pairwise",)):
        torch.testing.assert_close(of(*kernels), expected)
