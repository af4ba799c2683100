"""Recompute: a piece of a forward whose intermediate tensors are made again in its backward.

``torch.utils.checkpoint`` does not work inside functional transforms and under double backward with them; a Function
that recomputes by ``torch.func.vjp`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

Block = Callable[[dict[str, Tensor]], Tensor]


class Holder(nn.Module):
    """Lets a functional call replace the parameters that a block reads."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        super().__init__()
        every = list(modules)
        inner = {id(c) for m in every for c in m.modules() if c is not m}
        # one that stands inside another is reached through it: a name twice would not be put back rightly
        self.read = nn.ModuleList(m for m in every if id(m) not in inner)

    def forward(self, block: Block, tensors: dict[str, Tensor]) -> Tensor:
        return block(tensors)


def recomputed(block: Block, modules: Iterable[nn.Module], tensors: dict[str, Tensor]) -> Tensor:
    """block(tensors), where the block reads these tensors and the parameters of these modules, and nothing else that
    has a gradient. The backward runs the block again."""
    holder = Holder(modules)
    parameters = dict(holder.named_parameters())
    names = list(tensors)

    def run(*given: Tensor) -> Tensor:
        own = dict(zip(names, given[: len(names)], strict=True))
        swapped = dict(zip(parameters, given[len(names) :], strict=True))
        return torch.func.functional_call(holder, swapped, (block, own))

    return _Recompute.apply(run, *tensors.values(), *parameters.values())


class _Recompute(torch.autograd.Function):
    @staticmethod
    def forward(run: Any, *tensors: Tensor) -> Tensor:
        return run(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.run = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        tensors, needed = ctx.saved_tensors, ctx.needs_input_grad[1:]
        chosen = [t for t, n in zip(tensors, needed, strict=True) if n]

        def run(*given: Tensor) -> Tensor:
            rest = iter(given)
            return ctx.run(*(next(rest) if n else t for t, n in zip(tensors, needed, strict=True)))

        pullback = torch.func.vjp(run, *chosen)[1]
        grads = iter(pullback(grad))
        return (None, *[next(grads) if n else None for n in needed])


def fresh_seed() -> int:
    """A seed drawn from the global generator, so that a run repeats from its own seed."""
    return int(torch.randint(1 << 62, ()))


def drop(weight: Tensor, dropout: float, seed: int | None) -> Tensor:
    """Dropout; from a seed the same when a block is made again."""
    if seed is None:
        return nn.functional.dropout(weight, dropout)
    generator = torch.Generator(weight.device).manual_seed(seed)
    kept = torch.rand(weight.shape, generator=generator, device=weight.device) >= dropout
    return weight * kept / (1 - dropout) if dropout < 1 else weight * 0
