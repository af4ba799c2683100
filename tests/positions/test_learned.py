"""Learned against nn.Embedding and Hugging Face's ViT, and case 35."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mpnn.positions import Learned
from mpnn.tokens import grid_positions


def test_equals_an_embedding_in_value_and_gradient() -> None:
    code, peer = Learned(4, 8), nn.Embedding(8, 4)
    peer.weight.data.copy_(code.weight.data)
    x = torch.randn(2, 5, 4)
    positions = torch.tensor([[0, 1, 2, 0, 1], [7, 7, 3, 2, 0]])
    for given, rows in ((None, torch.arange(5)), (positions, positions), (positions.int(), positions)):
        code.zero_grad()
        peer.zero_grad()
        y, expected = code(x, given), x + peer(rows)
        torch.testing.assert_close(y, expected)
        y.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(code.weight.grad, peer.weight.grad)


def test_case_35_too_long_is_said_before_the_look_up() -> None:
    code = Learned(4, 8)
    with pytest.raises(ValueError, match="length 9 > max_length 8"):
        code(torch.zeros(9, 4))
    with pytest.raises(IndexError, match="positions from 0 to 7, got 8"):
        code(torch.zeros(2, 4), torch.tensor([3, 8]))
    with pytest.raises(IndexError, match="positions from 0 to 7, got -1"):
        code(torch.zeros(2, 4), torch.tensor([-1, 0]))


def test_case_34_a_grid_reads_row_major() -> None:
    code = Learned(2, (3, 4))
    x = torch.zeros(12, 2)
    assert torch.equal(code(x), code.weight)
    assert torch.equal(code(x, grid_positions((3, 4))), code.weight)
    table = code.weight.view(3, 4, 2)
    places = torch.tensor([[0, 3], [1, 0], [2, 3]])
    assert torch.equal(code(x[:3], places), torch.stack([table[0, 3], table[1, 0], table[2, 3]]))
    with pytest.raises(IndexError, match="positions from 0 to 3, got 4"):
        code(x[:1], torch.tensor([[0, 4]]))
    with pytest.raises(ValueError, match=r"12 tokens for max_length \(3, 4\), got 3"):
        code(x[:3])


def test_resize_equals_vit() -> None:
    pytest.importorskip("transformers", "5", reason="needs transformers 5: pip install mpnn[hf]")
    from transformers import ViTConfig
    from transformers.models.vit.modeling_vit import ViTEmbeddings

    vit = ViTEmbeddings(ViTConfig(image_size=16, patch_size=4, hidden_size=6))
    nn.init.normal_(vit.position_embeddings)
    code = Learned(6, (4, 4))
    code.weight.data.copy_(vit.position_embeddings[0, 1:])
    expected = vit.interpolate_pos_encoding(torch.zeros(1, 1 + 24, 6), 16, 24)[0, 1:]
    resized = code.resize((4, 6))
    torch.testing.assert_close(resized.weight, expected)
    assert resized.weight.requires_grad
    assert code.resize((4, 4)).weight.equal(code.weight)


def test_resize_on_one_axis_is_linear() -> None:
    code = Learned(1, 4).bfloat16()
    code.weight.data.copy_(torch.tensor([[0.0], [1.0], [2.0], [3.0]]))
    longer = code.resize(8)
    assert longer.weight.dtype == torch.bfloat16
    assert longer.weight.flatten().tolist() == [0.0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3.0]
    with pytest.raises(ValueError, match="with 1 numbers"):
        code.resize((2, 4))


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="max_length ≥ 1, got 0"):
        Learned(4, 0)
    with pytest.raises(TypeError, match="max_length to be an int"):
        Learned(4, (2, 2.5))
