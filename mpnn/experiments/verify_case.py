"""A layer of torch or PyG beside the message passing that stands in for it: values, gradients, the way back, time."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from mpnn.experiments.atlas_case import TOLERANCE, error, gradient_error, randomise
from mpnn.interop import convert, from_layer, to_layer
from mpnn.interop.convert import KINDS
from mpnn.returned import trace_kernels

ROUNDS, CALLS = 7, 3
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class LayerCase:
    """One layer with some of its options, and what it is called with.

    ``inputs()`` gives its arguments and keywords; those of a floating dtype get gradients. ``within``: the error that
    is allowed, where the original itself rounds to float32.
    """

    options: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], Arguments]
    within: float = TOLERANCE[torch.float64]


@dataclass(frozen=True)
class Verified:
    """What came out: errors as parts of the original's largest value, whether the way back keeps every bit, and speed.

    ``ratio``: the original's time over ours, forward without gradients, the median of rounds in turn.
    """

    options: str
    value: float
    gradient: float
    same_bits: bool
    kernels: tuple[str, ...]
    ratio: float
    within: float

    @property
    def agrees(self) -> bool:
        return max(self.value, self.gradient) <= self.within and self.same_bits


def verify_layer(case: LayerCase, seed: int = 0) -> Verified:
    """Run one case in float64, without dropout, and its time in float32; the global random state stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer, inputs = case.make(), case.inputs()
        randomise(layer)
    timed = copy.deepcopy(layer).float()  # before anything is cached
    original, arguments = layer.double(), _cast(inputs, torch.float64)
    ours = _converted(original)
    with trace_kernels(ours) as kernels:
        got = _outputs(ours, arguments)
    wanted = _outputs(original, arguments)
    value = max(error(a.detach(), b.detach()) for a, b in zip(got, wanted, strict=True))
    gradient = gradient_error(_gradients(ours, got, arguments), _gradients(original, wanted, arguments))
    back, before = to_layer(from_layer(original)).state_dict(), original.state_dict()
    same_bits = back.keys() == before.keys() and all(torch.equal(back[k], v) for k, v in before.items())
    ratio = _ratio(timed, _converted(timed), _cast(inputs, torch.float32))
    ran = tuple(dict.fromkeys(kernels.values()))
    return Verified(case.options, value, gradient, same_bits, ran, ratio, case.within)


def _converted(layer: nn.Module) -> nn.Module:
    ours = copy.deepcopy(layer)
    report = convert(ours, KINDS)
    if not any(row.name == "" and row.left is None for row in report.rows):
        raise ValueError(f"expected {type(layer).__name__} to be converted, got: {report}")
    return ours


def _cast(inputs: Arguments, dtype: torch.dtype) -> Arguments:
    """Fresh leaves of this dtype; what holds whole numbers or truth values stays as it is."""

    def leaf(x: Any) -> Any:
        return x.detach().to(dtype).requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x

    return pytree.tree_map(leaf, inputs)


def _outputs(layer: nn.Module, arguments: Arguments) -> list[Tensor]:
    """The tensors of a layer's result that have gradients or are floats; a returned edge_index is the caller's."""
    found = pytree.tree_leaves(layer(*arguments[0], **arguments[1]))
    return [y for y in found if isinstance(y, Tensor) and y.is_floating_point()]


def _gradients(layer: nn.Module, outputs: list[Tensor], arguments: Arguments) -> list[Tensor]:
    """Of every input and parameter, for the same upstream gradients."""
    generator = torch.Generator().manual_seed(1)
    upstream = [torch.randn(y.shape, generator=generator, dtype=y.dtype) for y in outputs]
    inputs = [x for x in pytree.tree_leaves(arguments) if isinstance(x, Tensor) and x.requires_grad]
    wrt = [*inputs, *(p for p in layer.parameters() if p.requires_grad)]
    return list(torch.autograd.grad(outputs, wrt, upstream, materialize_grads=True))


def _ratio(theirs: nn.Module, ours: nn.Module, arguments: Arguments) -> float:
    """The original's time over ours, in turn, after one call each that warms up."""

    def seconds(layer: nn.Module) -> float:
        start = time.perf_counter()
        for _ in range(CALLS):
            layer(*arguments[0], **arguments[1])
        return time.perf_counter() - start

    with torch.no_grad():
        seconds(theirs), seconds(ours)
        return statistics.median(seconds(theirs) / seconds(ours) for _ in range(ROUNDS))
