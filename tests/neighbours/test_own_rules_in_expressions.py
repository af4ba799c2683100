"""A person's own rule may read the tokens: what it gave at one call serves no other, inside an expression neither."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mpnn import MessagePassing, use_kernels
from mpnn.neighbours import AllTokens, Edges, Neighbours, Window
from mpnn.weights import QKSoftmax

N = 7
EYE = torch.eye(N, dtype=torch.bool)


def larger(x: Tensor) -> Tensor:
    """(N, N): which sources have a larger first channel than the target; and each token itself."""
    return (x[None, :, 0] > x[:, None, 0]) | EYE


class Larger(Neighbours):
    """Whoever has a larger first channel."""

    def edges(self, targets: int, sources: int, *, rows: slice | None = None, tokens: Any = None) -> Edges:
        tokens = tokens[0] if isinstance(tokens, tuple) else tokens
        target, source = larger(tokens.x).nonzero().unbind(-1)
        return Edges(source, target)


class LargerWindow(Window):
    """A subclass of ours whose edges are its own."""

    edges = Larger.edges


class ByValue(Larger):
    """An own rule that tells what it is made of."""

    def key(self) -> tuple:
        return ()


CASES: dict[str, tuple[Callable[[], Neighbours], Callable[[Tensor], Tensor]]] = {
    "alone": (Larger, larger),
    "subclass": (lambda: LargerWindow(1), larger),
    "and": (lambda: Larger() & AllTokens(), larger),
    "and, on the right": (lambda: Window(2) & Larger(), lambda x: larger(x) & EYE.new_ones(N, N).triu(-2).tril(2)),
    "or": (lambda: Larger() | Window(0), larger),
    "minus": (lambda: AllTokens() - Larger(), lambda x: ~larger(x)),
    "nested": (lambda: (Larger() & AllTokens()) | Window(0), larger),
    "subclass inside": (lambda: LargerWindow(1) & AllTokens(), larger),
    "by value": (lambda: ByValue() & AllTokens(), larger),
}


@pytest.mark.parametrize("kernel", [None, "reference", "tiles", "merge", "edge_softmax"])
@pytest.mark.parametrize("case", [c for c in CASES if "subclass" not in c])  # whose other methods are still ours
def test_every_call_asks_the_rule_again(case: str, kernel: str | None) -> None:
    make, mask = CASES[case]
    layer, whole = MessagePassing(make(), weight := QKSoftmax(4, 2)), MessagePassing(AllTokens(), weight)
    torch.manual_seed(0)
    for _ in range(3):
        x = torch.randn(N, 4)
        if kernel is not None and layer.plan(x).reasons.get(kernel):
            return  # no kernel for this call
        with use_kernels("reference"):
            expected = whole(x, pair_mask=mask(x))
        with use_kernels(*([] if kernel is None else [kernel])):
            torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("case", CASES)
def test_sets_of_two_calls(case: str) -> None:
    make, mask = CASES[case]
    rule = make()
    torch.manual_seed(0)
    for _ in range(2):
        x = torch.randn(N, 4)
        pairs = torch.zeros(N, N, dtype=torch.bool)
        _, weights = MessagePassing(rule, QKSoftmax(4, 1))(x, return_weights=True)
        pairs[weights.target, weights.source] = True
        assert torch.equal(pairs, mask(x))
