"""ALiBi's slopes (case 33) and the attention of Hugging Face's BLOOM."""

from __future__ import annotations

import pytest
import torch

from mpnn.positions import ALiBi


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [0.00390625]),
        (3, [0.0625, 0.00390625, 0.25]),
        (6, [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]),
        (8, [2.0**-i for i in range(1, 9)]),
    ],
)
def test_case_33_slopes(heads: int, slopes: list[float]) -> None:
    bias = ALiBi(heads)
    target, source = torch.arange(4)[:, None], torch.arange(5)[None]
    b = bias(target, source)
    assert b.shape == (4, 5, heads)
    assert b.dtype == torch.float32
    expected = torch.tensor([[[-s * abs(i - j) for s in slopes] for j in range(5)] for i in range(4)])
    torch.testing.assert_close(b, expected)


def test_case_33_layers_of_different_heads_share_nothing() -> None:
    six, three = ALiBi(6), ALiBi(3)
    one = torch.ones(1, dtype=torch.long)
    assert six(one, 0 * one).shape == (1, 6)
    assert three(one, 0 * one)[0].tolist() == pytest.approx([-0.0625, -0.00390625, -0.25])
    assert six(one, 0 * one)[0].tolist() == pytest.approx([-0.25, -0.0625, -0.015625, -0.00390625, -0.5, -0.125])


def test_pairs_of_edges_equal_the_dense_table() -> None:
    bias, n = ALiBi(4), 7
    target, source = torch.randint(0, n, (2, 20))
    dense = bias(torch.arange(n)[:, None], torch.arange(n)[None])
    assert torch.equal(bias(target, source), dense[target, source])
    assert torch.equal(bias(target.int(), source.int()), dense[target, source])


def test_distances_are_exact_in_half_precision() -> None:
    b = ALiBi(8).half()(torch.tensor([4097]), torch.tensor([0]))
    assert b.dtype == torch.float32
    assert b[0, 0].item() == -0.5 * 4097


@pytest.mark.parametrize("heads", [4, 6])
def test_equals_bloom_under_a_causal_mask(heads: int) -> None:
    pytest.importorskip("transformers", "5", reason="needs transformers 5: pip install mpnn[hf]")
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    n = 9
    theirs = build_alibi_tensor(torch.ones(1, n), heads, torch.float32)  # (heads, 1, n)
    mine = ALiBi(heads)(torch.arange(n)[:, None], torch.arange(n)[None]).permute(2, 0, 1)
    scores = torch.randn(heads, n, n).masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -torch.inf)
    torch.testing.assert_close((scores + mine).softmax(-1), (scores + theirs).softmax(-1))
