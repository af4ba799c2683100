"""What Tokens take and refuse, how they are cleaned, and that they pass through compile and vmap."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest
import torch

from mpnn.tokens import Tokens

X = torch.randn(2, 3, 4)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"mask": torch.ones(2, 3, dtype=torch.bool)},
        {"mask": torch.ones(3, dtype=torch.bool)},
        {"mask": torch.ones(1, 3, dtype=torch.bool)},
        {"positions": torch.arange(3)},
        {"positions": torch.zeros(2, 3, dtype=torch.int32)},
        {"positions": torch.zeros(3, 2, dtype=torch.long)},
        {"positions": torch.zeros(2, 3, 2, dtype=torch.long)},
        {"coordinates": torch.zeros(3, 2), "grid": (3,)},
        {"coordinates": torch.zeros(2, 3, 1, dtype=torch.float64), "grid": (1, 3)},
    ],
)
def test_what_fits_is_kept(fields: dict[str, Any]) -> None:
    tokens = Tokens(X, **fields)
    for field in dataclasses.fields(Tokens):
        assert getattr(tokens, field.name) is (X if field.name == "x" else fields.get(field.name))


@pytest.mark.parametrize(
    ("fields", "error", "match"),
    [
        ({"x": [1.0]}, TypeError, "x to be a tensor, got list"),
        ({"x": torch.zeros(3)}, ValueError, r"x of shape \(..., N, C\), got \(3,\)"),
        ({"x": torch.zeros(3, 2, dtype=torch.long)}, TypeError, "embed integer ids"),
        ({"mask": torch.ones(2, 3)}, TypeError, "score_bias="),
        ({"mask": torch.ones(2, 3, dtype=torch.long)}, TypeError, "pass a bool mask"),
        ({"mask": torch.ones(2, 4, dtype=torch.bool)}, ValueError, r"\(2, 3\), got \(2, 4\)"),
        ({"mask": torch.ones(2, 1, dtype=torch.bool)}, ValueError, r"\(2, 3\), got \(2, 1\)"),
        ({"mask": torch.ones(3, 3, dtype=torch.bool)}, ValueError, r"\(2, 3\), got \(3, 3\)"),
        ({"mask": torch.ones(1, 2, 3, dtype=torch.bool)}, ValueError, r"got \(1, 2, 3\)"),
        ({"positions": torch.zeros(2, 3)}, TypeError, "positions of dtype int64"),
        ({"positions": torch.zeros(5, dtype=torch.long)}, ValueError, r"positions of shape .* got \(5,\)"),
        ({"coordinates": torch.zeros(3, 2, dtype=torch.long)}, TypeError, "floating-point coordinates"),
        ({"coordinates": torch.zeros(2, 2)}, ValueError, r"got \(2, 2\)"),
        ({"coordinates": torch.zeros(3)}, ValueError, r"got \(3,\)"),
        ({"batch": torch.zeros(3, dtype=torch.long)}, ValueError, "without leading dimensions"),
        ({"x": X[0], "batch": torch.zeros(2, dtype=torch.long)}, ValueError, r"\(N,\) = \(3,\), got \(2,\)"),
        ({"x": X[0], "batch": torch.zeros(3)}, TypeError, "batch of dtype int64"),
        ({"grid": (2, 2)}, ValueError, "expected 4 tokens for grid .* got 3"),
        ({"grid": 3}, TypeError, "grid to be a tuple of ints, got 3"),
        ({"mask": torch.ones(2, 3, dtype=torch.bool, device="meta")}, ValueError, "on cpu"),
    ],
)
def test_what_does_not_fit_is_refused(fields: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        Tokens(**{"x": X, **fields})


def test_fields_are_keywords_and_frozen() -> None:
    with pytest.raises(TypeError, match="positional"):
        Tokens(X, torch.ones(2, 3, dtype=torch.bool))  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Tokens(X).x = X  # type: ignore[misc]
    assert Tokens(X) != Tokens(X)


@pytest.mark.parametrize("fill", [1e10, float("inf"), float("nan")])
def test_clean_hides_masked_rows_in_value_and_gradient(fill: float) -> None:
    x = X.clone()
    x[0, 1] = fill
    x.requires_grad_()
    mask = torch.tensor([[True, False, True], [True, True, True]])
    cleaned = Tokens(x, mask=mask).clean()
    assert torch.equal(cleaned.x, torch.where(mask[..., None], X, 0.0))
    assert cleaned.mask is mask
    (grad,) = torch.autograd.grad((cleaned.x * x.detach()).square().nan_to_num().sum(), x)
    assert torch.equal(grad[0, 1], torch.zeros(4))
    (grad,) = torch.autograd.grad(Tokens(x, mask=mask).clean().x, x, torch.full_like(x, float("nan")))
    assert torch.equal(grad[0, 1], torch.zeros(4))
    tokens = Tokens(x)
    assert tokens.clean() is tokens


def test_replace_checks_again() -> None:
    tokens = Tokens(X, grid=(3,))
    assert tokens.replace(x=X[0]).grid == (3,)
    with pytest.raises(ValueError, match="3 tokens for grid"):
        tokens.replace(x=X[:, :2])
    with pytest.raises(TypeError, match="mesk"):
        tokens.replace(mesk=None)


def test_to_casts_floats_only() -> None:
    tokens = Tokens(X, mask=torch.ones(3, dtype=torch.bool), positions=torch.arange(3), coordinates=torch.zeros(3, 1))
    half = tokens.to(torch.bfloat16)
    assert [half.x.dtype, half.coordinates.dtype] == [torch.bfloat16] * 2
    assert [half.mask.dtype, half.positions.dtype] == [torch.bool, torch.int64]
    assert tokens.to("meta").positions.device.type == "meta"


def test_copies_and_pickles() -> None:
    tokens = Tokens(X, mask=torch.ones(3, dtype=torch.bool), grid=(3,))
    for twin in (copy.deepcopy(tokens), pickle.loads(pickle.dumps(tokens))):
        assert torch.equal(twin.x, X) and torch.equal(twin.mask, tokens.mask) and twin.grid == (3,)
    assert repr(tokens) == "Tokens(x=(2, 3, 4), mask=(3,), grid=(3,))"


def test_compiles_whole_with_dynamic_lengths() -> None:
    from torch._dynamo.testing import CompileCounter

    def inside(x: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, Tokens]:
        tokens = Tokens(x, mask=mask, positions=positions, coordinates=x[..., :2], grid=(x.shape[1],)).clean()
        return tokens.x * 2, tokens.replace(positions=None)

    def through(tokens: Tokens) -> Tokens:
        return tokens.clean().replace(mask=None)

    counter = CompileCounter()
    compiled = torch.compile(inside, fullgraph=True, dynamic=True, backend=counter)
    compiled_through = torch.compile(through, fullgraph=True, dynamic=True, backend="eager")
    for n in (3, 5, 9):
        x, mask = torch.randn(2, n, 4), torch.rand(2, n) > 0.5
        x[~mask] = float("nan")
        y, tokens = compiled(x, mask, torch.arange(n))
        assert torch.equal(y, x.nan_to_num() * 2)
        assert isinstance(tokens, Tokens) and tokens.grid == (n,) and tokens.positions is None
        assert torch.equal(compiled_through(Tokens(x, mask=mask)).x, x.nan_to_num())
    assert counter.frame_count == 1


def test_vmap() -> None:
    x, mask = torch.randn(5, 3, 4), torch.rand(5, 3) > 0.5
    y = torch.func.vmap(lambda x, mask: Tokens(x, mask=mask, grid=(3,)).clean().x)(x, mask)
    assert torch.equal(y, torch.where(mask[..., None], x, 0.0))
