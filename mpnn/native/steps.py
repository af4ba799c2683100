"""What the passes over rows are made of, as numba functions: products of a row with its neighbours, and sums of them.

A row meets at most BLOCK edges at a time. What is computed of them and their heads stands in buffers of a thread, the
heads of an edge side by side. A row's own numbers, and what its neighbours add up to, stay in registers: loops go over
heads and channels first, and over edges within.
"""

from __future__ import annotations

from mpnn.native.compiled import compiled, pointer, prefetch, several, taken
from mpnn.native.jobs import BLOCK, PRODUCT, SUM
from mpnn.native.lanes import leaky, less, load, plus, splat, store, times, total, totals
from mpnn.native.threads import LEADING

PAIR, SIZES, STEPS, ROWS, GIVEN, OWN = ((0,) * n for n in (2, 10, 3, 5, 7, 13))
AHEAD, LINE = 12, 16  # edges whose rows are asked for in advance; float32 numbers of a cache line


@compiled
def room(heads):
    """Numbers of a buffer for the heads of a block's edges, with room for what whole vectors write behind them."""
    return BLOCK * heads + 16


@compiled
def next_jobs(address):
    """The first of the next jobs, and their end: not above it where none is left."""
    block = pointer(address, 0)
    first = taken(block, 0) * block[3]
    return first, min(first + block[3], block[2])


@compiled
def called(address, number, narrow):
    """What a pass is called with, as ``Rows`` wrote it: kind, sizes, steps, numbers, rows, inputs, and its own; with a
    space of the thread's own."""
    block, i = pointer(address, 0), LEADING
    work = block[4] + taken(block, 1) * block[5]
    scale, slope = several(pointer(address + 8 * i, 0.0), 0, PAIR)
    numbers = number(scale), number(slope), 0, narrow(0)
    sizes, steps, rows = several(block, i + 3, SIZES), several(block, i + 13, STEPS), several(block, i + 16, ROWS)
    return block[i + 2], sizes, steps, numbers, rows, several(block, i + 21, GIVEN), several(block, i + 28, OWN), work


@compiled
def opened(scale, given):
    """The inputs as numbers at addresses."""
    a, b, vector, u = (
        pointer(given[0], scale),
        pointer(given[1], scale),
        pointer(given[2], scale),
        pointer(given[3], scale),
    )
    return a, b, vector, u, pointer(given[4], scale), pointer(given[5], scale), pointer(given[6], scale)


@compiled
def opened_rows(numbers, rows):
    """Jobs, starts of rows, far ends, and places in the rows' order of the transpose's edges."""
    _, _, whole, narrow = numbers
    return pointer(rows[0], whole), pointer(rows[1], whole), pointer(rows[2], narrow), pointer(rows[3], whole)


@compiled
def ahead(x, lo, end, col, base, size):
    """Ask for the rows of x, each of ``size`` numbers, that edges lo … end will read."""
    for e in range(lo, end):
        row = (base + col[e]) * size
        for c in range(0, size, LINE):
            prefetch(x, row + c)


@compiled
def zero(x, first, last, lanes):
    """x[first:last] = 0, where their number is a multiple of the lanes."""
    nothing = splat(x, 0, lanes)
    for c in range(first, last, len(lanes)):
        store(x, c, nothing)


@compiled
def dots(p, count, heads, own, i, other, base, col, lo, width, lanes):
    """p[x, h] = own[i, h] · other[base + col[lo + x], h], each of ``width`` channels."""
    n, size = len(lanes), heads * width
    h = 0
    if n >= 4 and width == n:
        while h + 4 <= heads:
            k = h * width
            a0, a1 = load(own, i + k, lanes), load(own, i + k + n, lanes)
            a2, a3 = load(own, i + k + 2 * n, lanes), load(own, i + k + 3 * n, lanes)
            for x in range(count):
                j = (base + col[lo + x]) * size + k
                store(p, x * heads + h, totals(
                    times(a0, load(other, j, lanes)), times(a1, load(other, j + n, lanes)),
                    times(a2, load(other, j + 2 * n, lanes)), times(a3, load(other, j + 3 * n, lanes)),
                ))  # fmt: skip
            h += 4
    while h < heads:
        for x in range(count):
            j, sum_ = (base + col[lo + x]) * size + h * width, splat(own, 0, lanes)
            for c in range(0, width, n):
                sum_ = plus(sum_, times(load(own, i + h * width + c, lanes), load(other, j + c, lanes)))
            p[x * heads + h] = total(sum_)
        h += 1


@compiled
def kinked(p, count, heads, vector, k, own, i, other, base, col, lo, width, slope, lanes):
    """p[x, h] = vector[k, h] · leaky(own[i, h] + other[base + col[lo + x], h])."""
    size = heads * width
    for h in range(heads):
        for x in range(count):
            j, sum_ = (base + col[lo + x]) * size + h * width, splat(own, 0, lanes)
            for c in range(0, width, len(lanes)):
                met = plus(load(own, i + h * width + c, lanes), load(other, j + c, lanes))
                sum_ = plus(sum_, times(load(vector, k + h * width + c, lanes), leaky(met, slope)))
            p[x * heads + h] = total(sum_)


@compiled
def gather(y, o, p, count, heads, other, base, col, lo, width, lanes):
    """y[o, h] += Σ_x p[x, h] · other[base + col[lo + x], h], each of ``width`` channels."""
    n, size = len(lanes), heads * width
    h = 0
    if width == n:
        while h + 4 <= heads:
            k = o + h * width
            s0, s1, s2, s3 = (
                load(y, k, lanes),
                load(y, k + n, lanes),
                load(y, k + 2 * n, lanes),
                load(y, k + 3 * n, lanes),
            )
            for x in range(count):
                j, w = (base + col[lo + x]) * size + h * width, x * heads + h
                s0 = plus(s0, times(splat(p, p[w], lanes), load(other, j, lanes)))
                s1 = plus(s1, times(splat(p, p[w + 1], lanes), load(other, j + n, lanes)))
                s2 = plus(s2, times(splat(p, p[w + 2], lanes), load(other, j + 2 * n, lanes)))
                s3 = plus(s3, times(splat(p, p[w + 3], lanes), load(other, j + 3 * n, lanes)))
            store(y, k, s0)
            store(y, k + n, s1)
            store(y, k + 2 * n, s2)
            store(y, k + 3 * n, s3)
            h += 4
    while h < heads:
        for c in range(h * width, (h + 1) * width, n):
            sum_ = load(y, o + c, lanes)
            for x in range(count):
                j = (base + col[lo + x]) * size + c
                sum_ = plus(sum_, times(splat(p, p[x * heads + h], lanes), load(other, j, lanes)))
            store(y, o + c, sum_)
        h += 1


@compiled
def scores(
    p, lo, count, by_source, kind, numbers, sizes, steps, entry, row, col, places, placed, given, biased, lanes,
    head_lanes,
):  # fmt: skip
    """p[x, h] = the score of the edges lo … lo + count of a row; of SUM what its leaky is taken of."""
    n, m, _edges, heads, width, _wide, features, _slots, _batch, _near = sizes
    scale, slope, _, _ = numbers
    a, b, vector, u, feature, bias, _ = opened(scale, given)
    own, other, here, there = a, b, n, m
    if by_source:
        own, other, here, there = b, a, m, n
    i, base = (entry * here + row) * heads * width, entry * there
    if kind == SUM:
        for x in range(count):
            j = (base + col[lo + x]) * heads
            for h in range(0, heads, len(head_lanes)):
                store(p, x * heads + h, plus(load(own, i + h, head_lanes), load(other, j + h, head_lanes)))
    elif kind == PRODUCT:
        dots(p, count, heads, own, i, other, base, col, lo, width, lanes)
        for x in range(count if features else 0):
            e = places[lo + x] if placed else lo + x
            target = col[lo + x] if by_source else row
            k, f = (entry * n + target) * heads * features, entry * steps[1] + e * features
            for h in range(heads):
                more = scale * 0
                for c in range(features):
                    more += u[k + h * features + c] * feature[f + c]
                p[x * heads + h] += more
        for x in range(count * heads):
            p[x] *= scale
    else:
        kinked(p, count, heads, vector, entry * steps[0], own, i, other, base, col, lo, width, slope, lanes)
    for x in range(count if biased else 0):
        e = entry * steps[2] + (places[lo + x] if placed else lo + x) * heads
        for h in range(heads):
            p[x * heads + h] += bias[e + h]


@compiled
def weights(p, raw, count, heads, kind, lse, base, col, lo, fixed, slope, head_lanes):
    """p[x, h] = score - log-sum-exp of its target: of ``fixed``, or where that is negative of col[lo + x].

    Of SUM the scores before leaky are kept in ``raw``."""
    for h in range(0, heads, len(head_lanes)):
        own = load(lse, max(fixed, 0) * heads + h, head_lanes)
        for x in range(count):
            s = load(p, x * heads + h, head_lanes)
            if kind == SUM:
                store(raw, x * heads + h, s)
                s = leaky(s, slope)
            all_ = own if fixed >= 0 else load(lse, (base + col[lo + x]) * heads + h, head_lanes)
            store(p, x * heads + h, less(s, all_))
