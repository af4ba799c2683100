"""Products of a row with its neighbours' rows, and sums of these, as numba functions.

A row's own numbers, and what its neighbours add up to, stay in registers: loops go over heads and channels first, and
over edges within. Where a vector is a head, four heads are met at a time.
"""

from __future__ import annotations

from mpnn.native.compiled import compiled
from mpnn.native.lanes import bend, leaky, load, plus, splat, store, times, total, totals


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
def bends(y, o, d_vector, k, q, count, heads, vector, h0, own, i, other, base, col, lo, width, slope, lanes):
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
