"""Attention over compressed rows as a numba function: one pass, no tensor over edges.

A job is some whole rows, or a piece of one long row, whose parts are joined afterwards. Tensors come as addresses; the
row of a token holds its heads side by side. ``kind`` says what a score is:

    PRODUCT   scale · (a_i·b_j + u_i·f_ij) + bias_ij     queries and keys; features f of edges, u = Wᵀq
    SUM       leaky(a_i + b_j + bias_ij)                 GAT: one number a head
    KINKED    vector · leaky(a_i + b_j) + bias_ij        GATv2

Each row's log-sum-exp is kept, from which ``mpnn.native.backward`` makes the weights again.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from mpnn.native.compiled import compiled, entry, pointer
from mpnn.native.jobs import BLOCK, SUM
from mpnn.native.lanes import leaky, load, more, plus, splat, store, times
from mpnn.native.powers import exponentials, logarithms
from mpnn.native.steps import AHEAD, ahead, called, gather, next_jobs, opened, opened_rows, room, scores, zero


@compiled
def forward(first, last, kind, sizes, steps, numbers, rows, given, made, work, lanes, value_lanes, head_lanes):
    """Jobs first … last: each row's sum and log-sum-exp."""
    n, m, edges, heads, width, wide, features, slots, _batch, near = sizes
    scale, slope, _, _ = numbers
    count_of_items, biased = rows[4], given[5] != 0
    items, start, col, places = opened_rows(numbers, rows)
    _, b, _, _, feature, _, v = opened(scale, given)
    p, size = pointer(work, scale), heads * wide
    top = pointer(work + 8 * room(heads), scale)  # the largest scores, and what is taken from all
    total = pointer(work + 8 * (room(heads) + 2 * heads), scale)
    for job in range(first, last):
        entry, item = divmod(job, count_of_items)
        slot = items[item * 5 + 4]
        away = 3 if slot >= 0 else 0
        out, z = pointer(made[away], scale), pointer(made[1 + away], scale)
        lse = pointer(made[2 + away], scale)
        for row in range(items[item * 5], items[item * 5 + 1]):
            lo, hi = start[row], start[row + 1]
            if slot >= 0:
                lo, hi = items[item * 5 + 2], items[item * 5 + 3]
            y = (entry * slots + slot if slot >= 0 else entry * n + row) * heads
            for h in range(heads):
                top[h], total[h] = -np.inf, 0
            zero(out, y * wide, (y + heads) * wide, value_lanes)
            for c in range(y * features, (y + heads) * features):
                z[c] = 0
            for begin in range(lo, hi, BLOCK):
                count = min(BLOCK, hi - begin)
                if not near:
                    one, end = min(begin + AHEAD, edges), min(begin + count + AHEAD, edges)
                    ahead(b, one, end, col, entry * m, heads * width)
                    ahead(v, one, end, col, entry * m, size)
                scores(
                    p, begin, count, False, kind, numbers, sizes, steps, entry, row, col, places, False, given,
                    biased, lanes, head_lanes,
                )  # fmt: skip
                for h in range(0, heads, len(head_lanes)):
                    most = load(top, h, head_lanes)
                    for x in range(count):
                        s = load(p, x * heads + h, head_lanes)
                        if kind == SUM:
                            s = leaky(s, slope)
                            store(p, x * heads + h, s)
                        most = more(s, most)
                    store(top, h + heads, most)
                for h in range(heads):
                    most = top[heads + h]
                    shift = most if most > -np.inf or most != most else scale * 0
                    if begin > lo:
                        less = np.exp(top[h] - shift)
                        total[h] *= less
                        for c in range((y + h) * wide, (y + h + 1) * wide):
                            out[c] *= less
                        for c in range((y + h) * features, (y + h + 1) * features):
                            z[c] *= less
                    top[h], top[heads + h] = most, shift
                for h in range(0, heads, len(head_lanes)):
                    shift = times(load(top, heads + h, head_lanes), splat(p, -1, head_lanes))
                    for x in range(count):
                        store(p, x * heads + h, plus(load(p, x * heads + h, head_lanes), shift))
                exponentials(p, count * heads)
                for h in range(0, heads, len(head_lanes)):
                    all_ = load(total, h, head_lanes)
                    for x in range(count):
                        all_ = plus(all_, load(p, x * heads + h, head_lanes))
                    store(total, h, all_)
                gather(out, y * wide, p, count, heads, v, entry * m, col, begin, wide, value_lanes)
                for x in range(count if features else 0):
                    f = entry * steps[1] + (begin + x) * features
                    for h in range(heads):
                        for c in range(features):
                            z[(y + h) * features + c] += p[x * heads + h] * feature[f + c]
            for h in range(heads):
                if total[h] > 0 or total[h] != total[h]:
                    part = (scale * 0 + 1) / total[h]
                    for c in range((y + h) * wide, (y + h + 1) * wide, len(value_lanes)):
                        store(out, c, times(load(out, c, value_lanes), splat(p, part, value_lanes)))
                    for c in range((y + h) * features, (y + h + 1) * features):
                        z[c] *= part
            logarithms(total, heads)
            for h in range(heads):
                lse[y + h] = top[h] + total[h]


@cache
def forward_entry(number, narrow, lanes, value_lanes, head_lanes):
    """The pass for numbers of these types and vectors of these lengths."""

    def forward_jobs(address):
        kind, sizes, steps, numbers, rows, given, own, work = called(address, number, narrow)
        first, last = next_jobs(address)
        while first < last:
            forward(
                first, last, kind, sizes, steps, numbers, rows, given, own, work, lanes, value_lanes, head_lanes
            )  # fmt: skip
            first, last = next_jobs(address)

    return entry(forward_jobs, number, narrow, lanes, value_lanes, head_lanes)


@compiled
def join(sizes, scale, long, long_rows, parts, made):
    """The rows that were cut, from their pieces: weighed by their log-sum-exps."""
    n, heads, wide, features, slots, batch = sizes
    rows = pointer(long, np.int64(0))
    for job in range(batch * long_rows):
        entry, row = divmod(job, long_rows)
        own = (entry * n + rows[row * 3]) * heads
        one, end = entry * slots + rows[row * 3 + 1], entry * slots + rows[row * 3 + 2]
        lses, lse = pointer(parts[2], scale), pointer(made[2], scale)
        for h in range(heads):
            top, total = scale * 0 - np.inf, scale * 0
            for s in range(one, end):
                top = max(top, lses[s * heads + h])
            shift = top if top > -np.inf else scale * 0
            for s in range(one, end):
                total += np.exp(lses[s * heads + h] - shift)
            lse[own + h] = shift + np.log(total) if total != 0 else -np.inf
            for k in range(2):
                size = wide if k == 0 else features
                y, x = pointer(made[k], scale), pointer(parts[k], scale)
                for c in range(size):
                    y[(own + h) * size + c] = 0
                for s in range(one, end):
                    share = np.exp(lses[s * heads + h] - shift) / (total if total != 0 else scale * 0 + 1)
                    for c in range(size):
                        y[(own + h) * size + c] += share * x[(s * heads + h) * size + c]
