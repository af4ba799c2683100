"""What the passes over rows are made of, as numba functions: how they are called, and steps over scores.

A row meets at most BLOCK edges at a time. What is computed of them and their heads stands in buffers of a thread, the
heads of an edge side by side.
"""

from __future__ import annotations

from mpnn.native.compiled import compiled, pointer, prefetch, several, taken
from mpnn.native.jobs import BLOCK
from mpnn.native.lanes import leaky, less, load, plus, splat, store, times
from mpnn.native.powers import FLAT
from mpnn.native.threads import LEADING

PAIR, SIZES, STEPS, ROWS, GIVEN, OWN = ((0,) * n for n in (2, 9, 3, 5, 7, 13))
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
def called(address, zero, narrow):
    """What a pass is called with, as ``mpnn.native.calls`` wrote it: sizes, steps, (scale, slope), items, starts of
    rows, far ends, places, how many items, inputs, addresses of its own, and space of the thread's own."""
    block, i = pointer(address, 0), LEADING
    work = block[4] + taken(block, 1) * block[5]
    numbers = several(pointer(address + 8 * i, 0.0), 0, PAIR)
    sizes, steps, rows = several(block, i + 2, SIZES), several(block, i + 11, STEPS), several(block, i + 14, ROWS)
    given, own = several(block, i + 19, GIVEN), several(block, i + 26, OWN)
    a, b, vector, u = pointer(given[0], zero), pointer(given[1], zero), pointer(given[2], zero), pointer(given[3], zero)
    inputs = a, b, vector, u, pointer(given[4], zero), pointer(given[5], zero), pointer(given[6], zero)
    jobs = pointer(rows[0], 0), pointer(rows[1], 0), pointer(rows[2], narrow), pointer(rows[3], 0)
    return sizes, steps, numbers, jobs, rows[4], inputs, given[5] != 0, rows[3] != 0, own, work


@compiled
def ahead(x, lo, end, col, base, size):
    """Ask for the rows of x, each of ``size`` numbers, that edges lo … end will read."""
    for e in range(lo, end):
        row = (base + col[e]) * size
        for c in range(0, size, LINE):
            prefetch(x, row + c)


@compiled
def cleared(x, first, last, lanes):
    """x[first:last] = 0, where their number is a multiple of the lanes."""
    nothing = splat(x, 0, lanes)
    for c in range(first, last, len(lanes)):
        store(x, c, nothing)


@compiled
def sums(y, o, p, count, heads, head_lanes):
    """y[o, h] += Σ_x p[x, h]."""
    for h in range(0, heads, len(head_lanes)):
        all_ = load(y, o + h, head_lanes)
        for x in range(count):
            all_ = plus(all_, load(p, x * heads + h, head_lanes))
        store(y, o + h, all_)


@compiled
def lowered(p, count, heads, y, row, base, col, lo, head_lanes):
    """p[x, h] -= y[row, h]; -inf where that is -inf. Where ``row`` is negative it is base + col[lo + x]."""
    for h in range(0, heads, len(head_lanes)):
        own = load(y, max(row, 0) * heads + h, head_lanes)
        for x in range(count):
            by = own if row >= 0 else load(y, (base + col[lo + x]) * heads + h, head_lanes)
            store(p, x * heads + h, less(load(p, x * heads + h, head_lanes), by))


@compiled
def added(p, count, heads, own, other, base, col, lo, head_lanes):
    """p[x, h] = own[h] + other[base + col[lo + x], h]; ``own`` is a place of its first number."""
    for h in range(0, heads, len(head_lanes)):
        mine = load(own[0], own[1] + h, head_lanes)
        for x in range(count):
            store(p, x * heads + h, plus(mine, load(other, (base + col[lo + x]) * heads + h, head_lanes)))


@compiled
def featured(p, count, heads, y, row, base, col, lo, feature, f, places, features):
    """p[x, h] += y[row, h] · feature[f + edge]. Where ``row`` is negative it is base + col[lo + x], and the edges'
    places are in ``places``; else they are lo + x."""
    for x in range(count if features else 0):
        k = (row if row >= 0 else base + col[lo + x]) * heads
        e = (f + (lo + x if row >= 0 else places[lo + x])) * features
        for h in range(heads):
            for c in range(features):
                p[x * heads + h] += y[(k + h) * features + c] * feature[e + c]


@compiled
def biased(p, count, heads, bias, first, lo, places, placed):
    """p[x, h] += bias[first + edge, h]."""
    for x in range(count):
        e = (first + (places[lo + x] if placed else lo + x)) * heads
        for h in range(heads):
            p[x * heads + h] += bias[e + h]


@compiled
def scaled(p, count, scale):
    """p · scale."""
    for x in range(0, count, len(FLAT)):
        store(p, x, times(load(p, x, FLAT), splat(p, scale, FLAT)))


@compiled
def bent(p, raw, count, slope):
    """p = leaky(p), which ``raw`` holds as it was."""
    for x in range(0, count, len(FLAT)):
        s = load(p, x, FLAT)
        store(raw, x, s)
        store(p, x, leaky(s, slope))
