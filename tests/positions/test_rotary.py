"""Rotary against Hugging Face's Llama, GPT-NeoX, GPT-J and Qwen2-VL, and cases 30, 31, 32 worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from mpnn.positions import Rotary

HF = "needs transformers 5: pip install mpnn[hf]"
X = torch.tensor([[1.0, 2.0, 3.0, 4.0]])


@pytest.mark.parametrize(
    ("layout", "right"),
    [
        ("interleaved", [-1.14264, 1.92208, 2.95985, 4.02980]),
        ("half", [-1.98411, 1.95990, 2.46238, 4.01980]),
    ],
)
def test_case_31_values(layout: str, right: list[float]) -> None:
    rotary = Rotary(4, layout=layout)
    torch.testing.assert_close(rotary(X, torch.tensor([1])), torch.tensor([right]), rtol=0, atol=1e-5)
    assert torch.equal(rotary(X, torch.tensor([0])), X)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_case_31_products_see_the_distance_only_and_norms_are_kept(layout: str) -> None:
    rotary = Rotary(8, layout=layout).double()
    q, k = torch.randn(2, 1, 8, dtype=torch.float64)
    products = [rotary(q, torch.tensor([p + 3])) @ rotary(k, torch.tensor([p])).T for p in (0, 5, 40)]
    for product in products[1:]:
        torch.testing.assert_close(product, products[0], rtol=1e-5, atol=1e-5)
    assert abs(products[0] - rotary(q, torch.tensor([2])) @ rotary(k, torch.tensor([0])).T) > 1e-2
    torch.testing.assert_close(rotary(q, torch.tensor([77])).norm(), q.norm())


def test_case_31_axes_are_not_confused_where_tokens_equal_heads() -> None:
    q = torch.randn(4, 4, 4, 6)  # B, H, N, D
    rotary = Rotary(6)
    y = rotary(q)
    for b in range(4):
        for h in range(4):
            for n in range(4):
                assert torch.equal(y[b, h, n], rotary(q[b, h, n : n + 1], torch.tensor([n]))[0])
    positions = torch.randint(0, 50, (4, 4))  # B, N
    y = rotary(q, positions[:, None])
    for b in range(4):
        assert torch.equal(y[b], rotary(q[b], positions[b]))
    with pytest.raises(ValueError, match=r"add an axis for the heads: positions\[:, None\]"):
        rotary(q, positions)


def test_case_30_bfloat16_at_large_positions() -> None:
    rotary = Rotary(4, layout="interleaved").bfloat16()
    unit = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.bfloat16)
    positions = torch.tensor([256, 257, 4095])
    y = rotary(unit.expand(3, 4), positions)
    assert y.dtype == torch.bfloat16
    assert y[:2, 0].tolist() == pytest.approx([-0.0398, 0.8193], abs=1e-2)
    torch.testing.assert_close(
        y.float(), Rotary(4, layout="interleaved")(unit.float().expand(3, 4), positions), rtol=0, atol=1e-2
    )
    q = torch.randn(3, 64).bfloat16()
    wide = Rotary(64)(q.float(), positions)
    torch.testing.assert_close(Rotary(64).bfloat16()(q, positions).float(), wide, rtol=2**-8, atol=0)


def test_case_32_odd_widths_are_refused_and_partial_leaves_the_rest() -> None:
    with pytest.raises(ValueError, match="even number"):
        Rotary(5)
    with pytest.raises(ValueError, match="even number"):
        Rotary(8, partial=3)
    with pytest.raises(ValueError, match="even number"):
        Rotary(8, partial=10)
    with pytest.raises(ValueError, match="even number on each axis"):
        Rotary(6, axes=2)
    q = torch.randn(2, 5, 9)
    y = Rotary(9, partial=4)(q)
    assert torch.equal(y[..., 4:], q[..., 4:])
    assert torch.equal(y[..., :4], Rotary(4)(q[..., :4]))
    assert torch.equal(Rotary(8, partial=0.5)(q[..., :8]), Rotary(8, partial=4)(q[..., :8]))


def test_axial_turns_each_share_with_its_own_axis() -> None:
    q = torch.randn(5, 8)
    places = torch.randint(0, 9, (5, 2))
    y = Rotary(8, axes=2, layout="interleaved")(q, places)
    for axis in (0, 1):
        share = slice(4 * axis, 4 * axis + 4)
        torch.testing.assert_close(y[:, share], Rotary(4, layout="interleaved")(q[:, share], places[:, axis]))
    with pytest.raises(ValueError, match=r"\(..., N, 2\), got none"):
        Rotary(8, axes=2)(q)
    with pytest.raises(ValueError, match=r"\(..., N, 2\), got \(5,\)"):
        Rotary(8, axes=2)(q, places[:, 0])


def test_scalings_are_the_formulas() -> None:
    q, positions = torch.randn(3, 8), torch.tensor([0, 8, 20])
    torch.testing.assert_close(Rotary(8, linear=4.0)(q, positions), Rotary(8)(q, positions // 4))
    stretched = Rotary(8, ntk=3.0)
    torch.testing.assert_close(stretched.frequencies[0], torch.tensor(1.0))
    assert stretched.frequencies[-1].item() == pytest.approx(Rotary(8).frequencies[-1].item() / 3.0, rel=1e-5)


def test_gradient_turns_back() -> None:
    q = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Rotary(6), (q,))
    grad = torch.randn_like(q)
    (back,) = torch.autograd.grad(Rotary(6)(q), q, grad)
    torch.testing.assert_close(Rotary(6)(back), grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("positions", "error", "match"),
    [
        (torch.arange(3.0), TypeError, "int64 or int32"),
        (torch.arange(4), ValueError, r"expected positions of shape \(..., N\) with \(..., N\) = \(2, 3\), got \(4,\)"),
        (torch.zeros(4, 3, dtype=torch.long), ValueError, r"got \(4, 3\)"),
        (torch.zeros(3, 2, dtype=torch.long), ValueError, "for tokens on a grid use a code with axes"),
    ],
)
def test_wrong_positions_are_refused(positions: torch.Tensor, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        Rotary(4)(torch.randn(2, 3, 4), positions)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"q of shape \(..., N, 4\), got \(2, 3\)"):
        Rotary(4)(torch.randn(2, 3))
    with pytest.raises(ValueError, match="did you mean 'half'"):
        Rotary(4, layout="halv")
    with pytest.raises(ValueError, match="ntk="):
        Rotary(2, ntk=2.0)


def llama(**rope: object) -> object:
    pytest.importorskip("transformers", "5", reason=HF)
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=32,
        num_attention_heads=2,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, **rope},
    )


@pytest.mark.parametrize("scaling", ["default", "linear", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_llama(scaling: str, dtype: torch.dtype) -> None:
    config = llama(rope_type=scaling, factor=4.0)
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    q, k = torch.randn(2, 2, 2, 100, 16).to(dtype)  # of (B, H, N, D)
    positions = torch.stack([torch.arange(100), torch.arange(1000, 1100)])
    cos, sin = LlamaRotaryEmbedding(config)(q, positions)
    expected = apply_rotary_pos_emb(q, k, cos, sin)
    ntk = 4.0 * 1100 / 64 - 3.0  # what "dynamic" makes of 1,100 positions
    rotary = Rotary(16, **{"default": {}, "linear": {"linear": 4.0}, "dynamic": {"ntk": ntk}}[scaling])
    for mine, theirs in zip((rotary(q, positions[:, None]), rotary(k, positions[:, None])), expected, strict=True):
        if dtype == torch.float32 and scaling != "dynamic":
            assert torch.equal(mine, theirs)
        else:  # theirs rounds the cosines to bfloat16 before the product
            torch.testing.assert_close(
                mine,
                theirs,
                rtol=1e-5 if dtype == torch.float32 else 2e-2,
                atol=2e-5 if dtype == torch.float32 else 5e-2,
            )


def test_equals_gpt_neox_with_a_partial_width() -> None:
    pytest.importorskip("transformers", "5", reason=HF)
    from transformers import GPTNeoXConfig
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding, apply_rotary_pos_emb

    config = GPTNeoXConfig(
        hidden_size=32,
        num_attention_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    )
    q, k = torch.randn(2, 2, 2, 9, 16)
    cos, sin = GPTNeoXRotaryEmbedding(config)(q, torch.arange(9)[None])
    expected, _ = apply_rotary_pos_emb(q, k, cos, sin)
    assert torch.equal(Rotary(16, partial=0.25)(q), expected)


def test_equals_gpt_j_interleaved() -> None:
    pytest.importorskip("transformers", "5", reason=HF)
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb, create_sinusoidal_positions

    q = torch.randn(2, 9, 3, 16)  # (B, N, H, D)
    sin, cos = create_sinusoidal_positions(9, 16).expand(2, -1, -1).chunk(2, dim=-1)
    expected = apply_rotary_pos_emb(q, sin, cos)
    mine = Rotary(16, layout="interleaved")(q.transpose(1, 2)).transpose(1, 2)
    torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6)


def test_equals_qwen2_vl_on_two_axes() -> None:
    pytest.importorskip("transformers", "5", reason=HF)
    from transformers.models.qwen2_vl.modeling_qwen2_vl import apply_rotary_pos_emb_vision

    places = torch.cartesian_prod(torch.arange(3), torch.arange(4))
    q = torch.randn(12, 2, 16)  # (N, H, D)
    frequencies = 1.0 / (10000.0 ** (torch.arange(0, 8, 2, dtype=torch.float) / 8))
    turns = (places[..., None] * frequencies).flatten(1)
    turns = torch.cat([turns, turns], dim=-1)
    expected, _ = apply_rotary_pos_emb_vision(q, q, turns.cos(), turns.sin())
    assert torch.equal(Rotary(16, axes=2)(q.transpose(0, 1), places).transpose(0, 1), expected)


def test_offsets_continue_a_sequence() -> None:
    q = torch.randn(2, 10, 8)
    rotary = Rotary(8)
    late = rotary(q[:, 6:], torch.arange(6, 10))
    assert torch.equal(rotary(q)[:, 6:], late)
    assert math.isclose(rotary.frequencies[1].item(), 10000 ** (-2 / 8), rel_tol=1e-6)
