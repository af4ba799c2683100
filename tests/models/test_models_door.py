"""What a person passes to a model by a slip is refused at the door, with what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from mpnn import MessagePassing, capture_weights
from mpnn.models import CNN, GNN, MLP, ResidualBlock, Transformer
from mpnn.neighbours import AllTokens
from mpnn.positions import ALiBi, Rotary
from mpnn.weights import QKSoftmax, SharedKernel

MADE, MADE_OF_TWO = (
    "expected weight to be a function of a layer's width,",
    "expected weight to be a function .* widths,",
)
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "weight": (lambda: Transformer(1, 8, 1, 3, weight=QKSoftmax(8, 2)), rf"{MADE} as lambda c: .* got QKSoftmax\(…\)"),
    "weight of GNN": (lambda: GNN(1, (8,), 3, weight=SharedKernel(1, 8)), rf"{MADE_OF_TWO} .* got SharedKernel\(…\)"),
    "a number": (lambda: Transformer(1, 8, 1, 3, weight=8), rf"{MADE} .* got int"),
    "two arguments": (
        lambda: Transformer(1, 8, 1, 3, weight=lambda a, b: SharedKernel(a, b)),
        rf"{MADE} .* does not fit the call weight\(8\): missing .* 'b'",
    ),
    "one argument": (
        lambda: GNN(1, (8,), 3, weight=lambda c: SharedKernel(c, c)), rf"{MADE_OF_TWO} .* weight\(1, 8\): too many",
    ),
    "nothing made": (lambda: Transformer(1, 8, 1, 3, weight=lambda c: None), "expected weight to be a rule"),
    "activation of MLP": (lambda: MLP((2, 3, 1), activation=nn.ReLU()), "expected activation .* got a ReLU; pass ReLU"),
    "a name as position": (lambda: Transformer(1, 8, 1, 3, position="sinusoidal"), "expected position .* got str"),
    "rotary": (lambda: Transformer(1, 8, 1, 3, position=Rotary(2)), r"got Rotary, .* QKSoftmax\(.*position="),
    "alibi": (lambda: Transformer(1, 8, 1, 3, position=ALiBi(4)), r"got a score bias, .* QKSoftmax\(.*score_bias="),
    "captured": (lambda: capture_weights(torch.ones(2)).__enter__(), "expected model to be a module .* got Tensor"),
    "activation of CNN": (
        lambda: CNN(1, (4,), 2, size=(4, 4), activation=nn.ELU()), "expected activation .* got a ELU; pass ELU",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_refused(name: str) -> None:
    make, says = WRONG[name]
    with pytest.raises(TypeError, match=says):
        make()


def test_sizes_are_a_tuple_and_a_line_has_one() -> None:
    with pytest.raises(ValueError, match=r"expected sizes to be a tuple, .* got 4"):
        MLP(4)
    assert CNN(1, (4,), 2, size=8)(torch.ones(3, 8, 1)).shape == (3, 2)


def test_a_mistake_inside_the_function_is_its_own() -> None:
    def weight(c: int) -> Any:
        raise TypeError("mine")

    with pytest.raises(TypeError, match=r"^mine$"):
        Transformer(1, 8, 1, 3, weight=weight)


def test_a_class_is_a_function_too() -> None:
    assert Transformer(1, 8, 1, 3, weight=QKSoftmax)(torch.ones(2, 5, 1)).shape == (2, 3)
    assert GNN(1, (8,), 3, weight=SharedKernel)(torch.ones(3, 1), torch.tensor([[0], [1]])).shape == (3,)


def test_a_memory_goes_by_its_name() -> None:
    layers = [MessagePassing(AllTokens(), QKSoftmax(8, 2)) for _ in range(2)]
    block, x = ResidualBlock(layers[0], 8, 16, cross=layers[1]), torch.ones(2, 5, 8)
    with pytest.raises(
        TypeError, match=r"expected call to be a function .* got Tensor; what cross looks at is memory="
    ):
        block(x, x)
    assert block(x, memory=x).shape == x.shape
