"""Attention over compressed rows as a numba function: one pass, no tensor over edges.

A job is some whole rows, or a piece of one long row, whose parts are joined afterwards. Tensors come as addresses; the
row of a token holds its heads side by side. ``kind`` says what a score is:

    PRODUCT   scale · (a_i·b_j + u_i·f_ij) + bias_ij     queries and keys; features f of edges, u = Wᵀq
    SUM       leaky(a_i + b_j + bias_ij)                 GAT: one number a head
    KINKED    vector · leaky(a_i + b_j) + bias_ij        GATv2

Each row's log-sum-exp is kept, from which ``mpnn.native.backward`` makes the weights again.
"""

from __future__ import annotations

import numpy as np

from mpnn.native.jobs import BLOCK, PRODUCT, SUM
from mpnn.native.lanes import add, compiled, dot, exponentials, kinked, pointer, prefetch

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
def opened(scale, given, work):
    """The inputs and the space for weights, as numbers at addresses."""
    a, b, vector, u = (
        pointer(given[0], scale),
        pointer(given[1], scale),
        pointer(given[2], scale),
        pointer(given[3], scale),
    )
    return (
        a,
        b,
        vector,
        u,
        pointer(given[4], scale),
        pointer(given[5], scale),
        pointer(given[6], scale),
        pointer(work, scale),
    )


@compiled
def opened_rows(numbers, rows):
    """Jobs, starts of rows, far ends, and places in the rows' order of the transpose's edges."""
    _, _, whole, narrow = numbers
    return pointer(rows[0], whole), pointer(rows[1], whole), pointer(rows[2], narrow), pointer(rows[3], whole)


@compiled
def ahead(x, i, size):
    """Ask for x[i : i + size]."""
    for c in range(0, size, LINE):
        prefetch(x, i + c)


@compiled
def forward(first, last, kind, sizes, steps, numbers, rows, given, made, work, lanes, value_lanes):
    """Jobs first … last: each row's sum and log-sum-exp."""
    n, m, edges, heads, width, wide, features, slots, _batch = sizes
    scale, slope, _, _ = numbers
    count_of_items, biased = rows[4], given[5] != 0
    items, start, col, _ = opened_rows(numbers, rows)
    a, b, vector, u, feature, bias, v, p = opened(scale, given, work)
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
                        ahead(b, other * width, heads * width)
                        ahead(v, other * wide, heads * wide)
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
def join(sizes, scale, long, long_rows, parts, made):
    """The rows that were cut, from their pieces: weighed by their log-sum-exps."""
    n, _m, _edges, heads, _width, wide, features, slots, batch = sizes
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
