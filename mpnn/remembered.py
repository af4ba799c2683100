"""Remembered: calls that were checked, to be run again on other tokens of the same shape, dtype and device.

What a small layer takes is mostly looking: each thing that is compared here is one that most calls have in common, in
one object, and a path of attributes is walked once, when the call is remembered.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpnn import plan as plans
from mpnn.binding import fill, same_places
from mpnn.call import Call
from mpnn.checks import autocasting
from mpnn.kernels import reference as reference_kernel
from mpnn.neighbours import Neighbours
from mpnn.plan import BY_NAME
from mpnn.returned import listening
from mpnn.tokens.base import Tokens

# The common call looks these up: a name costs less than a path of attributes. Other tracers than dynamo pass no plain
# tensors.
_traced, _transform = torch.compiler.is_dynamo_compiling, torch._C._functorch.peek_interpreter_stack
_grad, _dual, _some_autocast = torch.is_grad_enabled, torch.autograd.forward_ad, torch._C._is_any_autocast_enabled
_KEPT = 16  # calls of the same kind that a layer remembers


def here() -> bool:
    """Whether calls are remembered where this one runs: nobody listens, differentiates forward, traces or maps."""
    return not (listening or _dual._current_level >= 0 or _traced() or _transform() is not None)


def state(layer: Any) -> tuple:
    """What a layer's rules are now; it changes with every assignment to one of them."""
    return layer.neighbours.state(), layer.weight.revision


class Remembered:
    """A call that was checked: what it depends on besides the values of its tokens, and how it ran."""

    __slots__ = (
        "autocast", "call", "device", "dropout", "dtype", "edge_index", "grad", "grid", "kernel", "name", "one_set",
        "own_state", "revision", "rule", "shape", "shortcut", "state", "version", "weight",
    )  # fmt: skip

    def __init__(self, layer: Any, call: Call, name: str, edge_index: Tensor | None, grid: tuple | None) -> None:
        x, rule, weight = call.tokens[0].x, layer.neighbours, layer.weight
        one_set = call.tokens[1] is call.tokens[0]
        blank = Tokens(_blank(x), grid=call.tokens[0].grid)
        kept = {k: v for k, v in call.nodes.items() if k == "inverse_root"}  # degrees of the same edges
        self.call = call.again()
        self.call.nodes = {k: _blank(t) for k, t in call.nodes.items() if k in ("query", "key", "value")}
        self.call.tokens = (blank, blank if one_set else None)
        self.call.constants = call.constants | kept
        self.name, self.one_set = name, one_set
        self.shape, self.dtype, self.device, self.grid = x.shape, x.dtype, x.device, grid
        self.rule, self.weight, self.own_state = rule, weight, type(rule).state is not Neighbours.state
        self.state, self.revision = state(layer)
        self.dropout = weight.dropout if layer.training else 0.0
        self.kernel = plans.allowed if layer.kernel is None else layer.kernel
        self.grad, self.autocast = _grad(), _some_autocast() and autocasting(x.device.type)
        self.edge_index: Callable[[], Tensor | None] | None = None
        self.version = 0
        shortcut = None if autocasting(x.device.type) else getattr(BY_NAME[name], "shortcut", None)
        self.shortcut = None if shortcut is None else shortcut(self.call, reference_kernel.run)
        if edge_index is not None:
            repeats: list[Remembered] = layer._repeats
            self.version = edge_index._version
            self.edge_index = weakref.ref(edge_index, lambda _: _forget_gone(repeats))

    def fits(self, layer: Any, x: Tensor, edge_index: Any, grid: tuple | None) -> bool:
        """Whether a call is of this kind."""
        if x.shape != self.shape or x.dtype is not self.dtype or _grad() is not self.grad or grid != self.grid:
            return False
        known = self.edge_index
        if known is None:
            if edge_index is not None:
                return False
        elif known() is not edge_index or edge_index is None or edge_index._version != self.version:
            return False
        modules, rule, weight, kernel = layer._modules, self.rule, self.weight, layer.kernel
        return (
            modules["weight"] is weight and modules["neighbours"] is rule and weight.revision == self.revision
            and (rule.state() if self.own_state else rule.revision) == self.state and x.device == self.device
            and (weight.dropout if layer.training else 0.0) == self.dropout
            and (plans.allowed if kernel is None else kernel) == self.kernel
            and (_some_autocast() and autocasting(self.device.type)) == self.autocast
        )  # fmt: skip

    def run(self, layer: Any, x: Tensor) -> Tensor:
        """The same call of these tokens, where there is no ``shortcut`` for it."""
        call = self.call.again()
        fill(call, x, x if self.one_set else None)
        return layer._run(call, self.name)


def remember(layer: Any, call: Call, name: str, edge_index: Any, grid: tuple | None) -> None:
    """Keep a call of tokens alone, unless it depends on their values or its edges bring a graph of their own."""
    held = (call.attr, call.edge_weight, call.nodes.get("inverse_root"))
    if any(t is not None and t.requires_grad for t in held) or not same_places(layer.neighbours):
        return
    if edge_index is not None and (type(edge_index) is not Tensor or edge_index.is_inference()):
        return
    repeats = layer._repeats
    repeats.insert(0, Remembered(layer, call, name, edge_index, grid))
    del repeats[_KEPT:]


def _forget_gone(repeats: list[Remembered]) -> None:
    repeats[:] = [r for r in repeats if r.edge_index is None or r.edge_index() is not None]


def _blank(x: Tensor) -> Tensor:
    """A tensor of the same shape and dtype that keeps no memory alive."""
    return x.detach().new_zeros(()).expand(x.shape)
