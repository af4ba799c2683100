"""Correlations of long sequences as jobs of compiled code: ``LANES`` channels of some batch entries are transformed,
multiplied by their kernel's spectrum, and transformed back, in memory that the cache holds where it can.

A job's number counts blocks of channels, and within each the chunks of batch entries. Tensors come as addresses with
their steps; a buffer holds sample by sample the channels of a job, two samples a row. Importing this module imports
numba.
"""

from __future__ import annotations

from functools import cache

from mpnn.native.butterflies import LANES
from mpnn.native.compiled import compiled, entry, outlined, pointer, several, taken
from mpnn.native.fourier import forward, inverse, product
from mpnn.native.lanes import load, store
from mpnn.native.steps import next_jobs
from mpnn.native.threads import LEADING

_WIDE = (0,) * LANES
_SIZES, _THREE, _FIVE, _NINE, _FIFTEEN = ((0,) * n for n in (8, 3, 5, 9, 15))
_LINE = 16  # samples that are read together where a channel's numbers lie side by side


@outlined
def _collect(w, begin, count, x, at, row, lane, known):
    """Samples ``begin`` on of w from x, some channels known, the others zero."""
    if known == LANES and lane == 1:
        for i in range(count):
            store(w, (begin + i) * LANES, load(x, at + i * row, _WIDE))
        return
    for first in range(0, count, _LINE):
        for c in range(LANES):
            for i in range(first, min(first + _LINE, count)):
                w[(begin + i) * LANES + c] = x[at + i * row + c * lane] if c < known else 0


@outlined
def _spread(x, at, row, lane, known, w, begin, count):
    """The way back."""
    if known == LANES and lane == 1:
        for i in range(count):
            store(x, at + i * row, load(w, (begin + i) * LANES, _WIDE))
        return
    for first in range(0, count, _LINE):
        for c in range(known):
            for i in range(first, min(first + _LINE, count)):
                x[at + i * row + c * lane] = w[(begin + i) * LANES + c]


@outlined
def _clear(w, begin, end):
    for i in range(begin * LANES, end * LANES):
        w[i] = 0


@compiled
def _most(length):
    """The samples that a transform of half its rows, or of two thirds of them, may have."""
    return 2 * (length // 3 * 2 if length % 3 == 0 else length // 2)


@outlined
def _read(w, begin, count, x, at, row, lane, known, length, table):
    """The spectrum, of so many rows, of some samples that begin at ``begin``, the others zero."""
    half = begin + count <= _most(length)
    _clear(w, 0, begin)
    _collect(w, begin, count, x, at, row, lane, known)
    _clear(w, begin + count, _most(length) if half else 2 * length)
    forward(w, length, table, half)


@outlined
def _back(w, end, length, table):
    """From frequencies to the samples before ``end``."""
    inverse(w, length, table, end <= _most(length))


@cache
def correlate(number):
    """y of x and the kernel k, whose last tap comes first: outputs ``begin`` to ``begin + count`` of their convolution.

    Reads batch, entries of a chunk, channels, length, sources, taps, begin, count; of x, k and y the address and the
    steps of entry, row and channel; the address of the factors.
    """
    zero = number(0)

    def correlate(address):
        block = pointer(address, 0)
        batch, each, channels, length, sources, taps, begin, count = several(block, LEADING, _SIZES)
        given, steps = several(block, LEADING + 8, _THREE), several(block, LEADING + 11, _NINE)
        x, k, y, factors = (pointer(given[0], zero), pointer(given[1], zero), pointer(given[2], zero),
                            pointer(block[LEADING + 20], zero))  # fmt: skip
        work = block[4] + taken(block, 1) * block[5]
        w, v = pointer(work, zero), pointer(work + block[5] // 2, zero)
        chunks = (batch + each - 1) // each
        job, last = next_jobs(address)
        while job < last:
            c, start = job // chunks * LANES, job % chunks * each
            known = min(LANES, channels - c)
            at = c * steps[5] + (taps - 1) * steps[4]
            _read(v, 0, taps, k, at, -steps[4], steps[5], known, length, factors)
            for b in range(start, min(start + each, batch)):
                at = b * steps[0] + c * steps[2]
                _read(w, 0, sources, x, at, steps[1], steps[2], known, length, factors)
                product(w, w, v, length, factors, number(1) / (4 * length), (), ())
                _back(w, begin + count, length, factors)
                _spread(y, b * steps[6] + c * steps[8], steps[7], steps[8], known, w, begin, count)
            job += 1
            if job == last:
                job, last = next_jobs(address)

    return entry(correlate, number)


@cache
def gradients(number):
    """The gradients of x, and of k for each chunk. Reads the sizes of :func:`correlate`; of x, k, the outputs' gradient
    and the two made the address, 0 for one that is not wanted, and the steps; the address of the factors."""
    zero = number(0)

    def gradients(address):
        block = pointer(address, 0)
        batch, each, channels, length, sources, taps, begin, count = several(block, LEADING, _SIZES)
        given, steps = several(block, LEADING + 8, _FIVE), several(block, LEADING + 13, _FIFTEEN)
        x, k, g = pointer(given[0], zero), pointer(given[1], zero), pointer(given[2], zero)
        d_x, d_k, factors = pointer(given[3], zero), pointer(given[4], zero), pointer(block[LEADING + 28], zero)
        work, part = block[4] + taken(block, 1) * block[5], block[5] // 4
        w, v = pointer(work, zero), pointer(work + part, zero)
        u, total = pointer(work + 2 * part, zero), pointer(work + 3 * part, zero)
        chunks = (batch + each - 1) // each
        scale = number(1) / (4 * length)
        job, last = next_jobs(address)
        while job < last:
            c, start = job // chunks * LANES, job % chunks * each
            known = min(LANES, channels - c)
            if given[3] != 0:
                at = c * steps[5] + (taps - 1) * steps[4]
                _read(v, 0, taps, k, at, -steps[4], steps[5], known, length, factors)
            if given[4] != 0:
                _clear(total, 0, 2 * length)
            for b in range(start, min(start + each, batch)):
                at = b * steps[6] + c * steps[8]
                _read(w, begin, count, g, at, steps[7], steps[8], known, length, factors)
                if given[4] != 0:
                    at = b * steps[0] + c * steps[2]
                    _read(u, 0, sources, x, at, steps[1], steps[2], known, length, factors)
                    product(total, w, u, length, factors, scale, (0,), (0,))
                if given[3] != 0:
                    product(w, w, v, length, factors, scale, (0,), ())
                    _back(w, sources, length, factors)
                    _spread(d_x, b * steps[9] + c * steps[11], steps[10], steps[11], known, w, 0, sources)
            if given[4] != 0:
                _back(total, taps, length, factors)
                at = job % chunks * steps[12] + c * steps[14] + (taps - 1) * steps[13]
                _spread(d_k, at, -steps[13], steps[14], known, total, 0, taps)
            job += 1
            if job == last:
                job, last = next_jobs(address)

    return entry(gradients, number)
