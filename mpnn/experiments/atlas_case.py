"""A layer beside the implementation that it equals, with the same numbers in both, and how far they differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpnn.returned import trace_kernels

View = Callable[[Tensor], Tensor]
Names = dict[str, str | tuple[str, View]]  # of parameters: ours → theirs, or (theirs, how it is laid out as ours)
# Within these a layer equals its reference: the largest error as a part of the reference's largest value.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


@dataclass(frozen=True)
class Tie:
    """A parameter of ours, the reference's, and how the second is laid out as the first: ours = view(theirs)."""

    name: str
    ours: Tensor
    theirs: Tensor
    view: View


@dataclass(frozen=True)
class Case:
    """A layer and its reference as functions of the same inputs.

    ``call(*inputs)`` runs ``layer``, ``reference(*inputs)`` the implementation that is not ours; ``ties`` has each
    parameter of the layer.
    """

    layer: nn.Module
    call: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    ties: tuple[Tie, ...]


@dataclass(frozen=True)
class Errors:
    """The largest errors as parts of the reference's largest value, and the kernels that ran."""

    value: float
    gradient: float
    kernel: str


def build(make: Callable[[], Case], dtype: torch.dtype = torch.float64, seed: int = 0) -> Case:
    """A case in a dtype; the process's random state and default dtype stay as they are."""
    before = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_default_dtype(dtype)
        try:
            return make()
        finally:
            torch.set_default_dtype(before)


def shared(layer: nn.Module) -> tuple[Tie, ...]:
    """The ties where the reference is a function that reads the layer's own parameters."""
    randomise(layer)
    return tuple(Tie(name, p, p, _same) for name, p in layer.named_parameters())


def copied(layer: nn.Module, reference: nn.Module, names: Names, *, unread: str = "nothing") -> tuple[Tie, ...]:
    """The ties of two modules, and the reference's parameters copied: our name → their name, or (their name, view).

    Frozen parameters stay out of it, as do theirs that begin with ``unread``.

    Raises:
        ValueError: a parameter of either is not in ``names``.
    """
    randomise(reference)
    ours, theirs = dict(layer.named_parameters()), dict(reference.named_parameters())
    pairs = {name: (given, _same) if isinstance(given, str) else given for name, given in names.items()}
    wanted = {name for name, p in ours.items() if p.requires_grad}, {n for n in theirs if not n.startswith(unread)}
    for known, used in zip(wanted, (set(pairs), {name for name, _ in pairs.values()}), strict=True):
        if known != used:
            raise ValueError(f"expected names for {sorted(known)}, got {sorted(used)}")
    ties = tuple(Tie(name, ours[name], theirs[other], view) for name, (other, view) in pairs.items())
    with torch.no_grad():
        for tie in ties:
            tie.ours.copy_(tie.view(tie.theirs))
    return ties


def randomise(module: nn.Module) -> None:
    """Numbers everywhere: a bias that starts at zero would hide that it is not added."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.5)


def linears(names: Mapping[str, str], bias: bool = True) -> Names:
    """The names of the weights, and the biases, of modules that both have: our module → their module."""
    ends = ("weight", "bias") if bias else ("weight",)
    return {f"{a}.{end}": f"{b}.{end}" for a, b in names.items() for end in ends}


def measure(case: Case, seed: int = 1) -> Errors:
    """How far the layer is from its reference: the value, and the gradients of every input and parameter."""
    inputs = [x.detach().requires_grad_() for x in case.inputs]
    with trace_kernels(case.layer) as kernels:
        ours = case.call(*inputs)
    theirs = case.reference(*inputs)
    generator = torch.Generator().manual_seed(seed)
    upstream = torch.randn(theirs.shape, generator=generator, dtype=theirs.dtype)
    got = _gradients(ours, upstream, [*inputs, *(t.ours for t in case.ties)])
    wanted = _gradients(theirs, upstream, [*inputs, *(t.theirs for t in case.ties)])
    views = [_same] * len(inputs) + [t.view for t in case.ties]
    wanted = [view(g) for view, g in zip(views, wanted, strict=True)]
    value = error(ours.detach(), theirs.detach())
    return Errors(value, gradient_error(got, wanted), ", ".join(dict.fromkeys(kernels.values())))


def gradient_error(got: list[Tensor], wanted: list[Tensor]) -> float:
    """The largest error of several gradients, each a part of its own largest value or of a tenth of the largest of all.

    Some gradients are zero by their nature, as that of a bias of keys: their rounding errors are parts of the others.
    """
    floor = 0.1 * max((float(g.abs().max()) for g in wanted if g.numel()), default=0.0)
    return max((error(a, b, floor) for a, b in zip(got, wanted, strict=True)), default=0.0)


def _gradients(y: Tensor, upstream: Tensor, wrt: list[Any]) -> list[Tensor]:
    return list(torch.autograd.grad(y, wrt, upstream, materialize_grads=True))


def error(ours: Tensor, theirs: Tensor, floor: float = 0.0) -> float:
    """The largest difference as a part of the largest of ``theirs``, or of ``floor`` if that is more."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        raise ValueError(f"expected {tuple(theirs.shape)} of {theirs.dtype}, got {tuple(ours.shape)} of {ours.dtype}")
    if theirs.numel() == 0:
        return 0.0
    largest = float((ours - theirs).abs().max()) / max(float(theirs.abs().max()), floor, 1e-30)
    return largest if math.isfinite(largest) else math.inf  # max() would pass over a NaN


def _same(x: Tensor) -> Tensor:
    return x
