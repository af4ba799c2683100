"""The backward of attention over compressed rows as numba functions: two passes, no tensor over edges.

The weights are made again from each row's log-sum-exp. By target a pass collects what belongs to targets and edges, by
source what belongs to sources, so that no two jobs write to the same place. Arguments are those of ``forward``.
"""

from __future__ import annotations

import numpy as np

from mpnn.native.jobs import BLOCK, PRODUCT, SUM
from mpnn.native.lanes import bend, compiled, load, plus, pointer, splat, store, times, total
from mpnn.native.powers import FLAT, exponentials
from mpnn.native.steps import AHEAD, ahead, dots, gather, opened, opened_rows, room, scores, weights, zero


@compiled
def _slopes(q, p, raw, count, kind, slope):
    """q = the gradients of the scores, of SUM before its leaky: weight · q."""
    for x in range(0, count, len(FLAT)):
        d = times(load(p, x, FLAT), load(q, x, FLAT))
        store(q, x, times(d, bend(load(raw, x, FLAT), slope)) if kind == SUM else d)


@compiled
def _scaled(q, count, scale):
    """q · scale."""
    for x in range(0, count, len(FLAT)):
        store(q, x, times(load(q, x, FLAT), splat(q, scale, FLAT)))


@compiled
def _sums(y, o, q, count, heads, head_lanes):
    """y[o, h] += Σ_x q[x, h]."""
    for h in range(0, heads, len(head_lanes)):
        all_ = load(y, o + h, head_lanes)
        for x in range(count):
            all_ = plus(all_, load(q, x * heads + h, head_lanes))
        store(y, o + h, all_)


@compiled
def _bends(y, o, d_vector, k, q, count, heads, vector, h0, own, i, other, base, col, lo, width, slope, lanes):
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
def by_target(first, last, kind, sizes, steps, numbers, rows, given, seen, made, work, lanes, value_lanes, head_lanes):
    """Jobs first … last of the rows by target: gradients of a, u, vector, features and bias, and each row's share."""
    n, m, edges, heads, width, wide, features, slots, _batch, near = sizes
    scale, slope, _, _ = numbers
    count_of_items, biased = rows[4], given[5] != 0
    items, start, col, places = opened_rows(numbers, rows)
    a, b, vector, u, feature, bias, v = opened(scale, given)
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
            own = (entry * n + row) * heads
            zero(d_a, y * width, (y + heads) * width, lanes)
            for c in range(y * features, (y + heads) * features):
                d_u[c] = 0
            for h in range(heads):
                common = splat(p, 0, value_lanes)
                for c in range((own + h) * wide, (own + h + 1) * wide, len(value_lanes)):
                    common = plus(common, times(load(grad, c, value_lanes), load(out, c, value_lanes)))
                common_ = total(common)
                for c in range((own + h) * features, (own + h + 1) * features):
                    common_ += grad_z[c] * z[c]
                share[own + h] = common_
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
                dots(q, count, heads, grad, own * wide, v, entry * m, col, begin, wide, value_lanes)
                for x in range(count if features else 0):
                    f = entry * steps[1] + (begin + x) * features
                    for h in range(heads):
                        for c in range(features):
                            q[x * heads + h] += grad_z[(own + h) * features + c] * feature[f + c]
                for x in range(count):
                    for h in range(0, heads, len(head_lanes)):
                        less = times(load(share, own + h, head_lanes), splat(p, -1, head_lanes))
                        store(q, x * heads + h, plus(load(q, x * heads + h, head_lanes), less))
                _slopes(q, p, raw, count * heads, kind, slope)
                if made[7]:
                    for x in range(count * heads):
                        d_bias[(entry * edges + begin) * heads + x] = q[x]
                if kind == SUM:
                    _sums(d_a, y, q, count, heads, head_lanes)
                elif kind == PRODUCT:
                    _scaled(q, count * heads, scale)
                    gather(d_a, y * width, q, count, heads, b, entry * m, col, begin, width, lanes)
                    for x in range(count if features else 0):
                        f, df = entry * steps[1] + (begin + x) * features, (entry * edges + begin + x) * features
                        for h in range(heads):
                            d, w = q[x * heads + h], p[x * heads + h]
                            for c in range(features):
                                d_u[(y + h) * features + c] += d * feature[f + c]
                            for c in range(features if made[6] else 0):
                                k = (own + h) * features + c
                                d_feature[df + c] += d * u[k] + w * grad_z[k]
                else:
                    _bends(
                        d_a, y * width, d_vector, job * heads * width, q, count, heads, vector, entry * steps[0], a,
                        own * width, b, entry * m, col, begin, width, slope, lanes,
                    )  # fmt: skip


@compiled
def by_source(first, last, kind, sizes, steps, numbers, rows, given, seen, made, work, lanes, value_lanes, head_lanes):
    """Jobs first … last of the rows by source: gradients of b and v."""
    n, m, edges, heads, width, wide, features, slots, _batch, near = sizes
    scale, slope, _, _ = numbers
    count_of_items, placed, biased = rows[4], rows[3] != 0, given[5] != 0
    items, start, col, places = opened_rows(numbers, rows)
    a, b, vector, u, feature, bias, v = opened(scale, given)
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
            own = (entry * m + row) * heads
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
                dots(q, count, heads, v, own * wide, grad, entry * n, col, begin, wide, value_lanes)
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
                _slopes(q, p, raw, count * heads, kind, slope)
                if kind == SUM:
                    _sums(d_b, y, q, count, heads, head_lanes)
                elif kind == PRODUCT:
                    _scaled(q, count * heads, scale)
                    gather(d_b, y * width, q, count, heads, a, entry * n, col, begin, width, lanes)
                else:
                    _bends(
                        d_b, y * width, d_b, -1, q, count, heads, vector, entry * steps[0], b, own * width, a,
                        entry * n, col, begin, width, slope, lanes,
                    )  # fmt: skip


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
