"""What was made for a rule is not used for another one, nor for the same rule after a change."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from mpnn import MessagePassing, attend, use_kernels
from mpnn.neighbours import KNN, AllTokens, Blocks, Global, Graph, Neighbours, Random, Window
from mpnn.positions import RelativeBias
from mpnn.weights import QKSoftmax, SharedKernel

KERNELS = ("reference", "native", "edge_softmax", "tiles", "merge")


def graph() -> Graph:
    return Graph(torch.tensor([[0, 5, 7], [5, 0, 11]]), num_nodes=12)


def on_each(rule: Neighbours, **given: Tensor) -> dict[str, Tensor]:
    """attend by every kernel that can, on the same tensors."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 12, 4, generator=generator, dtype=torch.float64)
    found = {}
    for kernel in KERNELS:
        try:
            found[kernel] = attend(q, q, q, rule, kernel=kernel, **given)
        except ValueError as error:
            if "expected a kernel" not in str(error):
                raise
    return found


@pytest.mark.parametrize("batched", [False, True])
def test_expressions_over_one_graph_are_not_taken_for_one_another(batched: bool) -> None:
    g, batch = graph(), torch.tensor([0] * 6 + [1] * 6)
    given = {"batch": batch} if batched else {}
    g = Graph(torch.tensor([[0, 5, 7], [5, 0, 11]]), num_nodes=12)
    for make in (lambda w: w - g, lambda w: w | g, lambda w: w & g, lambda w: g - w):
        for width in (1, 3):
            rule = make(Window(width))
            fresh = make(Window(width))
            twin = {"batch": batch.clone()} if batched else {}
            torch.testing.assert_close(on_each(rule, **given), on_each(copy.deepcopy(fresh), **twin))


def test_a_union_and_its_parts_keep_apart() -> None:
    batch = torch.tensor([0] * 6 + [1] * 6)
    q = torch.randn(2, 12, 4)
    rule = Window(1) | graph()
    attend(q, q, q, rule, batch=batch, kernel="merge")
    _, edges = attend(q, q, q, rule, batch=batch, return_weights=True)
    assert len(edges.source) == 2 * (3 * 6 - 2) + 3


def test_a_change_of_a_rule_inside_is_seen() -> None:
    w, g = Window(1), graph()
    for rule in (w - g, w | g, (w | Global(1)) - g, w & AllTokens()):
        on_each(rule)
    w.left = w.right = 3
    for rule, fresh in ((w - g, Window(3) - g), (w & AllTokens(), Window(3) & AllTokens())):
        torch.testing.assert_close(on_each(rule), on_each(fresh))
    with pytest.raises(AttributeError, match="make a new one"):
        (w | g).left = Window(2)
    for _ in range(40):  # more than are kept: what is forgotten is found again under what it was kept for
        v = Window(1)
        on_each(v)
        v.left = v.right = 2
        on_each(v)


@pytest.mark.parametrize("weight", [lambda: QKSoftmax(8, 2), lambda: SharedKernel(8, 8)])
def test_a_remembered_call_sees_a_change_below(weight) -> None:  # type: ignore[no-untyped-def]
    x = torch.randn(12, 8)
    for rule, change in (
        (Window(3) | Random(4, 0), lambda r: setattr(r.right, "seed", 5)),
        (Window(5) & Random(4, 0), lambda r: setattr(r.right, "seed", 5)),
        (graph(), lambda r: r.edge_index[0].fill_(11)),
        (graph() | Window(1), lambda r: r.left.edge_index[0].fill_(11)),
    ):
        layer = MessagePassing(rule, weight())
        before = layer(x), layer(x)
        change(rule)
        after = layer(x)
        fresh = MessagePassing(copy.deepcopy(rule), layer.weight)
        torch.testing.assert_close(after, fresh(x))
        assert not torch.allclose(after, before[1])


def test_blocks_of_the_reference_leave_the_parameters_alone() -> None:
    layer = MessagePassing(Window(1), QKSoftmax(8, 2, score_bias=RelativeBias(2)), kernel="reference")
    before = dict(layer.named_parameters())
    with use_kernels(block=40):
        layer(torch.randn(30, 8)).sum().backward()
    assert all(p is before[n] and p.grad is not None for n, p in layer.named_parameters())
    copy.deepcopy(layer).double()


def test_a_bias_may_blank_a_row() -> None:
    q = torch.randn(2, 40, 8, dtype=torch.float64, requires_grad=True)
    for learned, dropout in ((True, 0.0), (False, 0.0), (False, 0.5)):
        bias = torch.zeros(40, 40, dtype=torch.float64)
        bias[5] = -torch.inf
        bias.requires_grad_(learned)
        for rule in (Window(2), Window(2) | Global(1), Blocks(4)):
            y = attend(q, q, q, rule, score_bias=bias, dropout=dropout)
            (grad,) = torch.autograd.grad(y.sum(), q)
            assert y.isfinite().all() and grad.isfinite().all() and not y[:, 5].any()


@pytest.mark.parametrize("shape", [(2, 0, 8), (0, 30, 8)])
def test_no_tokens_have_gradients_of_zero(shape: tuple[int, ...]) -> None:
    layer = MessagePassing(Window(3), QKSoftmax(8, 2, score_bias=RelativeBias(2), dropout=0.1))
    y = layer(torch.randn(*shape))
    y.sum().backward()
    assert y.shape == shape and all(p.grad is not None for p in layer.parameters())
    assert MessagePassing(AllTokens(max_tokens=30), SharedKernel(8, 8))(torch.randn(*shape)).shape == shape


@pytest.mark.parametrize(
    "rule",
    [Blocks((2, 2), grid=(4, 5)), Window(2) - Random(2, 0), Random(2, 0) | Window(1), Window(3) & KNN(4)],
    ids=repr,
)
def test_compiled_expressions(rule: Neighbours) -> None:
    layer, x = MessagePassing(rule, QKSoftmax(8, 2)).double(), torch.randn(20, 8, dtype=torch.float64)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), layer(x))


def test_work_follows_the_tokens() -> None:
    q = torch.randn(1, 12, 4)
    for rule in (Window(3, dilation=10**12), Blocks(3, halo=10**9), Random(10**6, 0), Global(10**9)):
        assert attend(q, q, q, rule).shape == q.shape
        assert attend(q, q, q, rule, kernel="reference").shape == q.shape
