"""Ways to run a backward: many gradients at once, under torch.utils.checkpoint, once too often."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from helpers.calls import kernels, product, trial
from helpers.over import over
from mpnn import attend
from mpnn.kernels import native
from mpnn.neighbours import AllTokens, Graph, Window

MAIN = product("main")
UNUSED = {"allow_unused": True, "materialize_grads": True}


@over(MAIN)
def test_gradients_of_a_batch_are_those_of_each(place: str, rule: str) -> None:
    """``is_grads_batched``: the third call is one that is remembered."""
    call = trial(place, rule, edge_weight="one")
    leaves = list(call.leaves.values())
    for kernel in kernels(call):
        for create_graph in (False, True, False):
            y = call()
            ups = torch.randn(2, *y.shape, dtype=y.dtype)
            expected = [torch.autograd.grad(y, leaves, up, retain_graph=True, **UNUSED) for up in ups]
            many = {"is_grads_batched": True, "create_graph": create_graph, "allow_unused": True}
            for found, each in zip(
                torch.autograd.grad(y, leaves, ups, **many), zip(*expected, strict=True), strict=True
            ):
                if found is not None:
                    torch.testing.assert_close(found, torch.stack(each), msg=lambda m, k=kernel: f"{k}: {m}")


EDGES = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])
GRAPH, BIAS = Graph(EDGES, 5), torch.randn(6, 2)
CALLS = [("sdpa", AllTokens(), b) for b in (None, torch.randn(5, 5))]
CALLS += [("tiles", Window(2), b) for b in (None, torch.randn(5, 5))]
CALLS += [(kernel, GRAPH, b) for kernel in ("padded", "edge_softmax") for b in (None, BIAS)]
needs_numba = pytest.mark.skipif(not native.INSTALLED, reason="needs numba, which is not installed")
COMPILED = [pytest.param("native", GRAPH, b, marks=needs_numba) for b in (None, BIAS)]


@pytest.mark.parametrize(("kernel", "rule", "bias"), [*CALLS, *COMPILED])
class TestAttend:
    def test_second_derivatives_of_a_batch(self, kernel, rule, bias) -> None:  # type: ignore[no-untyped-def]
        leaves = [torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
        bias = None if bias is None else bias.double()
        ups, found = torch.randn(3, 2, 5, 4, dtype=torch.float64), {}
        for name in (kernel, "reference"):
            y = attend(*leaves, rule, kernel=name, score_bias=bias)
            first = torch.autograd.grad(y, leaves, ups, is_grads_batched=True, create_graph=True)
            found[name] = torch.autograd.grad(sum(g.square().sum() for g in first), leaves)
        for a, b in zip(found[kernel], found["reference"], strict=True):
            torch.testing.assert_close(a, b)

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_checkpoint(self, kernel, rule, bias, reentrant) -> None:  # type: ignore[no-untyped-def]
        leaves = [torch.randn(2, 5, 4, requires_grad=True) for _ in range(3)]
        run = lambda *t: attend(*t, rule, kernel=kernel, score_bias=bias)  # noqa: E731
        run(*leaves).square().sum().backward()
        expected = [t.grad for t in leaves]
        for t in leaves:
            t.grad = None
        checkpoint(run, *leaves, use_reentrant=reentrant).square().sum().backward()
        for t, e in zip(leaves, expected, strict=True):
            torch.testing.assert_close(t.grad, e)

    def test_once_too_often(self, kernel, rule, bias) -> None:  # type: ignore[no-untyped-def]
        leaves = [torch.randn(2, 5, 4, requires_grad=True) for _ in range(3)]
        y = attend(*leaves, rule, kernel=kernel, score_bias=bias).sum()
        y.backward(retain_graph=True)
        y.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            y.backward()


def test_a_batch_of_gradients_of_a_batch() -> None:
    """``functional.hessian(vectorize=True)`` works; the same thing within itself is refused in words."""
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    total = lambda x: attend(x, x, x, GRAPH).square().sum()  # noqa: E731
    hessian = torch.autograd.functional.hessian
    torch.testing.assert_close(hessian(total, x, vectorize=True), hessian(total, x))
    x.requires_grad_()
    y = attend(x, x, x, GRAPH)
    within = lambda up: torch.autograd.grad(y, x, up[None], is_grads_batched=True, retain_graph=True)[0][0]  # noqa: E731
    with pytest.raises(RuntimeError, match="expected is_grads_batched=True once, got it within itself"):
        torch._vmap_internals._vmap(within)(torch.ones(2, *y.shape))


@pytest.mark.parametrize("rule", [AllTokens(), AllTokens(causal=True), Window(2), GRAPH], ids=repr)
def test_an_empty_batch_has_gradients_of_zeros(rule) -> None:  # type: ignore[no-untyped-def]
    """Also of what all its samples would share: torch's fused attention forgets that."""
    leaves = [torch.randn(0, 2, 5, 4, requires_grad=True) for _ in range(3)]
    bias = torch.randn(5, 5, requires_grad=True)
    found = torch.autograd.grad(attend(*leaves, rule, score_bias=bias).sum(), [*leaves, bias])
    assert [g.shape for g in found] == [t.shape for t in [*leaves, bias]]
    assert not found[-1].any()
