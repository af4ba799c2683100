from __future__ import annotations

import pytest
import torch

from mpnn import EdgeWeights, MessagePassing, capture_weights
from mpnn.neighbours import AllTokens, Full, Graph, Grid, Window
from mpnn.report import attention_maps, dense, of_target, places, weights_of_target
from mpnn.weights import QKSoftmax, SharedKernel, Static


def captured(neighbours, weight, x, *call):
    layer = MessagePassing(neighbours, weight)
    with capture_weights(torch.nn.Sequential(layer)) as weights, torch.no_grad():
        layer(x, *call)
    return weights["0"][0], layer


def test_attention_is_the_matrix_of_the_formula():
    x = torch.randn(2, 7, 8)
    edges, layer = captured(AllTokens(), QKSoftmax(8, heads=2), x)
    rule = layer.weight
    q, k = (part(x[1]).unflatten(-1, (2, 4)).transpose(0, 1) for part in (rule.query, rule.key))
    by_hand = torch.softmax(q @ k.transpose(-1, -2) / 2, -1)
    torch.testing.assert_close(dense(edges, 1), by_hand.detach())
    torch.testing.assert_close(of_target(edges, 3, 1), by_hand[:, 3].detach())


def test_a_convolution_shows_the_norms_of_its_kernel():
    edges, layer = captured(Grid((4, 5), 3), SharedKernel(2, 3), torch.randn(20, 2))
    shown = of_target(edges, 0)[0].reshape(4, 5)
    norms = layer.weight.weight.detach().square().sum((0, 1)).sqrt()
    torch.testing.assert_close(shown[:2, :2], norms[1:, 1:])
    assert shown.isnan().sum() == 16  # the corner hears four cells


def test_a_weight_of_one_number_keeps_its_sign():
    edges, layer = captured(Full(4, 3), Static(), torch.randn(4, 1))
    torch.testing.assert_close(dense(edges)[0], layer.weight.weight.detach().squeeze())


def test_no_neighbour_is_no_weight_of_zero_and_tokens_without_edges_are_there():
    edges, _ = captured(Graph(), SharedKernel(1, 1), torch.ones(5, 1), torch.tensor([[0, 0, 1], [1, 1, 2]]))
    edges = EdgeWeights(edges.source, edges.target, None, torch.tensor([[0.5], [0.25], [0.0]]), edges.size, "heads")
    shown = dense(edges)[0]
    assert shown.shape == (5, 5) and shown[1, 0] == 0.75 and shown[2, 1] == 0  # parallel edges add up
    assert shown.isnan().sum() == 23


def test_pictures_hold_the_captured_weights_and_one_scale():
    x = torch.randn(64, 8)
    edges, _ = captured(Grid((8, 8), 3), QKSoftmax(8, heads=2), x)
    drawn = weights_of_target(edges, 27, over=(8, 8), x=x[:, 0])
    first, *heads, bar = drawn.axes
    assert first.images[0].get_array().flatten().tolist() == pytest.approx(x[:, 0].tolist())
    want = of_target(edges, 27)
    for axes, values in zip(heads, want, strict=True):
        torch.testing.assert_close(
            torch.tensor(axes.images[0].get_array().filled(torch.nan)), values.reshape(8, 8), equal_nan=True
        )
        assert axes.images[0].norm.vmin == 0
        assert axes.images[0].norm.vmax == pytest.approx(float(want.nan_to_num().max()))
        assert axes.lines[0].get_xydata().tolist() == [[3, 3]]  # the target: row 3, column 3
    assert bar.get_ylabel() == "weight (grey: no neighbour)"


def test_a_sequence_is_bars_and_what_is_no_neighbour_is_shaded():
    edges, _ = captured(Window(1), QKSoftmax(4, heads=1), torch.randn(6, 4))
    (axes,) = weights_of_target(edges, 2, over=(6,)).axes
    heights = [bar.get_height() for bar in axes.patches[:6]]
    assert heights == pytest.approx(of_target(edges, 2)[0].nan_to_num().tolist()) and sum(heights) == pytest.approx(1)
    assert len(axes.patches) == 6 + 3 and axes.lines[0].get_xdata() == [2, 2]


def test_a_graph_is_its_nodes_and_edges():
    index = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 1]])
    edges, _ = captured(Graph(), QKSoftmax(4, heads=1), torch.randn(5, 4), index)
    spots = places(edges)
    axes, _ = weights_of_target(edges, 1, over=spots).axes
    lines, others, neighbours, ring = axes.collections
    assert len(lines.get_segments()) == 4 and len(others.get_offsets()) == 3
    assert neighbours.get_offsets().tolist() == spots[[0, 3]].tolist()
    assert neighbours.get_array().tolist() == pytest.approx(of_target(edges, 1)[0, [0, 3]].tolist())
    assert ring.get_offsets().tolist() == [spots[1].tolist()]


def test_two_sets_of_nodes_have_no_lines_and_no_mark():
    index = torch.tensor([[0, 1, 2, 3], [1, 0, 1, 1]])
    edges, _ = captured(Graph(), SharedKernel(4, 4), (torch.randn(5, 4), torch.randn(2, 4)), index)
    axes, _ = weights_of_target(edges, 1, over=places(index, 5)).axes
    assert edges.size == (2, 5) and [len(found.get_offsets()) for found in axes.collections] == [2, 3]


def test_places_repeat_and_take_what_people_have():
    networkx = pytest.importorskip("networkx", reason="networkx lays out graphs")
    from torch_geometric.data import Data

    index = torch.tensor([[0, 1], [1, 2]])
    once = places(index, 4)
    assert (
        once.shape == (4, 2) and torch.equal(once, places(index, 4)) and not torch.equal(once, places(index, 4, seed=1))
    )
    assert torch.equal(once, places(Data(edge_index=index, num_nodes=4)))
    pos = torch.rand(3, 3)
    assert torch.equal(places(Data(edge_index=index, pos=pos)), pos[:, :2])
    named = networkx.Graph([("a", "b"), ("b", "c")])
    assert torch.equal(places(named), places(index))
    with pytest.raises(TypeError, match="expected graph to be captured weights, an edge_index"):
        places([1, 2])


def test_attention_maps_are_the_matrices():
    edges, _ = captured(Window(1), QKSoftmax(8, heads=4), torch.randn(9, 8))
    drawn = attention_maps(edges, parts=(2, 0))
    assert [axes.get_title() for axes in drawn.axes[:2]] == ["head 2", "head 0"]
    for axes, head in zip(drawn.axes[:2], (2, 0), strict=True):
        shown = torch.tensor(axes.images[0].get_array().filled(torch.nan))
        torch.testing.assert_close(shown, dense(edges)[head], equal_nan=True)


ATTENTION = captured(AllTokens(), QKSoftmax(4, heads=2), torch.ones(2, 6, 4))[0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: weights_of_target(ATTENTION, 6, over=(6,)), IndexError, "expected target in 0 … 5, got 6"),
        (lambda: weights_of_target(ATTENTION, True, over=(6,)), TypeError, "expected target to be an int, got True"),
        (lambda: weights_of_target(ATTENTION, 0, over=(2, 2)), ValueError, "expected over to hold the 6 sources"),
        (lambda: weights_of_target(ATTENTION, 0, over=(1, 2, 3)), ValueError, "draw one slice of the grid"),
        (lambda: weights_of_target(ATTENTION, 0, over=6), TypeError, r"expected over to be \(length,\) for a sequence"),
        (lambda: weights_of_target(ATTENTION, 0, over=torch.ones(6, 3)), ValueError, r"places \(N, 2\), got \(6, 3\)"),
        (lambda: weights_of_target(ATTENTION, 0, over=(6,), sample=2), IndexError, "expected sample in 0 … 1, got 2"),
        (lambda: weights_of_target(ATTENTION, 0, over=(6,), parts=(2,)), IndexError, "expected parts in 0 … 1, got 2"),
        (
            lambda: weights_of_target(ATTENTION, 0, over=(6,), x=torch.ones(6, 1)),
            ValueError,
            r"expected x of shape \(6,\)",
        ),
        (lambda: weights_of_target({}, 0, over=(6,)), TypeError, "expected edges to be the weights of one call"),
        (lambda: attention_maps([ATTENTION]), TypeError, "expected edges to be the weights of one call"),
    ],
)
def test_errors_at_the_door(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_too_many_tokens_for_a_map_are_refused():
    end = torch.zeros(1, dtype=torch.int64)
    edges = EdgeWeights(end, end, None, torch.ones(1, 1), (1025, 3), "heads")
    with pytest.raises(ValueError, match=r"at most 1024 targets and sources, got \(1025, 3\)"):
        attention_maps(edges)
