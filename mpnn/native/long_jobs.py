"""Correlations of long sequences as jobs of compiled code: ``ROW`` channels of some batch entries are transformed,
multiplied by their kernel's spectrum, and transformed back, in memory that the cache holds where it can.

A job's number counts blocks of channels, and within each the chunks of batch entries. Tensors come as addresses with
their steps. Importing this module imports numba.
"""

from __future__ import annotations

from mpnn.native.butterflies import LANES, ROW
from mpnn.native.fourier import forward, inverse, product
from mpnn.native.vec import called, load, pointer, store

_WIDE = (0,) * LANES
_LINE = 16  # rows that are read together where a channel's numbers lie side by side


@called
def _collect(w, begin, count, x, at, row, lane, known):
    """Rows ``begin`` on of w from x, some channels known, the others zero."""
    if known == ROW and lane == 1:
        for i in range(count):
            store(w, (begin + i) * ROW, load(x, at + i * row, _WIDE))
            store(w, (begin + i) * ROW + LANES, load(x, at + i * row + LANES, _WIDE))
        return
    for first in range(0, count, _LINE):
        for c in range(ROW):
            for i in range(first, min(first + _LINE, count)):
                w[(begin + i) * ROW + c] = x[at + i * row + c * lane] if c < known else 0


@called
def _spread(x, at, row, lane, known, w, begin, count):
    """The way back."""
    if known == ROW and lane == 1:
        for i in range(count):
            store(x, at + i * row, load(w, (begin + i) * ROW, _WIDE))
            store(x, at + i * row + LANES, load(w, (begin + i) * ROW + LANES, _WIDE))
        return
    for first in range(0, count, _LINE):
        for c in range(known):
            for i in range(first, min(first + _LINE, count)):
                x[at + i * row + c * lane] = w[(begin + i) * ROW + c]


@called
def _clear(w, begin, end):
    for i in range(begin * ROW, end * ROW):
        w[i] = 0


@called
def _read(w, begin, count, x, at, row, lane, known, length, table):
    """The spectrum of some rows that begin at ``begin``, the others zero."""
    most = length // 3 * 2 if length % 3 == 0 else length // 2
    half = begin + count <= most
    _clear(w, 0, begin)
    _collect(w, begin, count, x, at, row, lane, known)
    _clear(w, begin + count, most if half else length)
    forward(w, length, table, half)


@called
def _back(w, end, length, table):
    """From frequencies to the samples before ``end``."""
    inverse(w, length, table, end <= (length // 3 * 2 if length % 3 == 0 else length // 2))


@called
def correlate(first, last, one, sizes, x_steps, k_steps, y_steps, given, table, work):
    """y of x and the kernel k, whose last tap comes first: outputs ``begin`` to ``begin + count`` of their convolution.

    sizes: batch, entries of a chunk, channels, length, sources, taps, begin, count · steps: entry, row, channel.
    """
    batch, each, channels, length, sources, taps, begin, count = sizes
    x, k, y, factors = pointer(given[0], one), pointer(given[1], one), pointer(given[2], one), pointer(table, one)
    w, v = pointer(work[0], one), pointer(work[1], one)
    chunks = (batch + each - 1) // each
    for job in range(first, last):
        c, start = job // chunks * ROW, job % chunks * each
        known = min(ROW, channels - c)
        end = (taps - 1) * k_steps[1]
        _read(v, 0, taps, k, c * k_steps[2] + end, -k_steps[1], k_steps[2], known, length, factors)
        for b in range(start, min(start + each, batch)):
            at = b * x_steps[0] + c * x_steps[2]
            _read(w, 0, sources, x, at, x_steps[1], x_steps[2], known, length, factors)
            product(w, w, v, length, one / (4 * length), (), ())
            _back(w, begin + count, length, factors)
            at = b * y_steps[0] + c * y_steps[2]
            _spread(y, at, y_steps[1], y_steps[2], known, w, begin, count)


@called
def gradients(first, last, one, sizes, x_steps, k_steps, g_steps, d_x_steps, d_k_steps, given, made, table, work):
    """The gradients of x, and of k for each chunk; an address of 0 wants none."""
    batch, each, channels, length, sources, taps, begin, count = sizes
    x, k, g, factors = pointer(given[0], one), pointer(given[1], one), pointer(given[2], one), pointer(table, one)
    d_x, d_k = pointer(made[0], one), pointer(made[1], one)
    w, v, u, total = (
        pointer(work[0], one),
        pointer(work[1], one),
        pointer(work[2], one),
        pointer(work[3], one),
    )
    chunks = (batch + each - 1) // each
    scale = one / (4 * length)
    for job in range(first, last):
        c, start = job // chunks * ROW, job % chunks * each
        known = min(ROW, channels - c)
        if made[0] != 0:
            end = (taps - 1) * k_steps[1]
            _read(v, 0, taps, k, c * k_steps[2] + end, -k_steps[1], k_steps[2], known, length, factors)
        if made[1] != 0:
            _clear(total, 0, length)
        for b in range(start, min(start + each, batch)):
            at = b * g_steps[0] + c * g_steps[2]
            _read(w, begin, count, g, at, g_steps[1], g_steps[2], known, length, factors)
            if made[1] != 0:
                at = b * x_steps[0] + c * x_steps[2]
                _read(u, 0, sources, x, at, x_steps[1], x_steps[2], known, length, factors)
                product(total, w, u, length, scale, (0,), (0,))
            if made[0] != 0:
                product(w, w, v, length, scale, (0,), ())
                _back(w, sources, length, factors)
                at = b * d_x_steps[0] + c * d_x_steps[2]
                _spread(d_x, at, d_x_steps[1], d_x_steps[2], known, w, 0, sources)
        if made[1] != 0:
            _back(total, taps, length, factors)
            at = job % chunks * d_k_steps[0] + c * d_k_steps[2] + (taps - 1) * d_k_steps[1]
            _spread(d_k, at, -d_k_steps[1], d_k_steps[2], known, total, 0, taps)
