"""Attention over all tokens keeps nothing for its backward that is as large as all pairs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mpnn import MessagePassing, attend
from mpnn.neighbours import AllTokens
from mpnn.positions import ALiBi
from mpnn.weights import QKSoftmax


def kept(n: int, rule: AllTokens, **given: Any) -> int:
    """The largest number of entries of what autograd saves in a forward."""
    q, k, v = (torch.randn(1, n, 2, requires_grad=True) for _ in range(3))
    most = 0

    def look(saved: Tensor) -> Tensor:
        nonlocal most
        most = max(most, saved.untyped_storage().nbytes() // saved.element_size())
        return saved

    with torch.autograd.graph.saved_tensors_hooks(look, lambda saved: saved):
        y = attend(q, k, v, rule, **given)
    y.sum().backward()
    assert all(bool(t.grad.isfinite().all()) for t in (q, k, v))
    return most


N = 2060  # just more pairs than may be kept


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", ["none", "start", "end", "gaps"])
@pytest.mark.parametrize("biased", [False, True])
def test_masks_and_biases(causal: bool, masked: str, biased: bool) -> None:
    mask = torch.ones(N, dtype=torch.bool)
    mask[{"none": [], "start": slice(0, 9), "end": slice(-9, None), "gaps": [5, 900]}[masked]] = False
    given = {"score_bias": ALiBi(1)} if biased else {}
    assert kept(N, AllTokens(causal=causal), mask=mask, **given) < N * 300


def test_dropout_on_long_sequences() -> None:
    n = 4100
    assert kept(n, AllTokens(causal=True), dropout=0.1) < n * 300


def test_padding_at_the_end_stays_fused() -> None:
    layer, x = MessagePassing(AllTokens(causal=True), QKSoftmax(2, 1)), torch.randn(1, N, 2, requires_grad=True)
    mask = torch.arange(N) < N - 9
    assert layer.plan(x, mask=mask).kernel == "sdpa"
    plan = layer.plan(x, mask=~mask)
    assert plan.kernel == "tiles" and "mask with gaps" in plan.reasons["sdpa"][0]
    with torch.no_grad():
        assert layer.plan(x, mask=~mask).kernel == "sdpa"  # nothing is kept
