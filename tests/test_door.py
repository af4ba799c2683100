"""Hundreds of wrong inputs: each is refused before anything runs, in words, and leaves everything as it was.

The rows are in door/: calls of layers and models, calls of attend, rules and models that cannot be made. A message
names the argument, says what was expected (or what would be ignored) and what came.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from door.attends import ATTENDS
from door.calls import CALLS
from door.layers import LAYERS
from door.models import MODELS
from door.rules import NEIGHBOURHOODS
from door.weights import WEIGHTS
from mpnn import MessagePassing, attend
from mpnn.tokens import Tokens

MADE = NEIGHBOURHOODS | MODELS | WEIGHTS
# How our messages are built: what is asked for and what came, or which argument would be ignored. Python's own words
# for an argument that a signature does not have will do.
ASKED = re.compile(
    "expected|needs|no more than|refused|goes with|not supported|weighs|has no parameter|would be ignored"
)
CAME = re.compile("[,:] got |would be ignored|did you mean|is refused with")
PYTHON = re.compile("unexpected (keyword )?argument|positional argument")


def says_what_to_do(refusal: BaseException) -> bool:
    text = str(refusal)
    return bool(ASKED.search(text) and CAME.search(text)) or bool(PYTHON.search(text))


def tensors(given: Any) -> Iterator[Tensor]:
    """Every tensor of some arguments."""
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, Tokens):
        yield from tensors((given.x, given.mask, given.positions, given.coordinates, given.batch))
    elif isinstance(given, dict):
        yield from tensors(tuple(given.values()))
    elif isinstance(given, list | tuple):
        for one in given:
            yield from tensors(one)


def state(*given: Any) -> list[tuple[int, Tensor]]:
    """Versions and copies of tensors: what a call would have written to."""
    return [(t._version, t.detach().to_dense().clone()) for t in tensors(given)]


def same(one: list[tuple[int, Tensor]], two: list[tuple[int, Tensor]]) -> bool:
    return all(a == b and torch.equal(s, t) for (a, s), (b, t) in zip(one, two, strict=True))


@pytest.mark.parametrize("number", range(len(CALLS)), ids=lambda n: f"{n}-{CALLS[n][0]}")
def test_a_wrong_call(number: int) -> None:
    name, arguments, keywords, error, says = CALLS[number]
    make, right, right_keywords = LAYERS[name]
    layer = make().eval()
    expected = layer(*right, **right_keywords)
    parameters = dict(layer.state_dict())
    before = state(arguments, keywords, parameters)
    random = torch.random.get_rng_state()
    calls = [layer] if not isinstance(layer, MessagePassing) or "degrees" in says else [layer, layer.plan]
    for call in (*calls, layer):
        with pytest.raises(error, match=says) as refusal:
            call(*arguments, **keywords)
        assert says_what_to_do(refusal.value), refusal.value
    assert same(before, state(arguments, keywords, dict(layer.state_dict()))), "written to"
    assert torch.equal(random, torch.random.get_rng_state()), "random numbers drawn"
    assert torch.equal(layer(*right, **right_keywords), expected), "another answer than before"
    assert torch.equal(copy.deepcopy(layer)(*right, **right_keywords), expected)


@pytest.mark.parametrize("number", range(len(ATTENDS)))
def test_a_wrong_call_of_attend(number: int) -> None:
    arguments, keywords, error, says = ATTENDS[number]
    before = state(arguments, keywords)
    with pytest.raises(error, match=says) as refusal:
        attend(*arguments, **keywords)
    assert says_what_to_do(refusal.value), refusal.value
    assert same(before, state(arguments, keywords)), "written to"


@pytest.mark.parametrize("name", MADE)
def test_a_wrong_rule(name: str) -> None:
    make, error, says = MADE[name]
    with pytest.raises(error, match=says) as refusal:
        make()
    assert says_what_to_do(refusal.value), refusal.value


def test_the_layers_take_the_right_calls() -> None:
    for make, arguments, keywords in LAYERS.values():
        assert make()(*arguments, **keywords).isfinite().all()


def test_there_are_hundreds() -> None:
    assert len(CALLS) + len(ATTENDS) + len(MADE) > 350
    assert {name for name, *_ in CALLS} == set(LAYERS)
