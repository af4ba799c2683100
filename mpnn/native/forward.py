"""Attention over compressed rows as a numba function: one pass, no tensor over edges.

A job is some whole rows, or a piece of one long row, whose parts are joined afterwards. Tensors come as addresses; the
row of a token holds its heads side by side. ``kind`` says what a score is:

    PRODUCT   scale · (a_i·b_j + u_i·f_ij) + bias_ij     queries and keys; features f of edges, u = Wᵀq
    SUM       leaky(a_i + b_j + bias_ij)                 GAT: one number a head
    KINKED    vector · leaky(a_i + b_j) + bias_ij        GATv2

Each row's log-sum-exp is kept, from which ``by_target`` and ``by_source`` make the weights again.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from mpnn.native.compiled import compiled, entry, pointer
from mpnn.native.jobs import BLOCK, PRODUCT, SUM
from mpnn.native.lanes import load, more, splat, store, times
from mpnn.native.powers import exponentials, logarithms
from mpnn.native.products import dots, gather, kinked
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
def forward(kind, number, narrow, lanes, value_lanes, head_lanes):
    """The pass for one kind of scores, numbers of these types and vectors of these lengths."""
    zero, first_place = number(0), narrow(0)

    def forward(address):
        sizes, steps, numbers, graph, items_, inputs, has_bias, _, own, work = called(address, zero, first_place)
        n, m, edges, heads, width, wide, features, slots, near = sizes
        (scale, slope), (items, start, col, places), (a, b, vector, u, feature, bias, v) = numbers, graph, inputs
        p = pointer(work, zero)
        top = pointer(work + 8 * room(heads), zero)  # the largest scores, and what is taken from all
        total = pointer(work + 8 * (room(heads) + 2 * heads), zero)
        job, last = next_jobs(address)
        while job < last:
            batch, item = divmod(job, items_)
            slot = items[item * 5 + 4]
            away = 3 if slot >= 0 else 0
            out, z, lse = pointer(own[away], zero), pointer(own[1 + away], zero), pointer(own[2 + away], zero)
            for row in range(items[item * 5], items[item * 5 + 1]):
                lo, hi = start[row], start[row + 1]
                if slot >= 0:
                    lo, hi = items[item * 5 + 2], items[item * 5 + 3]
                y = (batch * slots + slot if slot >= 0 else batch * n + row) * heads
                i, far = batch * n + row, batch * m
                for h in range(heads):
                    top[h], total[h] = -np.inf, 0
                cleared(out, y * wide, (y + heads) * wide, value_lanes)
                for c in range(y * features, (y + heads) * features):
                    z[c] = 0
                for begin in range(lo, hi, BLOCK):
                    count = min(BLOCK, hi - begin)
                    if not near:
                        one, end = min(begin + AHEAD, edges), min(begin + count + AHEAD, edges)
                        ahead(b, one, end, col, far, heads * width)
                        ahead(v, one, end, col, far, heads * wide)
                    if kind == SUM:
                        added(p, count, heads, (a, i * heads), b, far, col, begin, head_lanes)
                    elif kind == PRODUCT:
                        dots(p, count, heads, a, i * heads * width, b, far, col, begin, width, lanes)
                        featured(p, count, heads, u, i, far, col, begin, feature, batch * steps[1], places, features)
                        scaled(p, count * heads, scale)
                    else:
                        kinked(
                            p, count, heads, vector, batch * steps[0], a, i * heads * width, b, far, col, begin, width,
                            slope, lanes,
                        )  # fmt: skip
                    if has_bias:
                        biased(p, count, heads, bias, batch * steps[2], begin, places, False)
                    if kind == SUM:
                        bent(p, p, count * heads, slope)
                    for h in range(0, heads, len(head_lanes)):
                        most = load(top, h, head_lanes)
                        for x in range(count):
                            most = more(load(p, x * heads + h, head_lanes), most)
                        store(top, heads + h, most)
                    for h in range(heads):
                        most_ = top[heads + h]
                        shift = most_ if most_ > -np.inf or most_ != most_ else zero
                        if begin > lo:
                            less = np.exp(top[h] - shift)
                            total[h] *= less
                            for c in range((y + h) * wide, (y + h + 1) * wide):
                                out[c] *= less
                            for c in range((y + h) * features, (y + h + 1) * features):
                                z[c] *= less
                        top[h], top[heads + h] = most_, shift
                    # row 1 of ``top`` is its second half: what is taken from all
                    lowered(p, count, heads, top, 1, 0, col, begin, head_lanes)
                    exponentials(p, count * heads)
                    sums(total, 0, p, count, heads, head_lanes)
                    gather(out, y * wide, p, count, heads, v, far, col, begin, wide, value_lanes)
                    for x in range(count if features else 0):
                        f = (batch * steps[1] + begin + x) * features
                        for h in range(heads):
                            for c in range(features):
                                z[(y + h) * features + c] += p[x * heads + h] * feature[f + c]
                for h in range(heads):
                    if total[h] > 0 or total[h] != total[h]:
                        part = number(1) / total[h]
                        for c in range((y + h) * wide, (y + h + 1) * wide, len(value_lanes)):
                            store(out, c, times(load(out, c, value_lanes), splat(p, part, value_lanes)))
                        for c in range((y + h) * features, (y + h + 1) * features):
                            z[c] *= part
                logarithms(total, heads)
                for h in range(heads):
                    lse[y + h] = top[h] + total[h]
            job += 1
            if job == last:
                job, last = next_jobs(address)

    return entry(forward, kind, number, narrow, lanes, value_lanes, head_lanes)


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
