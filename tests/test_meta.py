"""Layers on the meta device, where shapes are known and numbers are not."""

from __future__ import annotations

import pytest
import torch

from mpnn import MessagePassing, limits
from mpnn.kernels import pairwise
from mpnn.neighbours import AllTokens, Full, Grid
from mpnn.positions import Rotary
from mpnn.weights import AdditiveScore, EdgeLearned, QKSoftmax, SharedKernel, Static

LAYERS = {
    "pairwise": lambda: MessagePassing(
        AllTokens(), EdgeLearned(4, 6, AdditiveScore(6, 2), heads=2, normalise="softmax")
    ),
    "linear": lambda: MessagePassing(Full(6, 3), Static(4, 5)),
    "conv": lambda: MessagePassing(Grid((2, 3), 3), SharedKernel(4, 5)),
    "fft": lambda: MessagePassing(AllTokens(max_tokens=6), SharedKernel(4, 5)),
    "sdpa": lambda: MessagePassing(AllTokens(causal=True), QKSoftmax(4, 2, position=Rotary(2))),
}


@pytest.mark.parametrize("kernel", LAYERS)
def test_shapes_without_numbers(kernel: str) -> None:
    layer, x = LAYERS[kernel](), torch.randn(2, 6, 4)
    expected = layer(x).shape
    layer.to("meta")
    for _ in range(2):  # the second one is remembered
        y = layer(x.to("meta"))
        assert y.shape == expected and y.is_meta


def test_a_backward_of_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "block", 16)
    monkeypatch.setattr(pairwise, "CACHED", 16)
    layer, x = LAYERS["pairwise"]().to("meta"), torch.randn(2, 6, 4, device="meta", requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape
