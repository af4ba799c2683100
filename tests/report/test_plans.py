from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

from mpnn import MessagePassing
from mpnn.models import CNN
from mpnn.neighbours import AllTokens, Global, Window
from mpnn.plan import NAMES
from mpnn.report import plan_picture, plan_table, plans_of
from mpnn.weights import QKSoftmax

MODEL, X = CNN(1, (4, 8), 10, size=(9, 9)), torch.ones(2, 81, 1)


def test_the_plans_are_those_of_the_layers():
    found = plans_of(MODEL, X)
    assert list(found) == ["blocks.0.layer", "blocks.1.layer"]
    first = MODEL.blocks[0].layer.plan(X)
    assert str(found["blocks.0.layer"]) == str(first)
    assert found["blocks.1.layer"].spec.channels == 4
    assert not any(module._forward_pre_hooks for module in MODEL.modules())


def test_the_table_has_a_row_a_layer():
    console = Console(width=100, record=True, file=io.StringIO())
    found = plans_of(MODEL, X)
    console.print(plan_table(found))
    text = console.export_text()
    for plan in found.values():
        assert f"{plan.edges:,}" in text and plan.kernel in text
    assert "Grid × SharedKernel" in text and "blocks.1.layer" in text


def test_rich_prints_a_plan_as_its_words():
    plan = MessagePassing(Window(3), QKSoftmax(8, heads=2)).plan(torch.ones(64, 8))
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(plan)
    assert console.export_text().rstrip() == str(plan).rstrip()


def test_a_single_layer_is_a_model():
    layer = MessagePassing(AllTokens(), QKSoftmax(8, heads=2))
    assert plan_table({"": layer.plan(torch.ones(4, 8))}).columns[0]._cells == ["the layer"]
    assert list(plans_of(layer, torch.ones(4, 8))) == [""]


@pytest.mark.parametrize("rule", [Window(3), Window(3) | Global(1), AllTokens()])
def test_the_picture_names_every_kernel_and_why_it_does_not_run(rule):
    plan = MessagePassing(rule, QKSoftmax(8, heads=2)).plan(torch.ones(64, 8))
    texts = [text.get_text() for text in plan_picture(plan).axes[0].texts]
    assert texts[0] == plan.kernel and texts[1].startswith(f"runs: {plan.flops:,} FLOPs")
    names = texts[0::2]
    assert [name for name in names if not name.startswith("·")][1:] == [n for n in NAMES if n != plan.kernel]
    assert len(names) == len(NAMES) + len(plan.parts)
    said = dict(zip(names, (text.replace("\n", " ") for text in texts[1::2]), strict=True))
    assert all(said[name] == "; ".join(why) for name, why in plan.reasons.items())


def test_errors_at_the_door():
    with pytest.raises(TypeError, match="expected plan to be a plan, as layer"):
        plan_picture("sdpa")
    with pytest.raises(TypeError, match="expected model to be a module"):
        plans_of(None, X)
