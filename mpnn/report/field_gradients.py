"""The receptive field by gradients: how strongly each input moves the target's output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mpnn import MessagePassing
from mpnn.checks import instance
from mpnn.report.field import Field, targets_of
from mpnn.report.places import Over, count


def field_by_gradients(model: nn.Module, x: Tensor, target: int | Sequence[int], *, over: Over, **call: Any) -> Field:
    """How strongly each input token moves the target's output of each layer: ‖∂ y_target / ∂ x_j‖ (Frobenius).

    y is the output of each message passing layer in the order of the calls, before what a block adds to it. Everything
    between counts: embeddings, norms, skips, the channel MLP. It holds for this input, as any derivative does.

    Args:
        x: one sample, the model's first argument: tokens (..., N, C), or an image or a signal (..., C, \\*over).
        target: a token of every layer's output, or one for each layer where their numbers of tokens differ.
        over: as in :func:`weights_of_target`. call: further arguments of the model.

    Raises:
        TypeError, ValueError, IndexError: at the door, naming the argument; a model without a message passing layer.

    Source: Luo et al. (2016), "Understanding the effective receptive field", `arXiv:1701.04128
    <https://arxiv.org/abs/1701.04128>`_.

    Example::

        >>> import torch
        >>> from mpnn.models import CNN
        >>> from mpnn.report import field_by_gradients
        >>> field = field_by_gradients(CNN(1, (4, 4), 10, size=(9,)), torch.randn(9, 1), 4, over=(9,))
        >>> (field.values > 0).int().tolist()
        [[0, 0, 0, 1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1, 0, 0]]
    """
    instance("model", model, nn.Module, "a module that holds message passing layers")
    instance("x", x, Tensor, "the model's input, a tensor")
    if not x.is_floating_point():
        raise TypeError(f"expected x of a floating-point dtype, which has gradients, got {x.dtype}; embed ids first")
    tokens, shape = count(over), tuple(over.shape[:1]) if isinstance(over, Tensor) else over
    rows = x.shape[-2:-1] == (tokens,)  # tokens with their channels, not channels with their cells
    if not rows and x.shape[-len(shape) :] != shape:
        raise ValueError(f"expected x of shape (..., {tokens}, C) or (..., C, *{shape}), got {tuple(x.shape)}")
    lead = x.shape[:-2] if rows else x.shape[: -len(shape) - 1]
    if math.prod(lead) != 1:
        raise ValueError(f"expected x to be one sample, got {math.prod(lead)} of them: {tuple(x.shape)}")
    held = x.detach().clone().requires_grad_()
    outputs: list[tuple[str, Tensor]] = []
    hooks = [
        module.register_forward_hook(lambda layer, args, y, name=name: outputs.append((name, y)))
        for name, module in model.named_modules()
        if isinstance(module, MessagePassing)
    ]
    was = model.training
    try:
        model.eval()
        with torch.enable_grad():
            model(held, **call)
    finally:
        model.train(was)
        for hook in hooks:
            hook.remove()
    names, sizes = tuple(name for name, _ in outputs), tuple(y.shape[-2] for _, y in outputs)
    targets = targets_of(target, names, sizes)
    found = []
    for (_, y), one in zip(outputs, targets, strict=True):
        squares = torch.zeros_like(held)
        for output in y[..., one, :].flatten():
            (slope,) = torch.autograd.grad(output, held, retain_graph=True, allow_unused=True)
            squares += 0 if slope is None else slope.square()
        norms = squares.sum(-1).flatten() if rows else squares.reshape(-1, tokens).sum(0)
        found.append(norms.sqrt().float().cpu())
    return Field(torch.stack(found), targets, sizes, names, "by gradients, ‖∂ output / ∂ input‖")
