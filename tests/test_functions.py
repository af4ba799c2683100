"""mpnn.functions.linear: the product alone, unless something would be passed by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrize, prune

from mpnn import MessagePassing
from mpnn.functions import linear
from mpnn.neighbours import AllTokens, Graph
from mpnn.weights import QKSoftmax

EDGES = torch.tensor([[0, 1, 2, 3, 2, 3, 0, 1], [1, 2, 3, 0, 1, 2, 3, 0]])  # two sources each


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


class Shifted(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


def forward_hook(layer: nn.Linear) -> None:
    layer.register_forward_hook(lambda module, given, y: y + 1)


def forward_pre_hook(layer: nn.Linear) -> None:
    layer.register_forward_pre_hook(lambda module, given: (given[0] + 1,))


def own_forward(layer: nn.Linear) -> None:
    before = layer.forward
    layer.forward = lambda x: before(x) + 1  # type: ignore[method-assign]


def parametrized(layer: nn.Linear) -> None:
    parametrize.register_parametrization(layer, "weight", Doubled())


def pruned(layer: nn.Linear) -> None:
    prune.l1_unstructured(layer, "weight", amount=0.5)


def own_class(layer: nn.Linear) -> None:
    layer.__class__ = Shifted


def replaced(layer: nn.Linear) -> None:
    weight = layer.weight.detach() + 1
    del layer.weight
    layer.weight = weight  # a plain tensor, as some libraries lend


CHANGES = (forward_hook, forward_pre_hook, own_forward, parametrized, pruned, own_class, replaced)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("bias", [True, False])
def test_what_changes_a_linear_is_not_passed_by(change: Callable[[nn.Linear], None], bias: bool) -> None:
    layer, x = nn.Linear(3, 4, bias=bias), torch.randn(2, 3)
    before = linear(layer, x)
    assert torch.equal(before, layer(x))
    change(layer)
    assert torch.equal(linear(layer, x), layer(x))
    assert not torch.equal(linear(layer, x), before)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("part", ["query", "key", "value", "output"])
@pytest.mark.parametrize("edges", [None, EDGES], ids=["dense", "graph"])
def test_a_layer_hears_what_changes_its_parts(
    change: Callable[[nn.Linear], None], part: str, edges: Tensor | None
) -> None:
    """After a first call, which is remembered, as before it: beside the reference kernel on a fresh layer."""
    torch.manual_seed(0)
    layer, x = MessagePassing(AllTokens() if edges is None else Graph(), QKSoftmax(4, 2)), torch.randn(4, 4)
    before = layer(x, edges)
    change(getattr(layer.weight, part))
    found = layer(x, edges)
    w = layer.weight
    q, k, v = (m(x).unflatten(-1, (2, 2)).transpose(0, 1) for m in (w.query, w.key, w.value))
    mask = None
    if edges is not None:
        mask = torch.zeros(4, 4, dtype=torch.bool)
        mask[edges[1], edges[0]] = True
    y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(found, w.output(y.transpose(0, 1).flatten(-2)))
    if part in ("value", "output"):  # a softmax does not see a shift of all keys, nor of all queries a little
        assert not torch.allclose(found, before, atol=1e-6)


@contextmanager
def everywhere(heard: list[nn.Module]) -> Iterator[None]:
    handle = register_module_forward_hook(lambda module, given, y: heard.append(module))
    try:
        yield
    finally:
        handle.remove()


def test_hooks_of_all_modules_and_of_backward_fire() -> None:
    layer, x = MessagePassing(AllTokens(), QKSoftmax(4, 2)), torch.randn(4, 4, requires_grad=True)
    layer(x)
    heard: list[nn.Module] = []
    with everywhere(heard):
        layer(x)
    parts = [layer.weight.query, layer.weight.key, layer.weight.value, layer.weight.output]
    assert [m for m in heard if isinstance(m, nn.Linear)] == parts
    fired: list[str] = []
    layer.weight.query.register_full_backward_hook(lambda *given: fired.append("query"))
    layer.weight.output.register_full_backward_pre_hook(lambda *given: fired.append("output"))
    layer(x).sum().backward()
    assert fired == ["output", "query"]


def test_a_compiled_part_is_called() -> None:
    layer, x = nn.Linear(3, 4), torch.randn(2, 3)
    layer.compile(backend="eager")
    compiled, called = layer._compiled_call_impl, []
    layer._compiled_call_impl = lambda *given: (called.append(given), compiled(*given))[1]  # type: ignore[misc,func-returns-value]
    torch.testing.assert_close(linear(layer, x), nn.functional.linear(x, layer.weight, layer.bias))
    assert len(called) == 1
