"""What a layer remembers of its first call serves any later one: inference, training and transforms in any order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.calls import Trial, product, trial
from helpers.cases import PLACES, RULES
from helpers.over import over


def inference(made: Trial) -> None:
    with torch.inference_mode():
        made()


def no_grad(made: Trial) -> None:
    with torch.no_grad():
        made()


def frozen(made: Trial) -> None:
    """A call in which nothing wants a gradient."""
    dataclasses.replace(made, tensors={k: t.detach() for k, t in made.tensors.items()})()


def gradient(made: Trial) -> None:
    torch.func.grad(lambda x: of(made, x).square().sum())(made.tensors["source"].detach())


def mapped(made: Trial) -> None:
    torch.func.vmap(lambda x: of(made, x), randomness="different")(torch.stack([made.tensors["source"].detach()] * 2))


def of(made: Trial, x: Tensor) -> Tensor:
    return dataclasses.replace(made, tensors=made.tensors | {"source": x})()


MAIN = [(p, r) for p, r in product("few") if PLACES[p].main and RULES[r].main]
FIRST: tuple[Callable[[Trial], Any], ...] = (inference, no_grad, frozen, gradient, mapped)


@pytest.mark.parametrize("first", FIRST)
@over(MAIN)
def test_training_after_another_first_call(place: str, rule: str, first: Callable[[Trial], Any]) -> None:
    torch.manual_seed(0)
    plain = trial(place, rule)
    torch.manual_seed(0)
    made = trial(place, rule)
    first(made)
    answers = []
    for one in (plain, made, made):
        y = one()
        answers.append([y, *torch.autograd.grad(y.square().sum(), list(one.leaves.values()), materialize_grads=True)])
    for other in answers[1:]:
        for a, b in zip(answers[0], other, strict=True):
            torch.testing.assert_close(b, a, rtol=0, atol=1e-12)
    with torch.inference_mode():
        torch.testing.assert_close(made(), answers[0][0], rtol=0, atol=1e-12)


def test_edges_made_in_inference_mode_serve_training() -> None:
    """Tensors without a version are not remembered, and what was made of them is not in the way."""
    torch.manual_seed(0)
    made = trial("Graph at call", "GAT", lead=())
    with torch.inference_mode():
        edges = made.tensors["edge_index"].clone()
        inside = dataclasses.replace(made, tensors=made.tensors | {"edge_index": edges})
        first = inside()
        edges[:, 0] = edges[:, 1]
        changed = inside()
    assert not torch.equal(first, changed), "an index that was written to is read again"
    torch.testing.assert_close(made(), first.clone(), rtol=0, atol=1e-12)
