"""Vectors of several numbers at a time in numba functions, and numbers at addresses.

numba's own loops over a few channels stay scalar, and its arrays count their owners in every inner call: a pointer has
none. Importing this module imports numba.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic, overload

types: Any = numba.types
# sums may be taken in any order; inf and NaN keep their meaning
FLAGS = ("reassoc", "contract", "nsz", "arcp")
_FEW = -87.3  # exp below is 0 in float32


def compiled(function: Callable) -> Any:
    """numba's function, kept on disk where that can be written."""
    options = {"nogil": True, "forceinline": True, "fastmath": set(FLAGS), "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no place for a cache
        return numba.njit(**options)(function)


def _lanes(context: Any, builder: Any, kind: Any, array: Any, index: Any, count: int) -> Any:
    """A pointer to ``count`` numbers as one vector."""
    vector = ir.VectorType(context.get_value_type(kind.dtype), count)
    return builder.bitcast(builder.gep(array, [index]), vector.as_pointer())


@intrinsic
def pointer(typing: Any, address: Any, kind: Any) -> Any:
    """The numbers at an address, of the type of ``kind``: unlike an array it has no owner to be counted."""

    def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(kind).as_pointer())

    return types.CPointer(kind)(types.intp, kind), make


def _load(context: Any, builder: Any, kind: Any, array: Any, index: Any, count: int) -> Any:
    return builder.load(_lanes(context, builder, kind, array, index, count), align=kind.dtype.bitwidth // 8)


def _splat(builder: Any, number: Any, count: int) -> Any:
    vector = ir.VectorType(number.type, count)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.IntType(32)(0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(ir.IntType(32), count), [0] * count))


def _total(builder: Any, vector: Any) -> Any:
    number, count = vector.type.element, vector.type.count
    name = f"llvm.vector.reduce.fadd.v{count}f{32 if number == ir.FloatType() else 64}"
    kind = ir.FunctionType(number, [number, vector.type])
    reduce = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(reduce, [ir.Constant(number, 0.0), vector], fastmath=FLAGS)


def _leaky(builder: Any, x: Any, slope: Any, count: int) -> tuple[Any, Any]:
    """(leaky(x), its slope)."""
    one = ir.Constant(x.type, [ir.Constant(x.type.element, 1.0)] * count)
    zero = ir.Constant(x.type, [ir.Constant(x.type.element, 0.0)] * count)
    bend = builder.select(builder.fcmp_ordered(">", x, zero), one, _splat(builder, slope, count))
    return builder.fmul(x, bend, flags=FLAGS), bend


@intrinsic
def dot(typing: Any, a: Any, i: Any, b: Any, j: Any, lanes: Any) -> Any:
    """Σ a[i + x] · b[j + x] over as many x as ``lanes`` has entries, as one vector operation."""
    n = len(lanes)

    def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        x = _load(context, builder, a, args[0], args[1], n)
        y = _load(context, builder, b, args[2], args[3], n)
        return _total(builder, builder.fmul(x, y, flags=FLAGS))

    return a.dtype(a, types.intp, b, types.intp, lanes), make


@intrinsic
def add(typing: Any, y: Any, i: Any, factor: Any, x: Any, j: Any, lanes: Any) -> Any:
    """y[i + …] += factor · x[j + …]."""
    n = len(lanes)

    def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        more = builder.fmul(_splat(builder, args[2], n), _load(context, builder, x, args[3], args[4], n), flags=FLAGS)
        place = _lanes(context, builder, y, args[0], args[1], n)
        size = y.dtype.bitwidth // 8
        builder.store(builder.fadd(builder.load(place, align=size), more, flags=FLAGS), place, align=size)
        return context.get_dummy_value()

    return types.void(y, types.intp, y.dtype, x, types.intp, lanes), make


@intrinsic
def kinked(typing: Any, v: Any, h: Any, a: Any, i: Any, b: Any, j: Any, slope: Any, lanes: Any) -> Any:
    """Σ v[h + x] · leaky(a[i + x] + b[j + x])."""
    n = len(lanes)

    def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        x, y, z = (_load(context, builder, a, args[k], args[k + 1], n) for k in (0, 2, 4))
        bent, _ = _leaky(builder, builder.fadd(y, z, flags=FLAGS), args[6], n)
        return _total(builder, builder.fmul(x, bent, flags=FLAGS))

    return a.dtype(v, types.intp, a, types.intp, b, types.intp, a.dtype, lanes), make


@intrinsic
def add_bend(
    typing: Any, y: Any, o: Any, f: Any, v: Any, h: Any, a: Any, i: Any, b: Any, j: Any, slope: Any, lanes: Any
) -> Any:
    """y[o + …] += f · v[h + …] · leaky'(a[i + …] + b[j + …])."""
    n = len(lanes)

    def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        x, s, t = (_load(context, builder, a, args[k], args[k + 1], n) for k in (3, 5, 7))
        _, bend = _leaky(builder, builder.fadd(s, t, flags=FLAGS), args[9], n)
        more = builder.fmul(builder.fmul(_splat(builder, args[2], n), x, flags=FLAGS), bend, flags=FLAGS)
        place = _lanes(context, builder, y, args[0], args[1], n)
        size = y.dtype.bitwidth // 8
        builder.store(builder.fadd(builder.load(place, align=size), more, flags=FLAGS), place, align=size)
        return context.get_dummy_value()

    p = types.intp
    return types.void(y, p, y.dtype, v, p, a, p, b, p, y.dtype, lanes), make


@intrinsic
def add_leaky(typing: Any, y: Any, o: Any, f: Any, a: Any, i: Any, b: Any, j: Any, slope: Any, lanes: Any) -> Any:
    """y[o + …] += f · leaky(a[i + …] + b[j + …])."""
    n = len(lanes)

    def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        s, t = (_load(context, builder, a, args[k], args[k + 1], n) for k in (3, 5))
        bent, _ = _leaky(builder, builder.fadd(s, t, flags=FLAGS), args[7], n)
        more = builder.fmul(_splat(builder, args[2], n), bent, flags=FLAGS)
        place = _lanes(context, builder, y, args[0], args[1], n)
        size = y.dtype.bitwidth // 8
        builder.store(builder.fadd(builder.load(place, align=size), more, flags=FLAGS), place, align=size)
        return context.get_dummy_value()

    p = types.intp
    return types.void(y, p, y.dtype, a, p, b, p, y.dtype, lanes), make


@intrinsic
def prefetch(typing: Any, x: Any, i: Any) -> Any:
    """Ask for the cache line of x[i], which will be read soon."""

    def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = builder.bitcast(builder.gep(args[0], [args[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
        call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(call, [place, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(x, types.intp), make


@intrinsic
def _power(typing: Any, n: Any) -> Any:
    """2ⁿ in float32, for int32 n of a normal number."""

    def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        biased = builder.add(args[0], ir.IntType(32)(127))
        return builder.bitcast(builder.shl(biased, ir.IntType(32)(23)), ir.FloatType())

    return types.float32(types.int32), make


def exponentials(x: Any, count: int) -> None:
    """x[:count] = exp(x[:count]) for numbers that are not above 0 by much."""


@overload(exponentials, jit_options={"fastmath": {"contract"}, "error_model": "numpy"})  # its order is its precision
def _exponentials(x, count):
    if x.dtype != types.float32:

        def plain(x, count):
            for i in range(count):
                x[i] = math.exp(x[i])

        return plain
    # Cephes' polynomial, which the compiler can run on many numbers at once as it cannot a library's function
    few, log2e, high, low = (np.float32(c) for c in (_FEW, 1.44269504088896341, 0.693359375, -2.12194440e-4))
    c0, c1, c2, c3, c4, c5 = (
        np.float32(c)
        for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
    )
    one, half, zero, top = np.float32(1), np.float32(0.5), np.float32(0), np.float32(88)

    def fast(x, count):
        for i in range(count):
            y = x[i]
            inside = min(max(y, few), top) if y == y else zero
            n = np.floor(inside * log2e + half)
            r = (y if y > few else few) - n * high - n * low if y == y else y
            p = ((((c0 * r + c1) * r + c2) * r + c3) * r + c4) * r + c5
            p = (p * r * r + r + one) * _power(np.int32(n))
            x[i] = zero if y < few else p

    return fast
