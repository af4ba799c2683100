"""Jobs: the rows of a graph cut into pieces of about as many edges.

How rows are cut depends on the graph alone, so that results are the same to the last bit for every number of threads.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mpnn.memo import outside
from mpnn.sparse.csr import Csr

PRODUCT, SUM, KINKED = 0, 1, 2  # kinds of scores, see ``mpnn.native.forward``
BLOCK = 64  # edges whose scores are held at once
LEAST, MOST = 512, 8192  # edges of a job


class Jobs(NamedTuple):
    """``items`` int64 (jobs, 5): first row, end row, first edge, end edge, slot (-1 for whole rows) · ``long`` int64
    (rows, 3): a row that was cut, its first slot, its end slot · ``slots``: how many."""

    items: Tensor
    long: Tensor
    slots: int


def jobs_of(csr: Csr) -> Jobs:
    """The jobs of these rows, made once."""
    if "jobs" not in csr.cache:
        with outside():
            csr.cache["jobs"] = _cut(csr.offsets)
    return csr.cache["jobs"]


def _cut(start: Tensor) -> Jobs:
    rows = start.shape[0] - 1
    if rows == 0:
        return Jobs(start.new_empty(0, 5), start.new_empty(0, 3), 0)
    each = min(MOST, max(LEAST, int(start[-1]) // 64))
    degree = start.diff()
    long = degree > 2 * each
    group = (start[:-1] + torch.arange(rows, device=start.device)) // each  # an empty row costs about an edge
    first = torch.ones(rows, dtype=torch.bool, device=start.device)
    first[1:] = (group[1:] != group[:-1]) | long[1:] | long[:-1]
    begin = first.nonzero().squeeze(-1)
    end = torch.cat([begin[1:], begin.new_tensor([rows])])
    pieces = torch.where(long[begin], -(-degree[begin] // each), 1)
    owner = torch.repeat_interleave(pieces)
    number = torch.arange(len(owner), device=start.device) - (pieces.cumsum(0) - pieces)[owner]
    begin, end, cut = begin[owner], end[owner], long[begin][owner]
    low = start[begin] + number * each
    slot = torch.where(cut, cut.cumsum(0) - 1, -1)
    items = torch.stack([begin, end, low, torch.minimum(low + each, start[end]), slot], 1)
    row = long.nonzero().squeeze(-1)
    stop = (-(-degree[row] // each)).cumsum(0)
    ends = torch.stack([row, torch.nn.functional.pad(stop, (1, -1)) if len(row) else stop, stop], 1)
    return Jobs(items.contiguous(), ends.contiguous(), int(cut.sum()))
