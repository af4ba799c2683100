"""Fourier transforms of rows, and products of their spectra, in compiled code.

Lengths, in rows, are 2^a or 3 · 2^a. Frequencies come in the order in which the steps leave them, and go back from it:
a spectrum is never sorted. Blocks that fit the cache are finished one after the other. Importing this module imports
numba.
"""

from __future__ import annotations

import functools

import numpy as np

from mpnn.native.butterflies import ROW, join3, join4, multiply, split2, split3, split4, split4_half
from mpnn.native.compiled import compiled, outlined

SHORTEST = 16
_CACHE = 1 << 12  # rows


def length_for(rows: int) -> int:
    """The shortest length that a transform may have for so many rows."""
    power = max(SHORTEST, 1 << (max(1, rows) - 1).bit_length())
    return power // 4 * 3 if rows <= power // 4 * 3 and power // 4 >= SHORTEST else power


@functools.lru_cache(64)
def factors(length: int, double: bool) -> np.ndarray:
    """The roots of unity by which steps multiply, those of the smallest step first, of the step by three last; then the
    delay by a row at each frequency, in the order of the frequencies."""
    power = length // 3 if length % 3 == 0 else length
    size, made = (8 if power.bit_length() % 2 == 0 else 16), [np.zeros(2)]
    while size <= power:
        made.append(_roots(size, np.arange(size // 4)[:, None] * np.arange(1, 4)))
        size *= 4
    if power < length:
        made.append(_roots(length, np.arange(power)[:, None] * np.arange(1, 3)))
    made.append(_roots(length, _order(length)))
    return np.concatenate(made).astype(np.float64 if double else np.float32)


def _roots(size: int, power: np.ndarray) -> np.ndarray:
    angle = -2 * np.pi / size * power
    return np.stack([np.cos(angle), np.sin(angle)], -1).reshape(-1)


def _order(length: int) -> np.ndarray:
    """The frequencies in the order in which the steps leave them."""
    if length == 1:
        return np.zeros(1, dtype=np.int64)
    radix = 3 if length % 3 == 0 else 4 if length % 4 == 0 else 2
    inside = _order(length // radix) * radix
    return np.concatenate([inside + k for k in range(radix)])


@compiled
def _is_odd(power):
    """Whether a power of two is no power of four."""
    return power & 0x2AAAAAAAAAAAAAAA != 0


@compiled
def _place(power, size):
    """Where the factors of steps of this size begin."""
    return 2 + (size - (8 if _is_odd(power) else 16)) // 2


@outlined
def forward(w, length, table, half):
    """Samples to frequencies, in place; ``half``: the last two quarters, or the last third, count as zero."""
    power, zeros = length, half
    if length % 3 == 0:
        power, zeros = length // 3, False
        at = _place(power, 4 * power)
        for i in range(power):
            if half:
                split3(w, i * ROW, power * ROW, table, at + 4 * i, (0,))
            else:
                split3(w, i * ROW, power * ROW, table, at + 4 * i, ())
    for part in range(0, length, power):
        size = power
        while size > _CACHE:
            _split(w, part, power, size, table, _place(power, size), zeros)
            size, zeros = size // 4, False
        for block in range(part, part + power, size):
            step, first = size, zeros
            while step > 2:
                _split(w, block, size, step, table, _place(power, step), first)
                step, first = step // 4, False
            if step == 2:
                for i in range(block, block + size, 2):
                    split2(w, i * ROW, ROW)


@outlined
def _split(w, begin, count, size, table, at, half):
    """One step over so many rows, blocks of ``size`` of them at a time."""
    quarter = size // 4
    for block in range(begin, begin + count, size):
        if size == 4:
            split4(w, block * ROW, ROW, table, 0, ())
        elif half:
            for i in range(quarter):
                split4_half(w, (block + i) * ROW, quarter * ROW, table, at + 6 * i)
        else:
            for i in range(quarter):
                split4(w, (block + i) * ROW, quarter * ROW, table, at + 6 * i, (0,))


@outlined
def inverse(w, length, table, half):
    """Frequencies to samples times the length, in place; ``half``: but the last two quarters, or third."""
    power = length // 3 if length % 3 == 0 else length
    inside = power
    while inside > _CACHE:
        inside //= 4
    for part in range(0, length, power):
        for block in range(part, part + power, inside):
            size = 4
            if _is_odd(power):
                size = 8
                for i in range(block, block + inside, 2):
                    split2(w, i * ROW, ROW)
            while size <= inside:
                _join(w, block, inside, size, table, _place(power, size), half and size == length)
                size *= 4
        size = 4 * inside
        while size <= power:
            _join(w, part, power, size, table, _place(power, size), half and size == length)
            size *= 4
    if power < length:
        at = _place(power, 4 * power)
        for i in range(power):
            if half:
                join3(w, i * ROW, power * ROW, table, at + 4 * i, (0,))
            else:
                join3(w, i * ROW, power * ROW, table, at + 4 * i, ())


@outlined
def _join(w, begin, count, size, table, at, half):
    """One step back."""
    quarter = size // 4
    for block in range(begin, begin + count, size):
        if size == 4:
            join4(w, block * ROW, ROW, table, 0, (), ())
        elif half:
            for i in range(quarter):
                join4(w, (block + i) * ROW, quarter * ROW, table, at + 6 * i, (0,), (0,))
        else:
            for i in range(quarter):
                join4(w, (block + i) * ROW, quarter * ROW, table, at + 6 * i, (0,), ())


@outlined
def product(y, z, k, length, table, scale, conjugate, added):
    """The product of two spectra, see ``multiply``. Negative frequencies lie mirrored in the blocks of steps."""
    power = length // 3 if length % 3 == 0 else length
    turns, size = _place(power, 4 * power) + (4 * power if power < length else 0), power
    for i in range(power if power < length else 0):
        here, there = power + i, length - 1 - i
        multiply(y, z, k, here * ROW, there * ROW, table, turns + 2 * here, scale, conjugate, added)
    multiply(y, z, k, 0, 0, table, turns, scale, conjugate, added)
    while size > 1:
        quarter = size // 4
        if size == 2:
            multiply(y, z, k, ROW, ROW, table, turns + 2, scale, conjugate, added)
        for i in range(quarter):
            here, there = quarter + i, size - 1 - i
            multiply(y, z, k, here * ROW, there * ROW, table, turns + 2 * here, scale, conjugate, added)
        for i in range((quarter + 1) // 2):
            here, there = 2 * quarter + i, 3 * quarter - 1 - i
            multiply(y, z, k, here * ROW, there * ROW, table, turns + 2 * here, scale, conjugate, added)
        size = quarter
