"""Recompute: a piece of a forward whose intermediate tensors are made again in its backward.

``torch.utils.checkpoint`` does not work inside functional transforms and under double backward with them; a Function
that recomputes by ``torch.func.vjp`` does. What is read again without having been saved by autograd has to be what it
was: :class:`Unwritten` sees to that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from mpnn.memo import lasting

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


class Unwritten:
    """The masks, biases and positions of a call: a backward makes what it needs from them again, so that one that was
    written to since the forward is an error, as it is of what autograd saved."""

    def __init__(self, call: Any) -> None:
        module = getattr(call.weight, "score_bias", None)
        read = [call.source_mask, call.target_mask, call.pair_mask, *(() if module is None else module.parameters())]
        read += [t for name, t in call.nodes.items() if name.startswith(("score_bias", "edge_bias", "positions_"))]
        compiling = torch.compiler.is_compiling()
        self._seen = [(t, t._version) for t in read if t is not None and not compiling and lasting(t)]

    def check(self) -> None:
        """Raise a RuntimeError where one of them was written to.

        The words are those of autograd, which people know.
        """
        for tensor, version in self._seen:
            if tensor._version != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"a mask, a score bias or positions of shape {tuple(tensor.shape)} were written to between forward "
                    "and backward; write to a clone() of them"
                )


def recomputed(block: Block, modules: Iterable[nn.Module], tensors: dict[str, Tensor], read: Unwritten) -> Tensor:
    """block(tensors), where the block reads these tensors and the parameters of these modules, and nothing else that
    has a gradient; ``read``: what else it reads. The backward runs the block again."""
    piece = _Piece(block, Holder(modules), tuple(tensors), read)
    return _Recompute.apply(piece, *tensors.values(), *piece.parameters.values())


class _Piece:
    """A block as a function of its tensors and the parameters that it reads."""

    def __init__(self, block: Block, holder: Holder, names: tuple[str, ...], read: Unwritten) -> None:
        self.block, self.holder, self.names, self.read = block, holder, names, read
        self.parameters = dict(holder.named_parameters())
        self.transformed = torch._C._functorch.peek_interpreter_stack() is not None

    def as_it_is(self, tensors: tuple[Tensor, ...]) -> Tensor:
        """Of these tensors and the modules' own parameters."""
        return self.block(dict(zip(self.names, tensors, strict=True)))

    def of(self, given: tuple[Tensor, ...]) -> Tensor:
        """Of these tensors and parameters, which the modules have for as long as it takes."""
        self.read.check()
        count = len(self.names)
        own = dict(zip(self.names, given[:count], strict=True))
        swapped = dict(zip(self.parameters, given[count:], strict=True))
        return torch.func.functional_call(self.holder, swapped, (self.block, own))

    def unchanged(self, saved: tuple[Tensor, ...]) -> bool:
        """Whether the modules still have the parameters that were read."""
        return all(p is s for p, s in zip(self.holder.parameters(), saved[len(self.names) :], strict=True))


class _Recompute(torch.autograd.Function):
    @staticmethod
    def forward(piece: _Piece, *tensors: Tensor) -> Tensor:
        # lending the modules other parameters, if the same, would be seen by other threads that call them
        return piece.of(tensors) if piece.transformed else piece.as_it_is(tensors[: len(piece.names)])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.piece = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        piece, tensors, needed = ctx.piece, ctx.saved_tensors, ctx.needs_input_grad[1:]
        chosen = [t for t, n in zip(tensors, needed, strict=True) if n]
        if torch.is_grad_enabled() or piece.transformed or not piece.unchanged(tensors):

            def run(*given: Tensor) -> Tensor:
                rest = iter(given)
                return piece.of(tuple(next(rest) if n else t for t, n in zip(tensors, needed, strict=True)))

            found = torch.func.vjp(run, *chosen)[1](grad)
        else:
            piece.read.check()
            count = len(piece.names)
            fresh = tuple(t.detach().requires_grad_(n) for t, n in zip(tensors[:count], needed[:count], strict=True))
            with torch.enable_grad():
                out = piece.as_it_is(fresh)
            leaves = [t for t, n in zip((*fresh, *tensors[count:]), needed, strict=True) if n]
            found = torch.autograd.grad(out, leaves, grad, allow_unused=True, materialize_grads=True)
        grads = iter(found)
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
