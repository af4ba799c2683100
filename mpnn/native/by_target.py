"""The backward's pass over rows by target: gradients of a, u, vector, features and bias, and each row's share.

The weights are made again from each row's log-sum-exp. The share of a row is what the softmax takes from the gradient
of each of its weights, Σ_j w_ij (gradient of w_ij). No two jobs write to the same place, but for the share of a row
that was cut: each of its pieces stores the same number there, whole.
"""

from __future__ import annotations

from functools import cache

from mpnn.native.compiled import entry, pointer
from mpnn.native.jobs import BLOCK, PRODUCT, SUM
from mpnn.native.lanes import bend, load, plus, splat, store, times, total
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
def by_target(kind, number, narrow, lanes, value_lanes, head_lanes):
    """The pass for one kind of scores, numbers of these types and vectors of these lengths."""
    zero, first_place = number(0), narrow(0)

    def by_target(address):
        sizes, steps, numbers, graph, items_, inputs, has_bias, _, own, work = called(address, zero, first_place)
        n, m, edges, heads, width, wide, features, slots, near = sizes
        (scale, slope), (items, start, col, places), (a, b, vector, u, feature, bias, v) = numbers, graph, inputs
        p, raw = pointer(work, zero), pointer(work + 8 * room(heads), zero)
        q = pointer(work + 16 * room(heads), zero)
        grad, grad_z, out, z = (
            pointer(own[0], zero),
            pointer(own[1], zero),
            pointer(own[2], zero),
            pointer(own[3], zero),
        )
        lse, share, d_vector = pointer(own[4], zero), pointer(own[9], zero), pointer(own[10], zero)
        d_feature, d_bias = pointer(own[11], zero), pointer(own[12], zero)
        job, last = next_jobs(address)
        while job < last:
            batch, item = divmod(job, items_)
            slot = items[item * 5 + 4]
            away = 7 if slot >= 0 else 5
            d_a, d_u = pointer(own[away], zero), pointer(own[1 + away], zero)
            for row in range(items[item * 5], items[item * 5 + 1]):
                lo, hi = start[row], start[row + 1]
                if slot >= 0:
                    lo, hi = items[item * 5 + 2], items[item * 5 + 3]
                y = (batch * slots + slot if slot >= 0 else batch * n + row) * heads
                i, far, first = batch * n + row, batch * m, (batch * n + row) * heads
                cleared(d_a, y * width, (y + heads) * width, lanes)
                for c in range(y * features, (y + heads) * features):
                    d_u[c] = 0
                for h in range(first, first + heads):
                    common = splat(p, 0, value_lanes)
                    for c in range(h * wide, (h + 1) * wide, len(value_lanes)):
                        common = plus(common, times(load(grad, c, value_lanes), load(out, c, value_lanes)))
                    all_ = total(common)
                    for c in range(h * features, (h + 1) * features):
                        all_ += grad_z[c] * z[c]
                    share[h] = all_  # once: the pieces of a row that was cut all store it, while others read it
                for begin in range(lo, hi, BLOCK):
                    count = min(BLOCK, hi - begin)
                    if not near:
                        one, end = min(begin + AHEAD, edges), min(begin + count + AHEAD, edges)
                        ahead(b, one, end, col, far, heads * width)
                        ahead(v, one, end, col, far, heads * wide)
                    if kind == SUM:
                        added(p, count, heads, (a, first), b, far, col, begin, head_lanes)
                    elif kind == PRODUCT:
                        dots(p, count, heads, a, first * width, b, far, col, begin, width, lanes)
                        featured(p, count, heads, u, i, far, col, begin, feature, batch * steps[1], places, features)
                        scaled(p, count * heads, scale)
                    else:
                        kinked(
                            p, count, heads, vector, batch * steps[0], a, first * width, b, far, col, begin, width,
                            slope, lanes,
                        )  # fmt: skip
                    if has_bias:
                        biased(p, count, heads, bias, batch * steps[2], begin, places, False)
                    if kind == SUM:
                        bent(p, raw, count * heads, slope)
                    lowered(p, count, heads, lse, i, far, col, begin, head_lanes)
                    exponentials(p, count * heads)
                    dots(q, count, heads, grad, first * wide, v, far, col, begin, wide, value_lanes)
                    if kind == PRODUCT:
                        featured(
                            q, count, heads, grad_z, i, far, col, begin, feature, batch * steps[1], places, features
                        )  # fmt: skip
                    lowered(q, count, heads, share, i, far, col, begin, head_lanes)
                    for x in range(0, count * heads, len(FLAT)):  # a weight's gradient → the score's
                        d = times(load(p, x, FLAT), load(q, x, FLAT))
                        store(q, x, times(d, bend(load(raw, x, FLAT), slope)) if kind == SUM else d)
                    if own[12]:
                        for x in range(count * heads):
                            d_bias[(batch * edges + begin) * heads + x] = q[x]
                    if kind == SUM:
                        sums(d_a, y, q, count, heads, head_lanes)
                    elif kind == PRODUCT:
                        scaled(q, count * heads, scale)
                        gather(d_a, y * width, q, count, heads, b, far, col, begin, width, lanes)
                        for x in range(count if features else 0):
                            f, df = (batch * steps[1] + begin + x) * features, (batch * edges + begin + x) * features
                            for h in range(heads):
                                d, w = q[x * heads + h], p[x * heads + h]
                                for c in range(features):
                                    d_u[(y + h) * features + c] += d * feature[f + c]
                                for c in range(features if own[11] else 0):
                                    k = (first + h) * features + c
                                    d_feature[df + c] += d * u[k] + w * grad_z[k]
                    else:
                        bends(
                            d_a, y * width, d_vector, job * heads * width, q, count, heads, vector, batch * steps[0],
                            a, first * width, b, far, col, begin, width, slope, lanes,
                        )  # fmt: skip
            job += 1
            if job == last:
                job, last = next_jobs(address)

    return entry(by_target, kind, number, narrow, lanes, value_lanes, head_lanes)
