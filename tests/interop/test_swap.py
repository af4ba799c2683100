"""Another neighbourhood in a converted model, or in one of ours: where, what is refused, and back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from helpers.bridged import EXACT
from helpers.converted import image, model
from mpnn import MessagePassing
from mpnn.interop import convert, revert, swap
from mpnn.models import Transformer
from mpnn.neighbours import AllTokens, Global, Graph, Grid, Window

ATTENTIONS = ["encoder.layers.0.layer", "encoder.layers.1.layer", "pool"]


@pytest.mark.parametrize(
    ("where", "changed"),
    [
        (None, ATTENTIONS),
        ("pool", ["pool"]),
        ("encoder", ATTENTIONS[:2]),
        ("encoder.layers.1", ATTENTIONS[1:2]),
        ("encoder.layers.1.layer", ATTENTIONS[1:2]),
        ("encoder.*.1", ATTENTIONS[1:2]),
        (["pool", "*.0"], ["pool", ATTENTIONS[0]]),
        (lambda name, layer: name.endswith("layer") and layer.weight.heads == 2, ATTENTIONS[:2]),
    ],
)
def test_swap_by_names_globs_and_functions(where: Any, changed: list[str]) -> None:
    net, rule = model(), Window(2) | Global(1)
    convert(net)
    assert swap(net, neighbours=rule, where=where) == changed
    now = {n.replace(".core", ""): m.neighbours for n, m in net.named_modules() if isinstance(m, MessagePassing)}
    assert {name for name, found in now.items() if found is rule} == set(changed)
    assert net(image()).isfinite().all()


@pytest.mark.parametrize(
    ("neighbours", "where", "error", "words"),
    [
        (Window(1), "heads", ValueError, "expected where to name layers with a rule, got 'heads'; they are patch, mix"),
        (Window(1), ["pool", "nobody.*"], ValueError, "got 'nobody"),
        (
            Window(1),
            ["pool", "mix"],
            ValueError,
            r"mix cannot take Window\(1, 1\): expected a neighbourhood of the same",
        ),
        (Graph(), None, ValueError, r"encoder.layers.0.layer cannot take Graph\(\): expected the edges in the rule"),
        (Graph(), "patch", ValueError, r"patch cannot take Graph\(\): expected the edges in the rule"),
        (Grid(axes=2), "pool", ValueError, r"pool cannot take Grid\(axes=2.*: expected the size in the rule"),
        (Window, None, TypeError, "expected neighbours to be a rule of mpnn.neighbours, got the class Window"),
        ("window", None, TypeError, "expected neighbours to be a rule of mpnn.neighbours, got str"),
    ],
)
def test_a_refused_swap_changes_nothing(neighbours: Any, where: Any, error: type[Exception], words: str) -> None:
    net, x = model(), image()
    convert(net)
    y = net(x)
    with pytest.raises(error, match=words):
        swap(net, neighbours=neighbours, where=where)
    assert torch.equal(net(x), y)


def test_a_convolution_takes_a_grid_of_any_size() -> None:
    net, x = model(), image()
    net.mix.padding_mode = "circular"
    y = net(x)
    net.mix.padding_mode = "zeros"
    convert(net)
    swap(net, neighbours=Grid(axes=2, padding=(1, 1), border="circular"), where="mix")
    torch.testing.assert_close(net(x), y)


def test_a_softmax_over_weighted_loops_is_refused_as_in_a_layer() -> None:
    net = Transformer(4, 8, 1, 3)
    with pytest.raises(ValueError, match="loop_weight would be ignored by a softmax"):
        swap(net, neighbours=Graph(self_loops="add", loop_weight=2.0))
    assert swap(net, neighbours=Graph()) == ["blocks.0.layer"]  # its call brings edges
    with pytest.raises(ValueError, match="expected edge_index at the call"):
        net(torch.ones(2, 4))


def test_attention_to_a_memory_is_left_alone_unless_it_is_named() -> None:
    net, x, memory = (
        nn.TransformerDecoderLayer(8, 2, 12, 0.0, batch_first=True),
        torch.randn(2, 6, 8),
        torch.randn(2, 4, 8),
    )
    convert(net)
    assert swap(net, neighbours=Window(1)) == ["layer"]
    changed = net(x, memory)
    band = (torch.arange(6)[:, None] - torch.arange(6)).abs() > 1
    revert(net)
    torch.testing.assert_close(changed, net(x, memory, tgt_mask=band))
    convert(net)
    assert swap(net, neighbours=Window(1), where="cross") == ["cross"]


def test_a_swapped_rule_is_undone_by_revert() -> None:
    net, x = model(), image()
    y = net(x)
    convert(net)
    swap(net, neighbours=Window(1))
    assert not torch.allclose(net(x), y)
    swap(net, neighbours=AllTokens())
    torch.testing.assert_close(net(x), y, **EXACT)
    swap(net, neighbours=Window(1))
    revert(net)
    torch.testing.assert_close(net(x), y, **EXACT)


def test_swap_in_a_model_of_ours() -> None:
    net = Transformer(4, 8, 2, 3, heads=2)
    x = torch.randn(2, 6, 4)
    y = net(x)
    assert swap(net, neighbours=Window(1), where="blocks.1") == ["blocks.1.layer"]
    assert not torch.allclose(net(x), y)
