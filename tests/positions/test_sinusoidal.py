"""Sinusoidal against a loop of the formula, Hugging Face's Marian and PyG, and cases 32 and 34."""

from __future__ import annotations

import math

import pytest
import torch

from mpnn.positions import Sinusoidal
from mpnn.tokens import grid_positions


def by_hand(position: int, channels: int, base: float = 1e4) -> list[float]:
    return [(math.cos if c % 2 else math.sin)(position / base ** (2 * (c // 2) / channels)) for c in range(channels)]


def test_case_32_values() -> None:
    code = Sinusoidal(5)(torch.zeros(1, 5), torch.tensor([1]))[0]
    assert code.tolist() == pytest.approx([0.84147, 0.54030, 0.02512, 0.99968, 0.00063], abs=1e-5)
    assert Sinusoidal(1)(torch.zeros(3, 1))[:, 0].tolist() == pytest.approx([0.0, math.sin(1), math.sin(2)], abs=1e-6)


@pytest.mark.parametrize("channels", [1, 2, 5, 8])
def test_equals_the_formula(channels: int) -> None:
    x = torch.randn(2, 3, 7, channels)
    code = torch.tensor([by_hand(p, channels) for p in range(7)])
    torch.testing.assert_close(Sinusoidal(channels)(x), x + code)
    positions = torch.tensor([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9, 7]])
    code = torch.tensor([[by_hand(p, channels, 100.0) for p in row] for row in positions.tolist()])
    torch.testing.assert_close(Sinusoidal(channels, base=100.0)(x[:, 0], positions), x[:, 0] + code)


def test_equals_marian() -> None:
    pytest.importorskip("transformers", "5", reason="needs transformers 5: pip install mpnn[hf]")
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    halves = MarianSinusoidalPositionalEmbedding(50, 16).create_weight()
    code = Sinusoidal(16)(torch.zeros(50, 16))
    torch.testing.assert_close(torch.cat([code[:, 0::2], code[:, 1::2]], 1), halves, rtol=1e-5, atol=1e-5)


def test_case_34_two_axes_in_row_major_order() -> None:
    places = grid_positions((3, 4))
    assert places[3].tolist() == [0, 3]
    assert places[4].tolist() == [1, 0]
    wide = Sinusoidal(12, axes=2)(torch.zeros(12, 12), places).view(3, 4, 12)
    for row in range(3):
        for column in range(4):
            expected = by_hand(row, 6) + by_hand(column, 6)
            assert wide[row, column].tolist() == pytest.approx(expected, abs=1e-6)
    tall = Sinusoidal(12, axes=2)(torch.zeros(12, 12), grid_positions((4, 3))).view(4, 3, 12)
    swapped = torch.cat([tall[..., 6:], tall[..., :6]], -1).transpose(0, 1)
    assert torch.equal(wide, swapped)


def test_odd_shares_of_two_axes() -> None:
    code = Sinusoidal(6, axes=2)(torch.zeros(1, 6), torch.tensor([[2, 5]]))[0]
    assert code.tolist() == pytest.approx(by_hand(2, 3) + by_hand(5, 3), abs=1e-6)


def test_half_precision_casts_last() -> None:
    x = torch.zeros(1, 8, dtype=torch.bfloat16)
    code = Sinusoidal(8).bfloat16()(x, torch.tensor([4095]))
    assert code.dtype == torch.bfloat16
    torch.testing.assert_close(code[0].float(), torch.tensor(by_hand(4095, 8)), rtol=2**-8, atol=1e-3)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of axes=2, got 5"):
        Sinusoidal(5, axes=2)
    with pytest.raises(ValueError, match=r"tokens of shape \(..., N, 4\), got \(3, 5\)"):
        Sinusoidal(4)(torch.zeros(3, 5))
    with pytest.raises(ValueError, match=r"\(..., N, 2\), got none; pass positions="):
        Sinusoidal(4, axes=2)(torch.zeros(3, 4))
    with pytest.raises(ValueError, match="for tokens on a grid use a code with axes"):
        Sinusoidal(4)(torch.zeros(3, 4), torch.zeros(3, 2, dtype=torch.long))
    with pytest.raises(TypeError, match="positions of dtype int64 or int32"):
        Sinusoidal(4)(torch.zeros(3, 4), torch.zeros(3))
    with pytest.raises(ValueError, match="broadcast"):
        Sinusoidal(4)(torch.zeros(2, 3, 4), torch.zeros(5, 3, dtype=torch.long))
