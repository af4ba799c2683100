"""Dropout acts on weights, in training only, on every kernel; what a backward makes again is the same draw."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from helpers.calls import kernels, product, trial
from helpers.cases import RULES
from helpers.compare import agree, run
from helpers.over import over
from mpnn import limits, use_kernels
from mpnn.neighbours import AllTokens
from mpnn.weights import EdgeLearned, QKSoftmax


def has_dropout(rule: str) -> bool:
    return isinstance(RULES[rule].make(AllTokens()), EdgeLearned | QKSoftmax)


dropping = over([(p, r) for p, r in product("main") if has_dropout(r)])


@dropping
def test_dropout(place: str, rule: str) -> None:
    """Case 13, and in training: a seed repeats it, and of everything nothing is left, on every kernel."""
    call = trial(place, rule, mask="one")
    layer, n, m = call.layer, call().shape[-2], call.tensors["source"].shape[-2]
    nothing = call(pair_mask=torch.zeros(n, m, dtype=torch.bool))
    layer.weight.dropout = 0.9
    able = {*call.able(), "reference"}  # a kernel may refuse dropout, which acts in training
    layer.weight.dropout = 0.0
    for kernel in kernels(call):
        layer.eval()
        expected = call()
        layer.weight.dropout = 0.9
        assert torch.equal(call(), expected) and torch.equal(call(), expected), kernel
        layer.train()
        if kernel not in able:
            layer.weight.dropout = 0.0
            continue
        seeded = []
        for _ in range(2):
            torch.manual_seed(3)
            seeded.append(run(call, call.leaves))
        for name, t in seeded[0].items():
            assert t is None or torch.equal(seeded[1][name], t), f"{kernel}: {name}"
        layer.weight.dropout = 1.0
        agree({"output": call()}, {"output": nothing}, torch.float64, kernel)
        layer.weight.dropout = 0.0


@dropping
def test_gradients_under_dropout_are_those_of_the_same_draw(
    place: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finite differences of a function that draws from a seed; the reference also in blocks that are made again."""
    call = trial(place, rule, lead=())
    call.layer.weight.dropout = 0.4

    def drawn(x: Tensor) -> Tensor:
        torch.manual_seed(1)
        return dataclasses.replace(call, tensors=call.tensors | {"source": x})()

    for kernel in kernels(call):
        assert torch.autograd.gradcheck(drawn, call.tensors["source"], fast_mode=True), kernel
    with use_kernels("reference"), monkeypatch.context() as patch:
        patch.setattr(limits, "block", 20)
        assert torch.autograd.gradcheck(drawn, call.tensors["source"], fast_mode=True)
