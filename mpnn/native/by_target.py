"""The backward's pass over rows by target: gradients of a, u, vector, features and bias, and each row's share.

The share of a row is Σ_j w_ij (weight's gradient), what a softmax takes from the gradient of each weight.
"""

from __future__ import annotations

from functools import cache

from mpnn.native.backward import bends, scaled, slopes, sums
from mpnn.native.compiled import compiled, entry, pointer
from mpnn.native.jobs import BLOCK, PRODUCT, SUM
from mpnn.native.lanes import load, plus, splat, store, times, total
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
def by_target(first, last, kind, sizes, steps, numbers, rows, given, own, work, lanes, value_lanes, head_lanes):
    """Jobs first … last of the rows by target: gradients of a, u, vector, features and bias, and each row's share."""
    n, m, edges, heads, width, wide, features, slots, _batch, near = sizes
    scale, slope, _, _ = numbers
    seen, made = own[:5], own[5:]
    count_of_items, biased = rows[4], given[5] != 0
    items, start, col, places = opened_rows(numbers, rows)
    a, b, vector, u, feature, _, v = opened(scale, given)
    p, raw = pointer(work, scale), pointer(work + 8 * room(heads), scale)
    q = pointer(work + 16 * room(heads), scale)
    grad, grad_z, out = pointer(seen[0], scale), pointer(seen[1], scale), pointer(seen[2], scale)
    z, lse = pointer(seen[3], scale), pointer(seen[4], scale)
    share, d_vector = pointer(made[4], scale), pointer(made[5], scale)
    d_feature, d_bias = pointer(made[6], scale), pointer(made[7], scale)
    for job in range(first, last):
        entry, item = divmod(job, count_of_items)
        slot = items[item * 5 + 4]
        away = 2 if slot >= 0 else 0
        d_a, d_u = pointer(made[away], scale), pointer(made[1 + away], scale)
        for row in range(items[item * 5], items[item * 5 + 1]):
            lo, hi = start[row], start[row + 1]
            if slot >= 0:
                lo, hi = items[item * 5 + 2], items[item * 5 + 3]
            y = (entry * slots + slot if slot >= 0 else entry * n + row) * heads
            i = (entry * n + row) * heads
            zero(d_a, y * width, (y + heads) * width, lanes)
            for c in range(y * features, (y + heads) * features):
                d_u[c] = 0
            for h in range(heads):
                common = splat(p, 0, value_lanes)
                for c in range((i + h) * wide, (i + h + 1) * wide, len(value_lanes)):
                    common = plus(common, times(load(grad, c, value_lanes), load(out, c, value_lanes)))
                common_ = total(common)
                for c in range((i + h) * features, (i + h + 1) * features):
                    common_ += grad_z[c] * z[c]
                share[i + h] = common_
            for begin in range(lo, hi, BLOCK):
                count = min(BLOCK, hi - begin)
                if not near:
                    one, end = min(begin + AHEAD, edges), min(begin + count + AHEAD, edges)
                    ahead(b, one, end, col, entry * m, heads * width)
                    ahead(v, one, end, col, entry * m, heads * wide)
                scores(
                    p, begin, count, False, kind, numbers, sizes, steps, entry, row, col, places, False, given,
                    biased, lanes, head_lanes,
                )  # fmt: skip
                weights(p, raw, count, heads, kind, lse, 0, col, begin, entry * n + row, slope, head_lanes)
                exponentials(p, count * heads)
                dots(q, count, heads, grad, i * wide, v, entry * m, col, begin, wide, value_lanes)
                for x in range(count if features else 0):
                    f = entry * steps[1] + (begin + x) * features
                    for h in range(heads):
                        for c in range(features):
                            q[x * heads + h] += grad_z[(i + h) * features + c] * feature[f + c]
                for x in range(count):
                    for h in range(0, heads, len(head_lanes)):
                        less = times(load(share, i + h, head_lanes), splat(p, -1, head_lanes))
                        store(q, x * heads + h, plus(load(q, x * heads + h, head_lanes), less))
                slopes(q, p, raw, count * heads, kind, slope)
                if made[7]:
                    for x in range(count * heads):
                        d_bias[(entry * edges + begin) * heads + x] = q[x]
                if kind == SUM:
                    sums(d_a, y, q, count, heads, head_lanes)
                elif kind == PRODUCT:
                    scaled(q, count * heads, scale)
                    gather(d_a, y * width, q, count, heads, b, entry * m, col, begin, width, lanes)
                    for x in range(count if features else 0):
                        f, df = entry * steps[1] + (begin + x) * features, (entry * edges + begin + x) * features
                        for h in range(heads):
                            d, w = q[x * heads + h], p[x * heads + h]
                            for c in range(features):
                                d_u[(y + h) * features + c] += d * feature[f + c]
                            for c in range(features if made[6] else 0):
                                k = (i + h) * features + c
                                d_feature[df + c] += d * u[k] + w * grad_z[k]
                else:
                    bends(
                        d_a, y * width, d_vector, job * heads * width, q, count, heads, vector, entry * steps[0], a,
                        i * width, b, entry * m, col, begin, width, slope, lanes,
                    )  # fmt: skip


@cache
def by_target_entry(number, narrow, lanes, value_lanes, head_lanes):
    """The pass for numbers of these types and vectors of these lengths."""

    def by_target_jobs(address):
        kind, sizes, steps, numbers, rows, given, own, work = called(address, number, narrow)
        first, last = next_jobs(address)
        while first < last:
            by_target(
                first, last, kind, sizes, steps, numbers, rows, given, own, work, lanes, value_lanes, head_lanes
            )  # fmt: skip
            first, last = next_jobs(address)

    return entry(by_target_jobs, number, narrow, lanes, value_lanes, head_lanes)
