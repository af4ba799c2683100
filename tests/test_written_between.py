"""Tensors of a call that are written to between its forward and its backward: an error, never a wrong gradient."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from helpers.calls import Trial, kernels, product, trial
from helpers.over import over
from mpnn import attend, use_kernels
from mpnn.neighbours import Global, Graph, Window

MAIN = product("main")


def write(tensor: Tensor) -> None:
    """Other values in the same memory."""
    with torch.no_grad():
        if tensor.dtype == torch.bool:
            tensor.logical_not_()
        elif tensor.is_floating_point():
            tensor.mul_(2).add_(0.3)
        else:
            tensor.copy_(tensor.flip(-1))


def copied(call: Trial) -> Trial:
    """The same call with tensors that may be written to."""
    return dataclasses.replace(
        call, tensors={k: t * 1 if t.requires_grad else t.clone() for k, t in call.tensors.items()}
    )


def gradients(call: Trial, y: Tensor, create_graph: bool) -> tuple[Tensor, ...]:
    leaves = list(call.leaves.values())
    up = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
    return torch.autograd.grad(y, leaves, up, create_graph=create_graph, materialize_grads=True, allow_unused=True)


@pytest.mark.parametrize("create_graph", [False, True], ids=["once", "twice"])
@over(MAIN)
def test_an_error_or_the_gradient_of_what_was_there(place: str, rule: str, create_graph: bool) -> None:
    call = trial(place, rule, lead=() if create_graph else (2,), mask="one", pair_mask="one", positions=True)
    names = [k for k in call.tensors if "batch" not in k]
    for kernel in kernels(call):
        with use_kernels(kernel, block=1 if kernel == "reference" else None):
            expected = gradients(call, call(), create_graph)
            for name in names:
                tried = copied(call)
                y = tried()
                write(tried.tensors[name])
                try:
                    found = gradients(call, y, create_graph)
                except RuntimeError as error:
                    if "modified by an inplace operation" not in str(error):
                        raise
                    continue
                for f, e in zip(found, expected, strict=True):
                    torch.testing.assert_close(f, e, msg=lambda m, n=name, k=kernel: f"{k}, {n} was written to: {m}")


EDGES = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])


@pytest.mark.parametrize("rule", [Window(2), Window(1) | Global(1), Window(1) | Graph(EDGES, 5)], ids=repr)
@pytest.mark.parametrize("name", ["mask", "pair_mask", "score_bias"])
def test_attend_says_what_was_written_to(rule, name) -> None:  # type: ignore[no-untyped-def]
    q, k, v = (torch.randn(2, 5, 4, requires_grad=True) for _ in range(3))
    given = {"mask": torch.ones(5, dtype=torch.bool), "pair_mask": torch.ones(5, 5, dtype=torch.bool)}
    given |= {"score_bias": torch.randn(2, 5, 5)}
    y = attend(q, k, v, rule, **{name: given[name]})
    write(given[name])
    with pytest.raises(RuntimeError, match=r"a mask, a score bias or positions of shape .* write to a clone\(\)"):
        y.sum().backward()
