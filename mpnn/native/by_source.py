"""The backward's pass over rows by source, those of the transpose: gradients of b and value."""

from __future__ import annotations

from functools import cache

import numpy as np

from mpnn.native.compiled import compiled, entry, pointer
from mpnn.native.jobs import BLOCK, PRODUCT, SUM
from mpnn.native.lanes import bend, load, store, times
from mpnn.native.powers import FLAT, exponentials
from mpnn.native.products import bends, dots, gather, kinked
from mpnn.native.steps import (
    AHEAD,
    added,
    ahead,
    bent,
    biased,
    called,
    cleared,
    featured,
    lowered,
    next_jobs,
    room,
    scaled,
    sums,
)  # fmt: skip


@cache
def by_source(kind, number, narrow, lanes, value_lanes, head_lanes):
    """The pass for one kind of scores, numbers of these types and vectors of these lengths."""
    zero, first_place = number(0), narrow(0)

    def by_source(address):
        sizes, steps, numbers, graph, items_, inputs, has_bias, placed, own, work = called(address, zero, first_place)
        n, m, edges, heads, width, wide, features, slots, near = sizes
        (scale, slope), (items, start, col, places), (a, b, vector, u, feature, bias, v) = numbers, graph, inputs
        p, raw = pointer(work, zero), pointer(work + 8 * room(heads), zero)
        q = pointer(work + 16 * room(heads), zero)
        grad, grad_z = pointer(own[0], zero), pointer(own[1], zero)
        share, lse = pointer(own[2], zero), pointer(own[3], zero)
        job, last = next_jobs(address)
        while job < last:
            batch, item = divmod(job, items_)
            slot = items[item * 5 + 4]
            away = 7 if slot >= 0 else 5
            d_b, d_v = pointer(own[away], zero), pointer(own[1 + away], zero)
            for row in range(items[item * 5], items[item * 5 + 1]):
                lo, hi = start[row], start[row + 1]
                if slot >= 0:
                    lo, hi = items[item * 5 + 2], items[item * 5 + 3]
                y = (batch * slots + slot if slot >= 0 else batch * m + row) * heads
                first, far = (batch * m + row) * heads, batch * n
                cleared(d_b, y * width, (y + heads) * width, lanes)
                cleared(d_v, y * wide, (y + heads) * wide, value_lanes)
                for begin in range(lo, hi, BLOCK):
                    count = min(BLOCK, hi - begin)
                    if not near:
                        one, end = min(begin + AHEAD, edges), min(begin + count + AHEAD, edges)
                        ahead(a, one, end, col, far, heads * width)
                        ahead(grad, one, end, col, far, heads * wide)
                        ahead(lse, one, end, col, far, heads)
                        ahead(share, one, end, col, far, heads)
                    if kind == SUM:
                        added(p, count, heads, (b, first), a, far, col, begin, head_lanes)
                    elif kind == PRODUCT:
                        dots(p, count, heads, b, first * width, a, far, col, begin, width, lanes)
                        featured(p, count, heads, u, -1, far, col, begin, feature, batch * steps[1], places, features)
                        scaled(p, count * heads, scale)
                    else:
                        kinked(
                            p, count, heads, vector, batch * steps[0], b, first * width, a, far, col, begin, width,
                            slope, lanes,
                        )  # fmt: skip
                    if has_bias:
                        biased(p, count, heads, bias, batch * steps[2], begin, places, placed)
                    if kind == SUM:
                        bent(p, raw, count * heads, slope)
                    lowered(p, count, heads, lse, -1, far, col, begin, head_lanes)
                    exponentials(p, count * heads)
                    dots(q, count, heads, v, first * wide, grad, far, col, begin, wide, value_lanes)
                    gather(d_v, y * wide, p, count, heads, grad, far, col, begin, wide, value_lanes)
                    if kind == PRODUCT:
                        featured(
                            q, count, heads, grad_z, -1, far, col, begin, feature, batch * steps[1], places, features
                        )  # fmt: skip
                    lowered(q, count, heads, share, -1, far, col, begin, head_lanes)
                    for x in range(0, count * heads, len(FLAT)):  # a weight's gradient → the score's
                        d = times(load(p, x, FLAT), load(q, x, FLAT))
                        store(q, x, times(d, bend(load(raw, x, FLAT), slope)) if kind == SUM else d)
                    if kind == SUM:
                        sums(d_b, y, q, count, heads, head_lanes)
                    elif kind == PRODUCT:
                        scaled(q, count * heads, scale)
                        gather(d_b, y * width, q, count, heads, a, far, col, begin, width, lanes)
                    else:
                        bends(
                            d_b, y * width, d_b, -1, q, count, heads, vector, batch * steps[0], b, first * width, a,
                            far, col, begin, width, slope, lanes,
                        )  # fmt: skip
            job += 1
            if job == last:
                job, last = next_jobs(address)

    return entry(by_source, kind, number, narrow, lanes, value_lanes, head_lanes)


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
