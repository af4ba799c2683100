"""Attention over compressed rows as numba functions: one pass forward, two passes backward, no tensor over edges.

A job is some whole rows, or a piece of one long row, whose parts are joined afterwards. Tensors come as addresses; the
row of a token holds its heads side by side. ``kind`` says what a score is:

    PRODUCT   scale · (a_i·b_j + u_i·f_ij) + bias_ij     queries and keys; features f of edges, u = Wᵀq
    SUM       leaky(a_i + b_j + bias_ij)                 GAT: one number a head
    KINKED    vector · leaky(a_i + b_j) + bias_ij        GATv2

The backward makes the weights again from each row's log-sum-exp: by target it collects what belongs to targets and
edges, by source what belongs to sources, so that no two jobs write to the same place.
"""

from __future__ import annotations

import numpy as np

from mpnn.jobs import BLOCK, KINKED, PRODUCT, SUM
from mpnn.lanes import add, add_bend, add_leaky, compiled, dot, exponentials, kinked, pointer, prefetch

AHEAD, LINE = 12, 16  # edges whose rows are asked for in advance; float32 numbers of a cache line


@compiled
def score(kind, scale, slope, a, i, b, j, vector, h, u, k, feature, f, features, bias, e, width, lanes):
    """The score of one edge and head, whose numbers begin at these places."""
    x = scale * 0
    if kind == SUM:
        x = a[i] + b[j]
    elif kind == PRODUCT:
        for c in range(0, width, len(lanes)):
            x += dot(a, i + c, b, j + c, lanes)
        for c in range(features):
            x += u[k + c] * feature[f + c]
        x *= scale
    else:
        for c in range(0, width, len(lanes)):
            x += kinked(vector, h + c, a, i + c, b, j + c, slope, lanes)
    if e >= 0:
        x += bias[e]
    if kind == SUM and x < 0 and x > -np.inf:  # what a mask removes stays -inf for every slope
        x *= slope
    return x


@compiled
def ahead(x, i, size, line):
    """Ask for x[i : i + size]; ``line``: how many numbers come at once."""
    for c in range(0, size, line):
        prefetch(x, i + c)


@compiled
def forward(first, last, kind, sizes, steps, numbers, rows, given, made, work, lanes, value_lanes):
    """Jobs first … last: each row's sum and log-sum-exp."""
    n, m, edges, heads, width, wide, features, slots, batch = sizes
    scale, slope, whole, narrow = numbers
    count_of_items, placed, biased = rows[4], rows[3] != 0, given[5] != 0
    items, start, places = pointer(rows[0], whole), pointer(rows[1], whole), pointer(rows[3], whole)
    col = pointer(rows[2], narrow)
    a, b, vector, u = pointer(given[0], scale), pointer(given[1], scale), pointer(given[2], scale), pointer(given[3], scale)
    feature, bias, v = pointer(given[4], scale), pointer(given[5], scale), pointer(given[6], scale)
    p = pointer(work, scale)
    line = LINE
    top, total = pointer(work + 8 * BLOCK * heads, scale), pointer(work + 8 * (BLOCK + 1) * heads, scale)
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
            own = (entry * n + row) * heads
            for h in range(heads):
                top[h], total[h] = -np.inf, 0
            for c in range(y * wide, (y + heads) * wide):
                out[c] = 0
            for c in range(y * features, (y + heads) * features):
                z[c] = 0
            for begin in range(lo, hi, BLOCK):
                count = min(BLOCK, hi - begin)
                for x in range(count):
                    e = begin + x
                    if e + AHEAD < edges:
                        other = (entry * m + col[e + AHEAD]) * heads
                        ahead(b, other * width, heads * width, line)
                        ahead(v, other * wide, heads * wide, line)
                    other = (entry * m + col[e]) * heads
                    f = entry * steps[1] + e * features
                    for h in range(heads):
                        be = entry * steps[2] + e * heads + h if biased else -1
                        s = score(
                            kind, scale, slope, a, (own + h) * width, b, (other + h) * width, vector,
                            entry * steps[0] + h * width, u, (own + h) * features, feature, f, features, bias, be,
                            width, lanes,
                        )  # fmt: skip
                        p[x * heads + h] = s
                for h in range(heads):
                    most = top[h]
                    for x in range(count):
                        s = p[x * heads + h]
                        if s > most or s != s:
                            most = s
                    shift = most if most > -np.inf or most != most else scale * 0
                    if begin > lo:
                        less = np.exp(top[h] - shift)
                        total[h] *= less
                        for c in range((y + h) * wide, (y + h + 1) * wide):
                            out[c] *= less
                        for c in range((y + h) * features, (y + h + 1) * features):
                            z[c] *= less
                    top[h] = most
                    for x in range(count):
                        p[x * heads + h] -= shift
                exponentials(p, count * heads)
                for x in range(count):
                    other = (entry * m + col[begin + x]) * heads
                    f = entry * steps[1] + (begin + x) * features
                    for h in range(heads):
                        w = p[x * heads + h]
                        total[h] += w
                        for c in range(0, wide, len(value_lanes)):
                            add(out, (y + h) * wide + c, w, v, (other + h) * wide + c, value_lanes)
                        for c in range(features):
                            z[(y + h) * features + c] += w * feature[f + c]
            for h in range(heads):
                if total[h] == 0:
                    lse[y + h] = -np.inf
                else:
                    lse[y + h] = top[h] + np.log(total[h])
                    for c in range((y + h) * wide, (y + h + 1) * wide):
                        out[c] /= total[h]
                    for c in range((y + h) * features, (y + h + 1) * features):
                        z[c] /= total[h]


@compiled
def weights(
    p, lo, count, by_source, kind, scale, slope, sizes, steps, entry, row, col, places, placed, a, b, vector, u, feature,
    bias, biased, lse, share, more, lanes,
):
    """p[x, h] = the weight of the edges lo … lo + count of a row, from the targets' log-sum-exps."""
    n, m, edges, heads, width, wide, features, slots, batch = sizes
    for x in range(count):
        i, j, e = row, col[lo + x], lo + x
        if e + AHEAD < edges:  # what stands at the far ends; what is read of them besides comes with it
            far = (entry * (n if by_source else m) + col[e + AHEAD]) * heads
            if by_source:
                ahead(a, far * width, heads * width, LINE)
                prefetch(lse, far)
                prefetch(share, far)
            else:
                ahead(b, far * width, heads * width, LINE)
            ahead(more, far * wide, heads * wide, LINE)
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
    n, m, edges, heads, width, wide, features, slots, batch = sizes
    scale, slope, whole, narrow = numbers
    count_of_items, placed, biased = rows[4], rows[3] != 0, given[5] != 0
    items, start, places = pointer(rows[0], whole), pointer(rows[1], whole), pointer(rows[3], whole)
    col = pointer(rows[2], narrow)
    a, b, vector, u = pointer(given[0], scale), pointer(given[1], scale), pointer(given[2], scale), pointer(given[3], scale)
    feature, bias, v = pointer(given[4], scale), pointer(given[5], scale), pointer(given[6], scale)
    p = pointer(work, scale)
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
    n, m, edges, heads, width, wide, features, slots, batch = sizes
    scale, slope, whole, narrow = numbers
    count_of_items, placed, biased = rows[4], rows[3] != 0, given[5] != 0
    items, start, places = pointer(rows[0], whole), pointer(rows[1], whole), pointer(rows[3], whole)
    col = pointer(rows[2], narrow)
    a, b, vector, u = pointer(given[0], scale), pointer(given[1], scale), pointer(given[2], scale), pointer(given[3], scale)
    feature, bias, v = pointer(given[4], scale), pointer(given[5], scale), pointer(given[6], scale)
    p = pointer(work, scale)
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
def join(sizes, scale, long, long_rows, parts, made):
    """The rows that were cut, from their pieces: weighed by their log-sum-exps."""
    n, m, edges, heads, width, wide, features, slots, batch = sizes
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
