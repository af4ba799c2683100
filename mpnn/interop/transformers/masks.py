"""Masks of Hugging Face's models: which tokens are real, and where among them each target stands."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mpnn.checks import compiling
from mpnn.memo import derived


class Reading(NamedTuple):
    """What a mask says where it says no more than which tokens are padding, and perhaps that later ones are hidden.

    ``real`` bool (B, M), None for all · ``place`` int64 (B, N), the number of each target among the real tokens of its
    row, -1 for padding; None where ``real`` is, and the targets are the last N tokens · ``causal``.
    """

    real: Tensor | None
    place: Tensor | None
    causal: bool


def read(mask: Tensor | None, targets: int, causal: bool) -> Reading | None:
    """The reading of a mask; None where it says something else.

    Args:
        mask: bool (B, M), bool (B, 1, N, M) or what an eager attention adds: 0 or the least number, (B, 1, N, M).
        targets: the last N tokens are the targets, where the mask is none of pairs.
        causal: whether the module hides later tokens; a mask of pairs may say otherwise.
    """
    if mask is None:
        return Reading(None, None, causal)
    if mask.ndim == 2:
        real, place, padded = derived(lambda: _padding(mask, targets), ("padding", targets), mask)
        return Reading(real, place, causal) if padded else Reading(None, None, causal)
    if compiling() or mask.requires_grad or mask.ndim != 4 or mask.shape[1] != 1:
        return None
    return derived(lambda: _pairs(mask, causal), ("reading", causal), mask)


def is_bias(mask: Tensor) -> bool:
    """Whether a mask adds other numbers to the scores than 0 and the least, and so does not choose among pairs."""
    if mask.dtype == torch.bool or compiling():
        return False
    return mask.requires_grad or derived(lambda: _taking_part(mask) is None, "bias", mask)


def numbers(real: Tensor) -> Tensor:
    """The number of each token among the real ones of its row; padding has that of the real token before it."""
    return real.long().cumsum(-1) - 1


def _padding(mask: Tensor, targets: int) -> tuple[Tensor, Tensor, bool]:
    place = numbers(mask).masked_fill(~mask, -1)[:, mask.shape[-1] - targets :]
    return mask, place, compiling() or not bool(mask.all())


def _pairs(mask: Tensor, ordered: bool) -> Reading | None:
    """The reading of a mask of pairs; where targets are not the sources, of an ordered one only."""
    seen = mask[:, 0] if mask.dtype == torch.bool else _taking_part(mask[:, 0])
    square = mask.shape[-2] == mask.shape[-1]
    if seen is None or not (square or ordered):
        return None
    real = seen.any(-2)
    number, place = numbers(real), seen.sum(-1) - 1
    causal = bool((seen == (real[:, None] & (number[:, None] <= place[..., None]))).all())
    if square:  # the targets are the tokens
        causal = causal and bool(((place == number) | ~real).all())
        if not causal and not bool(((seen == real[:, None]) | ~real[..., None]).all()):
            return None
        place = number.masked_fill(~real, -1)
    else:  # each target is the last token that it sees, and padding sees what the one before it saw
        if not causal or not bool((place[:, 1:] >= place[:, :-1]).all()):
            return None
        again = torch.zeros_like(place, dtype=torch.bool)
        again[:, 1:] = place[:, 1:] == place[:, :-1]
        place = place.masked_fill(again, -1)
    last = real.shape[-1] - 1
    if bool(real.all()) and bool(
        (place == torch.arange(last + 1 - place.shape[-1], last + 1, device=place.device)).all()
    ):
        return Reading(None, None, causal)
    return Reading(real, place, causal)


def _taking_part(added: Tensor) -> Tensor | None:
    """Which pairs take part, where a mask adds 0 to some scores and hides the others."""
    some, none = added == 0, added <= torch.finfo(added.dtype).min
    return some if bool((some | none).all()) else None
