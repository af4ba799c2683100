"""The backward of attention over compressed rows as numba functions: two passes, no tensor over edges.

The weights are made again from each row's log-sum-exp. By target a pass collects what belongs to targets and edges, by
source what belongs to sources, so that no two jobs write to the same place. Arguments are those of ``forward``.
"""

from __future__ import annotations

import numpy as np

from mpnn.native.forward import AHEAD, ahead, opened, opened_rows, score
from mpnn.native.jobs import BLOCK, PRODUCT, SUM
from mpnn.native.lanes import add, add_bend, add_leaky, compiled, dot, exponentials, pointer, prefetch


@compiled
def weights(
    p,
    lo,
    count,
    by_source,
    kind,
    scale,
    slope,
    sizes,
    steps,
    entry,
    row,
    col,
    places,
    placed,
    a,
    b,
    vector,
    u,
    feature,
    bias,
    biased,
    lse,
    share,
    more,
    lanes,
):
    """p[x, h] = the weight of the edges lo … lo + count of a row, from the targets' log-sum-exps."""
    n, m, edges, heads, width, wide, features, _slots, _batch = sizes
    for x in range(count):
        i, j, e = row, col[lo + x], lo + x
        if e + AHEAD < edges:  # what stands at the far ends; what is read of them besides comes with it
            far = (entry * (n if by_source else m) + col[e + AHEAD]) * heads
            if by_source:
                ahead(a, far * width, heads * width)
                prefetch(lse, far)
                prefetch(share, far)
            else:
                ahead(b, far * width, heads * width)
            ahead(more, far * wide, heads * wide)
        if by_source:
            i, j = j, i
            if placed:
                e = places[lo + x]
        i, j = (entry * n + i) * heads, (entry * m + j) * heads
        for h in range(heads):
            be = entry * steps[2] + e * heads + h if biased else -1
            s = score(
                kind, scale, slope, a, (i + h) * width, b, (j + h) * width, vector, entry * steps[0] + h * width, u,
                (i + h) * features, feature, entry * steps[1] + e * features, features, bias, be, width, lanes,
            )  # fmt: skip
            all_ = lse[i + h]
            p[x * heads + h] = s - all_ if all_ > -np.inf or all_ != all_ else -np.inf
    exponentials(p, count * heads)


@compiled
def by_target(first, last, kind, sizes, steps, numbers, rows, given, seen, made, work, lanes, value_lanes):
    """Jobs first … last of the rows by target: gradients of a, u, vector, features and bias, and each row's share."""
    n, m, edges, heads, width, wide, features, slots, _batch = sizes
    scale, slope, _, _ = numbers
    count_of_items, placed, biased = rows[4], rows[3] != 0, given[5] != 0
    items, start, col, places = opened_rows(numbers, rows)
    a, b, vector, u, feature, bias, v, p = opened(scale, given, work)
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
            own = (entry * n + row) * heads
            for c in range(y * width, (y + heads) * width):
                d_a[c] = 0
            for c in range(y * features, (y + heads) * features):
                d_u[c] = 0
            for h in range(heads):
                common = scale * 0
                for c in range((own + h) * wide, (own + h + 1) * wide):
                    common += grad[c] * out[c]
                for c in range((own + h) * features, (own + h + 1) * features):
                    common += grad_z[c] * z[c]
                share[own + h] = common
            for begin in range(lo, hi, BLOCK):
                count = min(BLOCK, hi - begin)
                weights(
                    p, begin, count, False, kind, scale, slope, sizes, steps, entry, row, col, places, placed, a, b,
                    vector, u, feature, bias, biased, lse, share, v, lanes,
                )  # fmt: skip
                for x in range(count):
                    e = begin + x
                    other = (entry * m + col[e]) * heads
                    f = entry * steps[1] + e * features
                    df = (entry * edges + e) * features
                    for h in range(heads):
                        w = p[x * heads + h]
                        slope_of = -share[own + h]
                        for c in range(0, wide, len(value_lanes)):
                            slope_of += dot(grad, (own + h) * wide + c, v, (other + h) * wide + c, value_lanes)
                        for c in range(features):
                            slope_of += grad_z[(own + h) * features + c] * feature[f + c]
                        d = w * slope_of
                        if kind == SUM:
                            s = a[own + h] + b[other + h]
                            if biased:
                                s += bias[entry * steps[2] + e * heads + h]
                            if s <= 0:
                                d *= slope
                            d_a[y + h] += d
                        elif kind == PRODUCT:
                            for c in range(0, width, len(lanes)):
                                add(d_a, (y + h) * width + c, scale * d, b, (other + h) * width + c, lanes)
                            for c in range(features):
                                d_u[(y + h) * features + c] += scale * d * feature[f + c]
                            if made[6]:
                                for c in range(features):
                                    k = (own + h) * features + c
                                    d_feature[df + c] += scale * d * u[k] + w * grad_z[k]
                        else:
                            i, j, k = (own + h) * width, (other + h) * width, entry * steps[0] + h * width
                            for c in range(0, width, len(lanes)):
                                add_bend(d_a, (y + h) * width + c, d, vector, k + c, a, i + c, b, j + c, slope, lanes)
                                o = (job * heads + h) * width + c
                                add_leaky(d_vector, o, d, a, i + c, b, j + c, slope, lanes)
                        if made[7]:
                            d_bias[(entry * edges + e) * heads + h] = d


@compiled
def by_source(first, last, kind, sizes, steps, numbers, rows, given, seen, made, work, lanes, value_lanes):
    """Jobs first … last of the rows by source: gradients of b and v."""
    n, m, _edges, heads, width, wide, features, slots, _batch = sizes
    scale, slope, _, _ = numbers
    count_of_items, placed, biased = rows[4], rows[3] != 0, given[5] != 0
    items, start, col, places = opened_rows(numbers, rows)
    a, b, vector, u, feature, bias, v, p = opened(scale, given, work)
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
            own = (entry * m + row) * heads
            for c in range(y * width, (y + heads) * width):
                d_b[c] = 0
            for c in range(y * wide, (y + heads) * wide):
                d_v[c] = 0
            for begin in range(lo, hi, BLOCK):
                count = min(BLOCK, hi - begin)
                weights(
                    p, begin, count, True, kind, scale, slope, sizes, steps, entry, row, col, places, placed, a, b,
                    vector, u, feature, bias, biased, lse, share, grad, lanes,
                )  # fmt: skip
                for x in range(count):
                    other = (entry * n + col[begin + x]) * heads
                    e = places[begin + x] if placed else begin + x
                    f = entry * steps[1] + e * features
                    for h in range(heads):
                        w = p[x * heads + h]
                        slope_of = -share[other + h]
                        for c in range(0, wide, len(value_lanes)):
                            i, j = (other + h) * wide + c, (own + h) * wide + c
                            slope_of += dot(grad, i, v, j, value_lanes)
                            add(d_v, (y + h) * wide + c, w, grad, i, value_lanes)
                        for c in range(features):
                            slope_of += grad_z[(other + h) * features + c] * feature[f + c]
                        d = w * slope_of
                        if kind == SUM:
                            s = a[other + h] + b[own + h]
                            if biased:
                                s += bias[entry * steps[2] + e * heads + h]
                            d_b[y + h] += d * slope if s <= 0 else d
                        elif kind == PRODUCT:
                            for c in range(0, width, len(lanes)):
                                add(d_b, (y + h) * width + c, scale * d, a, (other + h) * width + c, lanes)
                        else:
                            i, j, k = (other + h) * width, (own + h) * width, entry * steps[0] + h * width
                            for c in range(0, width, len(lanes)):
                                add_bend(d_b, (y + h) * width + c, d, vector, k + c, a, i + c, b, j + c, slope, lanes)


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
