"""What the two passes of the backward are made of, as numba functions.

The weights are made again from each row's log-sum-exp. By target a pass collects what belongs to targets and edges
(``mpnn.native.by_target``), by source what belongs to sources (``mpnn.native.by_source``), so that no two jobs write to
the same place.
"""

from __future__ import annotations

import numpy as np

from mpnn.native.compiled import compiled, pointer
from mpnn.native.jobs import SUM
from mpnn.native.lanes import bend, load, plus, splat, store, times
from mpnn.native.powers import FLAT


@compiled
def slopes(q, p, raw, count, kind, slope):
    """q = the gradients of the scores, of SUM before its leaky: weight · q."""
    for x in range(0, count, len(FLAT)):
        d = times(load(p, x, FLAT), load(q, x, FLAT))
        store(q, x, times(d, bend(load(raw, x, FLAT), slope)) if kind == SUM else d)


@compiled
def scaled(q, count, scale):
    """q · scale."""
    for x in range(0, count, len(FLAT)):
        store(q, x, times(load(q, x, FLAT), splat(q, scale, FLAT)))


@compiled
def sums(y, o, q, count, heads, head_lanes):
    """y[o, h] += Σ_x q[x, h]."""
    for h in range(0, heads, len(head_lanes)):
        all_ = load(y, o + h, head_lanes)
        for x in range(count):
            all_ = plus(all_, load(q, x * heads + h, head_lanes))
        store(y, o + h, all_)


@compiled
def bends(y, o, d_vector, k, q, count, heads, vector, h0, own, i, other, base, col, lo, width, slope, lanes):
    """y[o, h] += vector · Σ_x q[x, h] · bend, and d_vector[k, h] += Σ_x q[x, h] · leaky, of own + other, with k ≥ 0."""
    for h in range(heads):
        for c in range(h * width, (h + 1) * width, len(lanes)):
            mine, first, second = load(own, i + c, lanes), splat(own, 0, lanes), splat(own, 0, lanes)
            for x in range(count):
                met = plus(mine, load(other, (base + col[lo + x]) * heads * width + c, lanes))
                d = times(splat(q, q[x * heads + h], lanes), bend(met, slope))
                first, second = plus(first, d), plus(second, times(d, met))
            store(y, o + c, plus(load(y, o + c, lanes), times(first, load(vector, h0 + c, lanes))))
            if k >= 0:
                store(d_vector, k + c, plus(load(d_vector, k + c, lanes), second))


@compiled
def add_up(scale, count, long, long_rows, slots, batch, size, part, made):
    """The gradients of rows that were cut: the sums of their pieces."""
    rows, x, y = pointer(long, np.int64(0)), pointer(part, scale), pointer(made, scale)
    for job in range(batch * long_rows):
        entry, row = divmod(job, long_rows)
        own = (entry * count + rows[row * 3]) * size
        for c in range(size):
            y[own + c] = 0
        for s in range(entry * slots + rows[row * 3 + 1], entry * slots + rows[row * 3 + 2]):
            for c in range(size):
                y[own + c] += x[s * size + c]
