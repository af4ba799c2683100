"""Reductions over the edges of each target, as plain torch operations on any order of edges or on dense rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mpnn.checks import wide

Reduce = Callable[[Tensor], Tensor]


def segment_sum(x: Tensor, target: Tensor, count: int) -> Tensor:
    """Sum over each row's edges along axis -2: (..., E, C) → (..., count, C)."""
    return x.new_zeros(*x.shape[:-2], count, x.shape[-1]).index_add(-2, target, x)


def segment_max(x: Tensor, target: Tensor, count: int) -> Tensor:
    """The largest entry of each row along axis -2, -inf for an empty one; no gradient."""
    x = x.detach()
    index = target[:, None].expand_as(x)
    return x.new_full((*x.shape[:-2], count, x.shape[-1]), -torch.inf).scatter_reduce(-2, index, x, "amax")


def segment_softmax(scores: Tensor, keep: Tensor | None, target: Tensor, count: int) -> Tensor:
    """Softmax over the edges of each target, per head: (..., E, heads); masked edges and empty rows have weight 0."""
    scores = scores.to(wide(scores.dtype))
    if keep is not None:
        scores = scores.expand(torch.broadcast_shapes(scores.shape, keep.shape)).masked_fill(~keep, -torch.inf)
    shift = segment_max(scores, target, count)
    shift = shift.masked_fill(torch.isinf(shift), 0)
    weight = (scores - shift.index_select(-2, target)).exp()
    total = segment_sum(weight, target, count)
    return weight / torch.where(total == 0, 1, total).index_select(-2, target)


def segment_maximum(messages: Tensor, keep: Tensor | None, target: Tensor, total: Reduce, largest: Reduce) -> Tensor:
    """Element-wise maximum per row with a gradient that tied sources share equally; 0 for an empty row.

    ``total`` and ``largest`` reduce (..., E, C) to (..., count, C); ``largest`` needs no gradient.
    """
    if keep is not None:
        messages = messages.expand(torch.broadcast_shapes(messages.shape, keep.shape)).masked_fill(~keep, -torch.inf)
    top = largest(messages.detach())
    wins = messages.detach() == top.index_select(-2, target)
    wins = wins if keep is None else wins & keep
    ties = total(wins.to(top.dtype))
    share = torch.where(wins, messages, 0) / ties.clamp(min=1).index_select(-2, target)
    mean = total(share)  # of equal numbers: it carries the gradient, the maximum its exact value
    return torch.where(ties > 0, top.masked_fill(ties == 0, 0) + (mean - mean.detach()), 0)


def row_softmax(scores: Tensor, keep: Tensor | None) -> Tensor:
    """Softmax over the last axis, every source of a target; masked pairs and rows without any have weight 0."""
    scores = scores.to(wide(scores.dtype))
    if scores.shape[-1] == 0:
        return scores
    if keep is not None:
        scores = scores.expand(torch.broadcast_shapes(scores.shape, keep.shape)).masked_fill(~keep, -torch.inf)
    empty = scores.detach().amax(-1, keepdim=True) == -torch.inf
    return scores.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0)
