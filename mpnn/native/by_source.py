"""The backward's pass over rows by source, those of the transpose: gradients of b and value."""

from __future__ import annotations

from functools import cache

from mpnn.native.backward import bends, scaled, slopes, sums
from mpnn.native.compiled import compiled, entry, pointer
from mpnn.native.jobs import BLOCK, PRODUCT, SUM
from mpnn.native.lanes import load, plus, splat, store, times
from mpnn.native.powers import exponentials
from mpnn.native.steps import (
    AHEAD,
    ahead,
    called,
    dots,
    gather,
    next_jobs,
    opened,
    opened_rows,
    room,
    scores,
    weights,
    zero,
)


@compiled
def by_source(first, last, kind, sizes, steps, numbers, rows, given, own, work, lanes, value_lanes, head_lanes):
    """Jobs first … last of the rows by source: gradients of b and v."""
    n, m, edges, heads, width, wide, features, slots, _batch, near = sizes
    scale, slope, _, _ = numbers
    seen, made = own[:5], own[5:]
    count_of_items, placed, biased = rows[4], rows[3] != 0, given[5] != 0
    items, start, col, places = opened_rows(numbers, rows)
    a, b, vector, _, feature, _, v = opened(scale, given)
    p, raw = pointer(work, scale), pointer(work + 8 * room(heads), scale)
    q = pointer(work + 16 * room(heads), scale)
    grad, grad_z = pointer(seen[0], scale), pointer(seen[1], scale)
    share, lse = pointer(seen[2], scale), pointer(seen[3], scale)
    for job in range(first, last):
        entry, item = divmod(job, count_of_items)
        slot = items[item * 5 + 4]
        away = 2 if slot >= 0 else 0
        d_b, d_v = pointer(made[away], scale), pointer(made[1 + away], scale)
        for row in range(items[item * 5], items[item * 5 + 1]):
            lo, hi = start[row], start[row + 1]
            if slot >= 0:
                lo, hi = items[item * 5 + 2], items[item * 5 + 3]
            y = (entry * slots + slot if slot >= 0 else entry * m + row) * heads
            i = (entry * m + row) * heads
            zero(d_b, y * width, (y + heads) * width, lanes)
            zero(d_v, y * wide, (y + heads) * wide, value_lanes)
            for begin in range(lo, hi, BLOCK):
                count = min(BLOCK, hi - begin)
                if not near:
                    one, end = min(begin + AHEAD, edges), min(begin + count + AHEAD, edges)
                    ahead(a, one, end, col, entry * n, heads * width)
                    ahead(grad, one, end, col, entry * n, heads * wide)
                    ahead(lse, one, end, col, entry * n, heads)
                    ahead(share, one, end, col, entry * n, heads)
                scores(
                    p, begin, count, True, kind, numbers, sizes, steps, entry, row, col, places, placed, given,
                    biased, lanes, head_lanes,
                )  # fmt: skip
                weights(p, raw, count, heads, kind, lse, entry * n, col, begin, -1, slope, head_lanes)
                exponentials(p, count * heads)
                dots(q, count, heads, v, i * wide, grad, entry * n, col, begin, wide, value_lanes)
                gather(d_v, y * wide, p, count, heads, grad, entry * n, col, begin, wide, value_lanes)
                for x in range(count if features else 0):
                    e = places[begin + x] if placed else begin + x
                    f, g = entry * steps[1] + e * features, (entry * n + col[begin + x]) * heads
                    for h in range(heads):
                        for c in range(features):
                            q[x * heads + h] += grad_z[(g + h) * features + c] * feature[f + c]
                for x in range(count):
                    g = (entry * n + col[begin + x]) * heads
                    for h in range(0, heads, len(head_lanes)):
                        less = times(load(share, g + h, head_lanes), splat(p, -1, head_lanes))
                        store(q, x * heads + h, plus(load(q, x * heads + h, head_lanes), less))
                slopes(q, p, raw, count * heads, kind, slope)
                if kind == SUM:
                    sums(d_b, y, q, count, heads, head_lanes)
                elif kind == PRODUCT:
                    scaled(q, count * heads, scale)
                    gather(d_b, y * width, q, count, heads, a, entry * n, col, begin, width, lanes)
                else:
                    bends(
                        d_b, y * width, d_b, -1, q, count, heads, vector, entry * steps[0], b, i * width, a,
                        entry * n, col, begin, width, slope, lanes,
                    )  # fmt: skip


@cache
def by_source_entry(number, narrow, lanes, value_lanes, head_lanes):
    """The pass for numbers of these types and vectors of these lengths."""

    def by_source_jobs(address):
        kind, sizes, steps, numbers, rows, given, own, work = called(address, number, narrow)
        first, last = next_jobs(address)
        while first < last:
            by_source(
                first, last, kind, sizes, steps, numbers, rows, given, own, work, lanes, value_lanes, head_lanes
            )  # fmt: skip
            first, last = next_jobs(address)

    return entry(by_source_jobs, number, narrow, lanes, value_lanes, head_lanes)
