"""Calls of compiled passes: addresses and sizes in the order in which ``mpnn.native.steps.called`` reads them."""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mpnn.native.jobs import BLOCK, SUM, Jobs, jobs_of
from mpnn.native.threads import run
from mpnn.sparse.csr import Csr

_WIDTHS = {n: (0,) * n for n in (32, 16, 8, 4, 1)}
NEAR = 1 << 21  # bytes of rows that are read from all over which need no asking in advance
_TYPES: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}


def lanes(width: int, most: int = 32) -> tuple[int, ...]:
    """As many zeros as numbers are taken at a time: compiled code knows a tuple's length."""
    return next(t for n, t in _WIDTHS.items() if width % n == 0 and n <= most)


def _shared(x: Tensor | None, axes: int) -> tuple[Tensor | None, int]:
    """A tensor in one piece and the step from one batch entry to the next, in numbers of three axes, in rows of two: 0
    where all share it."""
    if x is None:
        return None, 0
    if x.shape[0] == 1 or x.stride(0) == 0:
        return x[:1].contiguous(), 0
    return x.contiguous(), math.prod(x.shape[1:axes])


def _bits(number: float) -> tuple[int, ...]:
    """A float64 number as int64."""
    return struct.unpack("q", struct.pack("d", number))


def at(*tensors: Tensor | None) -> tuple[int, ...]:
    """Addresses; 0 for None. The plan refuses what has none, but no gradient and no call that is remembered."""
    return tuple(0 if t is None else _address(t) for t in tensors)


def _address(t: Tensor) -> int:
    if type(t).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        found = 0  # asked for it, a fake tensor warns
    else:
        found = t.data_ptr()
    if (found == 0 and t.numel()) or t.is_neg():
        raise TypeError(
            f"compiled code reads numbers at addresses, and a {type(t).__name__} came that has no memory of its own; "
            "run the call inside use_kernels('reference')"
        )
    return found


class Call(NamedTuple):
    """What every pass over some rows reads."""

    jobs: Jobs
    cost: int
    numbers: tuple[int, ...]
    fixed: tuple
    held: tuple  # the tensors whose addresses these are

    def run(self, entry: Any, times: int, *own: int) -> None:
        heads, batch = self.held[0].shape[2], self.held[0].shape[0]
        space = 8 * 3 * (BLOCK * heads + 16)
        own += (0,) * (13 - len(own))
        run(entry(*self.fixed), self.jobs.items.shape[0] * batch, times * self.cost, space, [*self.numbers, *own])


def called(csr: Csr, turned: bool, kind: int, scale: float, slope: float, inputs: tuple) -> Call:
    """The call of passes over these rows, or over those of the transpose."""
    csr = csr.transpose if turned else csr
    a, b, vector, u, feature, bias, value = inputs
    batch, n, heads = a.shape[:3]
    (vector, own), (feature, more), (bias, less) = _shared(vector, 3), _shared(feature, 2), _shared(bias, 2)
    u = u if u is None else u.contiguous()
    held = (a.contiguous(), b.contiguous(), vector, u, feature, bias, value.contiguous())
    width, wide, features = 1 if kind == SUM else a.shape[3], value.shape[3], 0 if u is None else u.shape[3]
    jobs, edges = jobs_of(csr), csr.row.shape[0]
    near = (b.numel() + value.numel()) * a.element_size() <= NEAR
    sizes = (n, b.shape[1], edges, heads, width, wide, features, jobs.slots, int(near))
    places = csr.order if turned and (features or bias is not None) else None
    rows = (*at(jobs.items, csr.offsets, csr.col, places), jobs.items.shape[0])
    numbers = (*_bits(scale), *_bits(slope), *sizes, own, more, less, *rows, *at(*held))
    narrow = np.int32 if csr.col.dtype == torch.int32 else np.int64
    fixed = (kind, _TYPES[a.dtype], narrow, lanes(width), lanes(wide), lanes(heads, 8))
    return Call(jobs, batch * edges * heads * (width + wide), numbers, fixed, held)
