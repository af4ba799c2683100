"""Steps of Fourier transforms over rows of complex numbers, several channels at a time.

A row holds ``LANES`` real parts and then as many imaginary ones: two successive samples of as many channels, the second
as the imaginary part of the first, and each lane is the transform of one channel. So nothing is shuffled, all lanes
share their factors, and no channel has a part in another. Places count numbers, not rows. Importing this module imports
numba.
"""

from __future__ import annotations

import math

from mpnn.native.compiled import compiled
from mpnn.native.lanes import load, minus, plus, splat, store, times

LANES = 8
ROW = 2 * LANES
_WIDE = (0,) * LANES  # compiled code knows a tuple's length
_HALF, _SIDE = 0.5, math.sqrt(0.75)


@compiled
def row(w, place):
    """The row there: a real and an imaginary vector."""
    return load(w, place, _WIDE), load(w, place + LANES, _WIDE)


@compiled
def put(w, place, x):
    store(w, place, x[0])
    store(w, place + LANES, x[1])


@compiled
def _sum(x, y):
    return plus(x[0], y[0]), plus(x[1], y[1])


@compiled
def _difference(x, y):
    return minus(x[0], y[0]), minus(x[1], y[1])


@compiled
def _sum_turned(x, y):
    """x + i·y."""
    return minus(x[0], y[1]), plus(x[1], y[0])


@compiled
def _difference_turned(x, y):
    """x - i·y."""
    return plus(x[0], y[1]), minus(x[1], y[0])


@compiled
def _product(x, y):
    return minus(times(x[0], y[0]), times(x[1], y[1])), plus(times(x[0], y[1]), times(x[1], y[0]))


@compiled
def _product_conjugate(x, y):
    """x times the conjugate of y."""
    return plus(times(x[0], y[0]), times(x[1], y[1])), minus(times(x[1], y[0]), times(x[0], y[1]))


@compiled
def _factor(table, place):
    """The complex number there, for all lanes."""
    return splat(table, table[place], _WIDE), splat(table, table[place + 1], _WIDE)


@compiled
def _scaled(w, x, number):
    by = splat(w, number, _WIDE)
    return times(x[0], by), times(x[1], by)


@compiled
def split2(w, place, step):
    """Two rows to two frequencies."""
    a, b = row(w, place), row(w, place + step)
    put(w, place, _sum(a, b))
    put(w, place + step, _difference(a, b))


@compiled
def split4(w, place, step, table, at, turned):
    """Four rows to four frequencies; where ``turned`` is not empty, these are multiplied by the table's factors."""
    a, b, c, d = row(w, place), row(w, place + step), row(w, place + 2 * step), row(w, place + 3 * step)
    even, odd, total, side = _sum(a, c), _difference(a, c), _sum(b, d), _difference(b, d)
    x, y, z = _difference_turned(odd, side), _difference(even, total), _sum_turned(odd, side)
    put(w, place, _sum(even, total))
    _put_turned(w, place, step, table, at, turned, x, y, z)


@compiled
def split4_half(w, place, step, table, at):
    """:func:`split4` where the last two rows are zero, whatever stands there."""
    a, b = row(w, place), row(w, place + step)
    x, y, z = _difference_turned(a, b), _difference(a, b), _sum_turned(a, b)
    put(w, place, _sum(a, b))
    _put_turned(w, place, step, table, at, (0,), x, y, z)


@compiled
def _put_turned(w, place, step, table, at, turned, x, y, z):
    if len(turned):
        x, y, z = (
            _product(x, _factor(table, at)),
            _product(y, _factor(table, at + 2)),
            _product(z, _factor(table, at + 4)),
        )
    put(w, place + step, x)
    put(w, place + 2 * step, y)
    put(w, place + 3 * step, z)


@compiled
def join4(w, place, step, table, at, turned, half):
    """Back, times four; where ``half`` is not empty, the first two rows alone."""
    a, x, y, z = row(w, place), row(w, place + step), row(w, place + 2 * step), row(w, place + 3 * step)
    if len(turned):
        x, y, z = (
            _product_conjugate(x, _factor(table, at)),
            _product_conjugate(y, _factor(table, at + 2)),
            _product_conjugate(z, _factor(table, at + 4)),
        )
    even, odd, total, side = _sum(a, y), _difference(a, y), _sum(x, z), _difference(x, z)
    put(w, place, _sum(even, total))
    put(w, place + step, _sum_turned(odd, side))
    if len(half) == 0:
        put(w, place + 2 * step, _difference(even, total))
        put(w, place + 3 * step, _difference_turned(odd, side))


@compiled
def split3(w, place, step, table, at, half):
    """Three rows to three frequencies times the table's factors; where ``half`` is not empty, the last row is zero."""
    a, b = row(w, place), row(w, place + step)
    total, side = b, b
    if len(half) == 0:
        c = row(w, place + 2 * step)
        total, side = _sum(b, c), _difference(b, c)
    middle, side = _difference(a, _scaled(w, total, _HALF)), _scaled(w, side, _SIDE)
    put(w, place, _sum(a, total))
    put(w, place + step, _product(_difference_turned(middle, side), _factor(table, at)))
    put(w, place + 2 * step, _product(_sum_turned(middle, side), _factor(table, at + 2)))


@compiled
def join3(w, place, step, table, at, half):
    """Back, times three; where ``half`` is not empty, the first two rows alone."""
    a = row(w, place)
    b = _product_conjugate(row(w, place + step), _factor(table, at))
    c = _product_conjugate(row(w, place + 2 * step), _factor(table, at + 2))
    total, side = _sum(b, c), _scaled(w, _difference(b, c), _SIDE)
    middle = _difference(a, _scaled(w, total, _HALF))
    put(w, place, _sum(a, total))
    put(w, place + step, _sum_turned(middle, side))
    if len(half) == 0:
        put(w, place + 2 * step, _difference_turned(middle, side))


@compiled
def multiply(y, z, k, place, mirror, turns, at, scale, conjugate, added):
    """y := scale · z · k at a frequency and at its negative; where ``conjugate`` is not empty by the conjugate of k,
    where ``added`` is not empty onto y.

    With a and b the spectra of a channel's even and odd samples, c and d those of its kernel, and t a delay by two
    samples, even outputs have a·c + t·b·d and odd ones a·d + b·c; with the conjugate of k a·c̄ + b·d̄ and b·c̄ + t̄·a·d̄.
    """
    (a, b), (c, d), delay = _halves(z, place, mirror), _halves(k, place, mirror), _factor(turns, at)
    if len(conjugate):
        even = _sum(_product_conjugate(a, c), _product_conjugate(b, d))
        odd = _sum(_product_conjugate(b, c), _product_conjugate(_product_conjugate(a, d), delay))
    else:
        even = _sum(_product(a, c), _product(delay, _product(b, d)))
        odd = _sum(_product(a, d), _product(b, c))
    even, odd = _scaled(y, even, scale), _scaled(y, odd, scale)
    here = _sum_turned(even, odd)
    there = plus(even[0], odd[1]), minus(odd[0], even[1])  # conj(even) + i·conj(odd)
    if len(added):
        here, there = _sum(row(y, place), here), _sum(row(y, mirror), there)
    put(y, place, here)
    put(y, mirror, there)


@compiled
def _halves(w, place, mirror):
    """Twice the spectra of the even and of the odd samples whose joint spectrum this is: z + z̄' and i·(z̄' - z)."""
    x, y = row(w, place), row(w, mirror)
    return (plus(x[0], y[0]), minus(x[1], y[1])), (plus(x[1], y[1]), minus(y[0], x[0]))
