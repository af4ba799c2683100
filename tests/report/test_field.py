from __future__ import annotations

import pytest
import torch

from mpnn import MessagePassing, capture_weights
from mpnn.models import CNN, GNN, Network, PlainBlock, Transformer
from mpnn.neighbours import AllTokens, Graph, Window
from mpnn.report import field_by_edges, field_by_gradients, receptive_field
from mpnn.weights import QKSoftmax, SharedKernel


def weights_of(model, *call):
    with capture_weights(model) as weights, torch.no_grad():
        model(*call)
    return weights


def test_both_ways_agree_with_the_windows_of_a_convolution():
    model, x = CNN(2, (3, 3, 3), 10, size=(7, 9), activation=torch.nn.Tanh), torch.randn(63, 2)
    gradients, edges = field_by_gradients(model, x, 31, over=(7, 9)), field_by_edges(weights_of(model, x), 31)
    row, column = torch.arange(7)[:, None] - 3, torch.arange(9) - 4
    for depth in range(3):
        near = (row.abs() <= depth + 1) & (column.abs() <= depth + 1)
        assert torch.equal(gradients.values[depth] > 0, near.flatten())
        assert torch.equal(edges.values[depth] > 0, near.flatten())


def test_gradients_are_the_jacobian():
    layers = [MessagePassing(Window(1), SharedKernel(2, 3)), MessagePassing(Window(1), SharedKernel(3, 4))]
    model, x = Network([PlainBlock(layer, torch.nn.Tanh()) for layer in layers]), torch.randn(6, 2)
    field = field_by_gradients(model, x, 2, over=(6,))
    first = torch.autograd.functional.jacobian(lambda v: layers[0](v)[2], x)
    second = torch.autograd.functional.jacobian(lambda v: layers[1](torch.tanh(layers[0](v)))[2], x)
    for row, whole in zip(field.values, (first, second), strict=True):
        torch.testing.assert_close(row, whole.square().sum((0, 2)).sqrt())


def test_skips_are_seen_by_gradients_and_told_to_the_edges():
    # Attention to the token before: with a skip two layers reach the token itself, without one the step before alone.
    chain = torch.stack([torch.arange(4), torch.arange(1, 5)])
    weight = lambda a, b: SharedKernel(a, b)  # noqa: E731
    x = torch.randn(5, 3)
    for residual in (False, True):
        model = GNN(3, (3, 3), 2, neighbours=Graph(), weight=weight, residual=residual, activation=torch.nn.Tanh)
        gradients = field_by_gradients(model, x, 4, over=(5,), edge_index=chain).values > 0
        edges = field_by_edges(weights_of(model, x, chain), 4, skips=residual).values > 0
        assert gradients[1].tolist() == [False, False, True, residual, False]
        # The edges speak of the blocks' outputs, the gradients of the layers': the block adds the token itself.
        assert edges[1].tolist() == [False, False, True, residual, residual]


def test_masked_pairs_are_no_paths():
    layer = MessagePassing(AllTokens(), QKSoftmax(4, heads=2))
    model = torch.nn.Sequential(layer)
    with capture_weights(model) as weights, torch.no_grad():
        layer(torch.randn(5, 4), mask=torch.tensor([True, True, False, True, True]))
    assert field_by_edges(weights, 0).values.tolist() == [[1, 1, 0, 1, 1]]


def test_strided_layers_take_a_target_each():
    model, x = CNN(1, (2, 2), 3, size=(16,), stride=2, padding=1), torch.randn(16, 1)
    with pytest.raises(IndexError, match=r"expected a target in 0 … 3 for layer 'blocks.1.layer', got 7"):
        field_by_gradients(model, x, 7, over=(16,))
    field = field_by_edges(weights_of(model, x), (7, 3))
    assert field.values.nonzero()[:, 1].tolist() == [13, 14, 15, 9, 10, 11, 12, 13, 14, 15]


def test_a_picture_as_input():
    model = Transformer(3, 8, 1, 4, tokens=torch.nn.Sequential(torch.nn.Flatten(2), Swap()))
    field = field_by_gradients(model, torch.randn(1, 3, 4, 5), 7, over=(4, 5))
    assert field.values.shape == (1, 20) and bool((field.values > 0).all())


class Swap(torch.nn.Module):
    def forward(self, x):
        return x.transpose(1, 2)


def test_the_picture_holds_the_shares_and_says_the_way():
    model, x = CNN(1, (3, 3), 10, size=(7, 9)), torch.randn(63, 1)
    field = field_by_gradients(model, x, 31, over=(7, 9))
    drawn = receptive_field(field, over=(7, 9))
    assert "by gradients" in drawn.get_suptitle()
    for axes, row in zip(drawn.axes[:2], field.values, strict=True):
        shown = torch.tensor(axes.images[0].get_array().filled(0)).flatten()
        torch.testing.assert_close(shown, row / row.max())
    assert [axes.get_title() for axes in drawn.axes[:2]] == ["after layer 1: 9 of 63", "after layer 2: 25 of 63"]


def test_the_model_is_left_as_it_was():
    model = Transformer(2, 8, 1, 4, dropout=0.5).train()
    x = torch.randn(5, 2)
    field_by_gradients(model, x, 0, over=(5,))
    assert model.training and not x.requires_grad and all(p.grad is None for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_layer_that_is_called_twice_is_two_layers():
    layer = MessagePassing(Window(1), SharedKernel(2, 2))
    field = field_by_gradients(torch.nn.Sequential(layer, torch.nn.Tanh(), layer), torch.randn(7, 2), 3, over=(7,))
    assert field.layers == ("0", "0") and (field.values > 0).sum(-1).tolist() == [3, 5]


MODEL = CNN(1, (2,), 3, size=(6,))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: field_by_gradients(MODEL, torch.ones(6, 1), 6, over=(6,)), IndexError, "a target in 0 … 5"),
        (lambda: field_by_gradients(MODEL, torch.ones(6, 1), (1, 2), over=(6,)), ValueError, "of 1 layers, got 2"),
        (lambda: field_by_gradients(MODEL, torch.ones(2, 6, 1), 0, over=(6,)), ValueError, "one sample, got 2 of them"),
        (lambda: field_by_gradients(MODEL, torch.ones(6, 1), 0, over=(7,)), ValueError, r"x of shape \(..., 7, C\)"),
        (lambda: field_by_gradients(torch.nn.Linear(1, 1), torch.ones(6, 1), 0, over=(6,)), ValueError, "is called"),
        (lambda: field_by_gradients(None, torch.ones(6, 1), 0, over=(6,)), TypeError, "expected model to be a module"),
        (lambda: field_by_gradients(MODEL, torch.ones(6, 1).long(), 0, over=(6,)), TypeError, "floating-point dtype"),
        (lambda: field_by_edges([], 0), TypeError, "expected captured to be what capture_weights"),
        (lambda: field_by_edges({}, 0), ValueError, "a message passing layer that is called, got none"),
        (lambda: receptive_field(None, over=(6,)), TypeError, "expected field to be a Field"),
    ],
)  # fmt: skip
def test_errors_at_the_door(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_edges_refuse_layers_that_do_not_follow_and_layers_called_twice():
    layer = MessagePassing(Window(1), SharedKernel(2, 2))
    model = torch.nn.Sequential(layer)
    with capture_weights(model) as weights, torch.no_grad():
        layer(layer(torch.ones(4, 2)))
    with pytest.raises(ValueError, match="got 2 calls of '0'"):
        field_by_edges(weights, 0)
    with capture_weights(model) as other, torch.no_grad():
        layer(torch.ones(7, 2))
    with pytest.raises(ValueError, match="which hears 7 tokens after 4"):
        field_by_edges({"a": weights["0"][:1], "b": other["0"]}, 0)
