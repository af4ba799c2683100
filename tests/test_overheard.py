"""Modules that fast kernels know by their parameters: who listens, or stands in their place, is not passed by."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from mpnn import MessagePassing, use_kernels
from mpnn.neighbours import Graph
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
CASES: list[tuple[Callable, str, Callable]] = [
    (lambda: QKSoftmax(8, 2, edge_channels=3), "edge", change) for change in (hooked, own_forward, adapted)
]
CASES += [
    (lambda kind=kind: EdgeLearned(8, 8, kind(8, 2), heads=2, normalise="softmax"), "network", change)
    for kind in ADDITIVE
    for change in (hooked, own_forward)
]
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
