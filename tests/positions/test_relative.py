"""RelativeBias against Hugging Face's T5 and Swin, and a loop over pairs."""

from __future__ import annotations

import pytest
import torch

from mpnn.positions import ALiBi, OffsetBuckets, RelativeBias, T5Buckets, WindowBuckets
from mpnn.tokens import grid_positions

HF = "needs transformers 5: pip install mpnn[hf]"


def test_offsets_by_hand() -> None:
    bias = RelativeBias.offsets(2, max_distance=3)
    n = 6
    b = bias(torch.arange(n)[:, None], torch.arange(n)[None])
    for i in range(n):
        for j in range(n):
            assert torch.equal(b[i, j], bias.weight[max(-3, min(3, j - i)) + 3])
    b.sum().backward()
    count = torch.tensor([sum(max(-3, min(3, j - i)) + 3 == k for i in range(n) for j in range(n)) for k in range(7)])
    assert torch.equal(bias.weight.grad, count[:, None].float().expand(7, 2))


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 20), (4, 7)])
def test_t5_buckets(buckets: int, distance: int, bidirectional: bool) -> None:
    pytest.importorskip("transformers", "5", reason=HF)
    from transformers.models.t5.modeling_t5 import T5Attention

    bias = RelativeBias.t5(3, buckets, distance, bidirectional)
    offset = torch.arange(-300, 301)
    theirs = T5Attention._relative_position_bucket(offset, bidirectional, buckets, distance)
    assert torch.equal(bias(torch.zeros_like(offset), offset), bias.weight[theirs])
    assert torch.equal(bias(-offset, torch.zeros_like(offset)), bias.weight[theirs])


def test_t5_by_hand() -> None:
    table = T5Buckets(8, 20, bidirectional=True).table().tolist()  # offsets -20 … 20
    assert table[20] == 0
    assert [table[20 + d] for d in (1, 2, 20)] == [5, 6, 7]
    assert [table[20 - d] for d in (1, 2, 20)] == [1, 2, 3]
    assert set(T5Buckets(8, 20, bidirectional=False).table().tolist()[20:]) == {0}


def test_equals_swin() -> None:
    pytest.importorskip("transformers", "5", reason=HF)
    from transformers.models.swin.modeling_swin import SwinRelativePositionBias

    bias = RelativeBias.swin(4, (3, 5))
    places = grid_positions((3, 5)) + torch.tensor([7, 2])
    mine = bias(places[:, None], places[None]).permute(2, 0, 1)
    swin = SwinRelativePositionBias(4, (3, 5))
    swin.relative_position_bias_table.data.copy_(bias.weight.detach())
    assert torch.equal(mine, swin()[0])


@pytest.mark.parametrize("window", [(4,), (2, 3), (2, 3, 2)])
def test_windows_by_hand(window: tuple[int, ...]) -> None:
    bias = RelativeBias.swin(2, window)
    assert bias.axes == len(window)
    places = grid_positions(window)
    b = bias(places[:, None], places[None])
    seen = {}
    for i, target in enumerate(places.tolist()):
        for j, source in enumerate(places.tolist()):
            row = 0
            for t, s, size in zip(target, source, window, strict=True):
                row = row * (2 * size - 1) + t - s + size - 1
            seen[row] = True
            assert torch.equal(b[i, j], bias.weight[row])
    assert len(seen) == len(bias.weight)


def test_offsets_beyond_a_window_are_those_at_its_edge() -> None:
    bias = RelativeBias.swin(1, (2, 2))
    far = bias(torch.tensor([[9, 0]]), torch.tensor([[0, 0]]))
    assert torch.equal(far, bias(torch.tensor([[1, 0]]), torch.tensor([[0, 0]])))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_result_is_float32_at_least(dtype: torch.dtype) -> None:
    bias = RelativeBias(2).to(dtype)
    b = bias(torch.arange(3), torch.arange(3))
    assert b.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    b.sum().backward()
    assert bias.weight.grad.dtype == dtype


def test_gradcheck() -> None:
    bias = RelativeBias(2, OffsetBuckets(2)).double()
    places = torch.arange(4)

    def f(weight: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(bias, {"weight": weight}, (places[:, None], places[None]))

    assert torch.autograd.gradcheck(f, bias.weight)
    assert torch.autograd.gradgradcheck(f, bias.weight)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="max_distance ≥ 1, got 0"):
        OffsetBuckets(0)
    with pytest.raises(ValueError, match="at least 4 buckets and a max_distance above 8, got 32 and 8"):
        T5Buckets(32, 8)
    with pytest.raises(TypeError, match="window to be a tuple"):
        WindowBuckets(7)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 3)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    places = torch.zeros(shape, dtype=torch.long)
    for bias in (RelativeBias.t5(4), ALiBi(4)):
        assert bias(places, places + 1).shape == (*shape, 4)
    grid = torch.zeros(*shape, 2, dtype=torch.long)
    assert RelativeBias.swin(4, (2, 2))(grid, grid).shape == (*shape, 4)
