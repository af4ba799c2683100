"""PyG's convolutions as configurations of the core: the same values, gradients and parameters, both ways."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

from mpnn.experiments.verify_pyg import Case, cases
from mpnn.experiments.verify_pyg_calls import Graph, bipartite, graphs
from mpnn.interop import convert, from_layer, to_layer
from mpnn.interop.layer import find

CASES = cases()
FIRST = [(c, (bipartite() if c.two_sets else graphs())[0]) for c in CASES]
DEFAULTS = [(c, g) for c, g in FIRST if "{" not in c.name or "{}" in c.name]  # each layer once or twice
REST = [
    (c, g)
    for c in CASES
    for g in (bipartite() if c.two_sets else graphs())[1:]
    if g.name not in c.fails_on and (g.name != "one node" or c in [d for d, _ in DEFAULTS])
]


def make(case: Case) -> nn.Module:
    """The layer in float64 with parameters that are nowhere 0 or 1."""
    layer = case.make().double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def leaves(args: Any) -> list[Tensor]:
    """The tensors of a call that have gradients."""
    flat = torch.utils._pytree.tree_leaves(args)
    return [t for t in flat if isinstance(t, Tensor) and t.requires_grad]


def run(layer: nn.Module, args: tuple, given: dict[str, Any]) -> tuple[Tensor, list]:
    """The output, and gradients of a sum that weighs its entries differently."""
    y = layer(*args, **given)
    wanted = [*leaves((args, given)), *(p for p in layer.parameters() if p.requires_grad)]
    loss = (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)).sum()
    return y, list(torch.autograd.grad(loss, wanted, allow_unused=True)) if wanted and loss.requires_grad else []


def zero_as_none(grads: list) -> list:
    return [None if g is None or not g.any() else g for g in grads]


def assert_same(ours: tuple[Tensor, list], theirs: tuple[Tensor, list], within: float) -> None:
    torch.testing.assert_close(ours[0], theirs[0], rtol=within, atol=within)
    assert len(ours[1]) == len(theirs[1])
    for a, b in zip(zero_as_none(ours[1]), zero_as_none(theirs[1]), strict=True):
        one = next((t for t in (a, b) if t is not None), None)
        if one is not None:
            a, b = (torch.zeros_like(one) if t is None else t for t in (a, b))
            torch.testing.assert_close(a, b, rtol=within, atol=within)


def names(pairs: list[tuple[Case, Graph]]) -> list[str]:
    return [f"{case.name}-{graph.name}" for case, graph in pairs]


def assert_drop_in_equals(case: Case, graph: Graph, training: bool) -> None:
    layer = make(case).train(training)
    args, given = case.call(graph)
    ours = copy.deepcopy(layer)
    theirs = run(layer, args, given)
    report = convert(ours)
    assert [row.left for row in report.rows] == [None] and report.rows[0].kind == "graph"
    assert list(ours.state_dict()) == list(layer.state_dict())
    assert_same(run(ours, args, given), theirs, case.within)
    for (name, a), b in zip(ours.state_dict().items(), layer.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12, msg=name)  # running statistics too


@pytest.mark.parametrize(("case", "graph"), FIRST, ids=names(FIRST))
def test_drop_in_equals_the_original_in_training(case: Case, graph: Graph) -> None:
    assert_drop_in_equals(case, graph, training=True)


@pytest.mark.parametrize(("case", "graph"), REST, ids=names(REST))
def test_drop_in_equals_the_original_on_small_graphs(case: Case, graph: Graph) -> None:
    assert_drop_in_equals(case, graph, training=False)


@pytest.mark.parametrize(("case", "graph"), FIRST, ids=names(FIRST))
def test_from_layer_computes_the_same_and_goes_back(case: Case, graph: Graph) -> None:
    layer = make(case).eval()
    core = from_layer(layer)
    args, given = case.call(graph)
    near = {"rtol": case.within, "atol": case.within}
    bridge = find(layer)
    assert bridge is not None and not core.training
    torch.testing.assert_close(bridge.call(layer, core, *args, **given), layer(*args, **given), **near)
    again = to_layer(core)
    assert type(again) is type(layer) and not again.training
    assert list(again.state_dict()) == list(layer.state_dict())
    for (name, a), b in zip(again.state_dict().items(), layer.state_dict().values(), strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b), name
    assert [p.requires_grad for p in again.parameters()] == [p.requires_grad for p in layer.parameters()]
    torch.testing.assert_close(again(*args, **given), layer(*args, **given), rtol=0, atol=0)
    assert repr(again) == repr(layer)


@pytest.mark.parametrize(("case", "graph"), DEFAULTS, ids=names(DEFAULTS))
def test_shared_parameters_are_seen_by_both(case: Case, graph: Graph) -> None:
    layer = make(case).eval()
    bridge = find(layer)
    assert bridge is not None
    core, near = from_layer(layer, share=True), {"rtol": case.within, "atol": case.within}
    args, given = case.call(graph)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(0.7).add_(0.1)
    torch.testing.assert_close(bridge.call(layer, core, *args, **given), layer(*args, **given), **near)


def test_blocks_of_relations_have_another_layout_and_are_not_shared() -> None:
    layer = pyg.RGCNConv(4, 6, 3, num_blocks=2)
    with pytest.raises(ValueError, match="weight has another layout than the parameter of RGCNConv"):
        from_layer(layer, share=True)
