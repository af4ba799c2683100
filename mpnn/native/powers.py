"""Exponentials and logarithms of many numbers at once, in numba functions.

A library's exp and log take one number at a time; the polynomials here, in float32, sixteen. Their buffers hold whole
vectors: up to fifteen numbers behind the last are overwritten.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic, overload

from mpnn.native.compiled import types
from mpnn.native.lanes import load, same, store

FLAT = (0,) * 16
_FEW, _TOP = -87.3, 88.0  # exp below is 0 in float32, and above not needed
_LOG2E, _HIGH, _LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
# Cephes' polynomials
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_LOG = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
        2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)  # fmt: skip


class _Numbers:
    """Arithmetic of float32 vectors in the order in which it is written, which is its precision."""

    def __init__(self, builder: Any, kind: Any) -> None:
        self.builder, self.kind = builder, kind
        self.whole = ir.VectorType(ir.IntType(32), kind.count)

    def constant(self, number: float) -> Any:
        return same(self.kind, float(np.float32(number)))

    def whole_constant(self, number: int) -> Any:
        return ir.Constant(self.whole, [number] * self.kind.count)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        """x · y + z, rounded once where the processor can."""
        return self.builder.fadd(self.builder.fmul(x, y, flags=("contract",)), z, flags=("contract",))

    def horner(self, coefficients: tuple[float, ...], x: Any) -> Any:
        y = self.constant(coefficients[0])
        for c in coefficients[1:]:
            y = self.fma(y, x, self.constant(c))
        return y

    def floor(self, x: Any) -> Any:
        kind = ir.FunctionType(self.kind, [self.kind])
        call = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.floor.v{self.kind.count}f32")
        return self.builder.call(call, [x])


@intrinsic
def _exp(typing: Any, v: Any) -> Any:
    """exp of float32 numbers: 2ⁿ exp(r), |r| ≤ log(2)/2."""

    def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        x, of = args[0], _Numbers(builder, args[0].type)
        few, top = of.constant(_FEW), of.constant(_TOP)
        low = builder.fcmp_ordered("<", x, few)
        known = builder.select(builder.fcmp_unordered("<", few, x), x, few)  # NaN stays
        inside = builder.select(builder.fcmp_ordered("<", x, top), builder.select(low, few, x), top)
        n = of.floor(of.fma(inside, of.constant(_LOG2E), of.constant(0.5)))
        r = of.fma(n, of.constant(-_LOW), of.fma(n, of.constant(-_HIGH), known))
        p = of.fma(builder.fmul(of.horner(_EXP, r), r), r, builder.fadd(r, of.constant(1.0)))
        power = builder.shl(builder.add(builder.fptosi(n, of.whole), of.whole_constant(127)), of.whole_constant(23))
        y = builder.fmul(p, builder.bitcast(power, of.kind))
        return builder.select(low, of.constant(0.0), y)

    return v(v), make


@intrinsic
def _log(typing: Any, v: Any) -> Any:
    """log of positive normal float32 numbers, of inf and of NaN: n log(2) + log(m), √½ ≤ m < √2."""

    def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        x, of = args[0], _Numbers(builder, args[0].type)
        # bits above those of √½ are the exponent, what is left of them are those of m
        bits = builder.sub(builder.bitcast(x, of.whole), of.whole_constant(0x3F3504F3))
        n = builder.ashr(bits, of.whole_constant(23))
        kept = builder.and_(bits, of.whole_constant(0x007FFFFF))
        m = builder.bitcast(builder.add(kept, of.whole_constant(0x3F3504F3)), of.kind)
        n, r = builder.sitofp(n, of.kind), builder.fsub(m, of.constant(1.0))
        square = builder.fmul(r, r)
        p = builder.fmul(builder.fmul(of.horner(_LOG, r), r), square)
        p = of.fma(n, of.constant(_LOW), p)
        p = of.fma(square, of.constant(-0.5), p)
        y = of.fma(n, of.constant(_HIGH), builder.fadd(r, p))
        return builder.select(builder.fcmp_ordered("<", x, of.constant(float("inf"))), y, x)

    return v(v), make


def exponentials(x: Any, count: int) -> None:
    """x[:count] = exp(x[:count]) for numbers that are not above 0 by much."""


def logarithms(x: Any, count: int) -> None:
    """x[:count] = log(x[:count]) for numbers of at least 1."""


def _each(vectors: Any, one: Any) -> Any:
    def choose(x, count):
        if x.dtype != types.float32:

            def plain(x, count):
                for i in range(count):
                    x[i] = one(x[i])

            return plain

        def fast(x, count):
            for i in range(0, count, 16):
                store(x, i, vectors(load(x, i, FLAT)))

        return fast

    return choose


_OPTIONS: dict[str, Any] = {"error_model": "numpy"}
overload(exponentials, jit_options=_OPTIONS)(_each(_exp, math.exp))
overload(logarithms, jit_options=_OPTIONS)(_each(_log, math.log))
