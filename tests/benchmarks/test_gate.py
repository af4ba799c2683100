"""The gate: no speed is printed where values or gradients differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benchmarks import measure as measuring
from benchmarks import results, tensors, words
from benchmarks.case import FORWARD, TRAIN, Case, Entry, Side, Work
from benchmarks.equality import compare, upstream
from helpers.benched import case


def shifted_gradient(x: Tensor) -> Tensor:
    """The values of 2 x with another gradient."""
    return 2 * x + (x - x.detach()) * 0.01


def test_the_gate_is_green_for_the_same_function() -> None:
    gate = compare(case(lambda x: 2 * x, lambda x: x + x))
    assert gate.green and gate.worst == 0.0 and gate.words() == ""
    assert set(gate.errors["peer"]) == {"values", "gradients of x"}
    assert set(gate.first["mpnn"]) == {FORWARD, TRAIN}


@pytest.mark.parametrize(
    ("theirs", "what"),
    [
        (lambda x: 2.001 * x, "values"),
        (shifted_gradient, "gradients of x"),
        (lambda x: 2 * x * torch.tensor(float("nan")), "values"),
        (lambda x: (2 * x)[:, :2], "values"),
    ],
    ids=["value", "gradient", "nan", "shape"],
)
def test_the_gate_turns_red(theirs: Callable[[Tensor], Tensor], what: str) -> None:
    gate = compare(case(lambda x: 2 * x, theirs))
    assert not gate.green
    assert f"peer: {what} differ" in gate.words()


def test_a_red_gate_prints_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "interleave", lambda *a, **k: pytest.fail("timed behind a red gate"))
    entry = Entry("W0/red", "a wrong layer", lambda: case(lambda x: 2 * x, lambda x: 3 * x), {"N": 4})
    made = measuring.record(entry, None, None, measuring.Settings(threads=1))
    assert made["modes"] == {} and not made["gate"]["green"]
    assert "RED" in words.lines(made)[0] and " ms" not in words.lines(made)[0]
    assert [e["key"] for e in results.red([made])] == ["W0/red"]


def test_layouts_are_compared_in_common() -> None:
    x = tensors.normal(2, 3, 4)
    moved = tensors.leaf(x.transpose(1, 2))
    weight = torch.arange(4.0)
    sides = [
        Side("mpnn", lambda: x * weight, {"x": x}),
        Side(
            "peer",
            lambda: moved * weight[:, None],
            {"x": moved},
            lambda y: y.transpose(1, 2),
            {"x": lambda g: g.transpose(1, 2)},
        ),
    ]
    assert compare(Case(sides[0], sides[1:], Work(), Work(), "linear")).green
    y = sides[1].forward().detach()
    assert torch.equal(upstream(sides[1], y).transpose(1, 2), upstream(sides[0], x.detach()))


def test_packed_leaves_are_split() -> None:
    a, b = tensors.normal(3), tensors.normal(3, seed=2)
    both = tensors.leaf(torch.cat([a, b]))
    sides = [
        Side("mpnn", lambda: a * b, {"a": a, "b": b}),
        Side(
            "peer",
            lambda: both[:3] * both[3:],
            {"both": both},
            views={"both": lambda g: dict(zip("ab", g.chunk(2), strict=True))},
        ),
    ]
    assert compare(Case(sides[0], sides[1:], Work(), Work(), "linear")).green
    sides[1] = dataclasses.replace(sides[1], views={})
    with pytest.raises(ValueError, match="expected peer to give"):
        compare(Case(sides[0], sides[1:], Work(), Work(), "linear"))


def test_a_gradient_of_rounding_alone_does_not_count() -> None:
    x, shift = tensors.normal(4, 5), tensors.normal(1, seed=3)
    sides = [
        Side("mpnn", lambda: torch.softmax(x + shift, -1), {"x": x, "shift": shift}),
        Side("peer", lambda: torch.softmax(shift + x * 1.0, -1) + 0.0, {"x": x, "shift": shift}),
    ]
    assert compare(Case(sides[0], sides[1:], Work(), Work(), "linear")).green
