"""A layer beside what it became: the same values, and the same gradients of inputs and of every parameter."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mpnn.interop import convert
from mpnn.interop.convert import KINDS

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def flat(result: Any) -> list[Tensor]:
    """The tensors of a result, in order."""
    if isinstance(result, Tensor):
        return [result]
    return [] if result is None else [t for part in result for t in flat(part)]


def differentiated(module: nn.Module, run: Callable[..., Any], inputs: list[Tensor]) -> tuple[list[Tensor], dict]:
    """The results of ``run(module, *inputs)``, and the gradients of a weighted sum of them by name."""
    leaves = {id(t): t.detach().clone().requires_grad_() for t in inputs}  # one tensor given twice stays one
    module.zero_grad()
    results = flat(run(module, *(leaves[id(t)] for t in inputs)))
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(r.shape, generator=generator, dtype=r.dtype) for r in results]
    torch.autograd.backward(results, weights)
    grads: dict[Any, Tensor | None] = {f"input {i}": leaves[id(t)].grad for i, t in enumerate(inputs)}
    return results, grads | {name: p.grad for name, p in module.named_parameters()}


def assert_same(one: tuple[list[Tensor], dict], two: tuple[list[Tensor], dict]) -> None:
    """Equal results and gradients; a parameter without a gradient has none on the other side."""
    assert len(one[0]) == len(two[0])
    for a, b in zip(one[0], two[0], strict=True):
        torch.testing.assert_close(b, a, **EXACT)
    assert one[1].keys() == two[1].keys()
    for name, a in one[1].items():
        b = two[1][name]
        assert (a is None) == (b is None), name
        if a is not None:
            torch.testing.assert_close(b, a, **EXACT, msg=lambda text, name=name: f"gradient of {name}: {text}")


def copied(module: nn.Module) -> nn.Module:
    """A deep copy. torch's decoder layer takes relu in a copy where its activation is a module: that is undone."""
    twin = copy.deepcopy(module)
    for part in twin.modules():
        if "activation" in part._modules:
            part.__dict__.pop("activation", None)
    return twin


def converted(layer: nn.Module) -> nn.Module:
    """A copy of a module, every layer of it converted that can be."""
    twin = copied(layer)
    assert convert(twin, KINDS).converted
    return twin


def assert_drop_in(layer: nn.Module, run: Callable[..., Any], inputs: list[Tensor]) -> nn.Module:
    """The converted layer computes what the layer does, in eval and in training; returns it."""
    layer = layer.double()
    twin = converted(layer)
    for training in (False, True):
        layer.train(training), twin.train(training)
        assert_same(differentiated(layer, run, inputs), differentiated(twin, run, inputs))
    return twin


def assert_bits(one: nn.Module, two: nn.Module) -> None:
    """The same class, parameters by name, flags and modes, to the last bit."""
    assert type(one) is type(two)
    ours, theirs = dict(one.named_parameters()), dict(two.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, a in ours.items():
        b = theirs[name]
        assert a.dtype == b.dtype and a.requires_grad == b.requires_grad and torch.equal(a, b), name
    assert one.training == two.training
    assert repr(one) == repr(two)
