"""Nearness: what is compared between tokens, in which blocks, and which of equally near ones are chosen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mpnn.checks import compiling
from mpnn.tokens.base import Tokens

_DISTANCES = 1 << 20  # distances held at once
_ROWS = 128  # targets at once in a batch of graphs


def seen(rule: Any, tokens: Tokens | None) -> Tensor:
    """What is compared: (N, axes), without gradient."""
    assert tokens is not None
    return plain(rule, (tokens.x if tokens.coordinates is None else tokens.coordinates).detach())


def hidden(rule: Any, tokens: Tokens | None, at: Tensor) -> Tensor:
    """The same in float64, masked tokens at NaN, which is near nothing."""
    mask = None if tokens is None or tokens.mask is None else plain(rule, tokens.mask)
    return at.double() if mask is None else at.double().masked_fill(~mask[:, None], math.nan)


def plain(rule: Any, tensor: Tensor) -> Tensor:
    """A tensor's values, out of the functional transforms around it."""
    if compiling():
        return tensor
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        if torch._C._functorch.is_batchedtensor(tensor):
            raise ValueError(
                f"expected coordinates, mask or features that vmap does not map over for {rule}, whose edges are "
                "others for each sample, got mapped ones; join the samples to (N, C) and pass batch="
            )
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def lowest(distance: Tensor, last: Tensor, k: int) -> Tensor:
    """The k columns with the smallest distance, of those at the ``last`` distance the lowest columns: (rows, k)."""
    nearer, equal = distance < last, distance == last
    chosen = nearer | (equal & (equal.cumsum(1) <= k - nearer.sum(1, keepdim=True)))
    return chosen.nonzero()[:, 1].view(-1, k)


def blocks(low: Tensor, high: Tensor) -> Iterator[tuple[slice, int, int, bool]]:
    """Blocks of targets, with the first source of their graphs, the one after the last, and whether these are several.

    A block measures the sources of all graphs that it touches, so that blocks of small graphs are small.
    """
    count = low.shape[0]
    widest = max(1, int((high - low).max())) if count else 1
    rows = _DISTANCES // widest if bool((low == low[:1]).all()) else min(_DISTANCES // widest, _ROWS)
    for start in range(0, count, max(1, rows)):
        stop = min(start + max(1, rows), count)
        first, last = int(low[start]), int(high[stop - 1])
        yield slice(start, stop), first, last, (first, last) != (int(low[stop - 1]), int(high[start]))
