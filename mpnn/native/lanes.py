"""Vectors of several numbers at a time in numba functions.

numba's own loops over a few channels stay scalar. What is made of vectors here stays in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from mpnn.native.compiled import FLAGS, types


class Lanes(types.Type):
    """Several numbers of one type, as one value."""

    def __init__(self, dtype: Any, count: int) -> None:
        self.dtype, self.count = dtype, count
        super().__init__(name=f"Lanes({dtype}, {count})")


@register_model(Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, ir.VectorType(manager.lookup(kind.dtype).get_value_type(), kind.count))


def _place(builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """A pointer to numbers as one to a vector."""
    return builder.bitcast(builder.gep(array, [index]), kind.as_pointer())


def splatted(builder: Any, number: Any, count: int) -> Any:
    """One number in every lane."""
    vector = ir.VectorType(number.type, count)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.IntType(32)(0))
    return builder.shuffle_vector(one, one, picked([0] * count))


def picked(places: list[int]) -> Any:
    """The constant of a shuffle."""
    return ir.Constant(ir.VectorType(ir.IntType(32), len(places)), places)


def same(kind: Any, number: float) -> Any:
    """The constant vector of a number."""
    return ir.Constant(kind, [ir.Constant(kind.element, number)] * kind.count)


def _totals(builder: Any, u: Any, v: Any, groups: int) -> Any:
    """u, v of some groups of lanes → the groups of both, each of half as many: the sums of their halves."""
    count = u.type.count
    each = count // groups
    low = [g * each + x for g in range(2 * groups) for x in range(each // 2)]
    high = [place + each // 2 for place in low]
    halves = (builder.shuffle_vector(u, v, picked(places)) for places in (low, high))
    return builder.fadd(*halves, flags=FLAGS)


@intrinsic
def load(typing: Any, x: Any, i: Any, lanes: Any) -> Any:
    """x[i : i + n] for as many lanes n as ``lanes`` has entries."""
    kind = Lanes(x.dtype, len(lanes))

    def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = _place(builder, context.get_value_type(kind), args[0], args[1])
        return builder.load(place, align=x.dtype.bitwidth // 8)

    return kind(x, types.intp, lanes), make


@intrinsic
def store(typing: Any, x: Any, i: Any, v: Any) -> Any:
    """x[i : i + n] = v."""

    def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[2], _place(builder, args[2].type, args[0], args[1]), align=x.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(x, types.intp, v), make


@intrinsic
def splat(typing: Any, x: Any, number: Any, lanes: Any) -> Any:
    """A number in every lane, of the type of x's."""
    kind = Lanes(x.dtype, len(lanes))

    def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return splatted(builder, context.cast(builder, args[1], number, x.dtype), len(lanes))

    return kind(x, number, lanes), make


def _two(operation: Callable[[Any, Any, Any], Any]) -> Any:
    """What joins two vectors of a kind to a third."""

    @intrinsic
    def of(typing: Any, v: Any, w: Any) -> Any:
        def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return operation(builder, *args)

        return v(v, w), make

    return of


def _more(builder: Any, v: Any, w: Any) -> Any:
    return builder.select(builder.fcmp_unordered(">", v, w), v, w)


def _less(builder: Any, v: Any, w: Any) -> Any:
    none = same(v.type, float("-inf"))
    return builder.select(builder.fcmp_ordered("==", w, none), none, builder.fsub(v, w, flags=FLAGS))


plus = _two(lambda builder, v, w: builder.fadd(v, w, flags=FLAGS))
minus = _two(lambda builder, v, w: builder.fsub(v, w, flags=FLAGS))
times = _two(lambda builder, v, w: builder.fmul(v, w, flags=FLAGS))
more = _two(_more)  # the larger, w of equals; v where either is no number, so that one in w alone is let go
less = _two(_less)  # v - w, and -inf where w is -inf


@intrinsic
def bend(typing: Any, v: Any, slope: Any) -> Any:
    """The slope of leaky(v): 1 above 0; below, and at 0, ``slope``."""

    def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        above = builder.fcmp_ordered(">", args[0], same(args[0].type, 0.0))
        return builder.select(
            above, same(args[0].type, 1.0), splatted(builder, context.cast(builder, args[1], slope, v.dtype), v.count)
        )

    return v(v, slope), make


@intrinsic
def leaky(typing: Any, v: Any, slope: Any) -> Any:
    """leaky(v); what a mask removes stays -inf for every slope."""

    def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        x = args[0]
        bent = builder.fmul(x, splatted(builder, context.cast(builder, args[1], slope, v.dtype), v.count), flags=FLAGS)
        as_it_is = builder.or_(
            builder.fcmp_ordered(">", x, same(x.type, 0.0)), builder.fcmp_ordered("==", x, same(x.type, float("-inf")))
        )
        return builder.select(as_it_is, x, bent)

    return v(v, slope), make


@intrinsic
def total(typing: Any, v: Any) -> Any:
    """The sum of a vector's numbers."""

    def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        number = args[0].type.element
        name = f"llvm.vector.reduce.fadd.v{v.count}f{32 if number == ir.FloatType() else 64}"
        kind = ir.FunctionType(number, [number, args[0].type])
        reduce = cgutils.get_or_insert_function(builder.module, kind, name)
        return builder.call(reduce, [ir.Constant(number, 0.0), args[0]], fastmath=FLAGS)

    return v.dtype(v), make


@intrinsic
def totals(typing: Any, s: Any, t: Any, u: Any, v: Any) -> Any:
    """The sums of four vectors of at least four numbers: fewer steps than one by one."""

    def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        one, other = (_totals(builder, args[k], args[k + 1], 1) for k in (0, 2))
        four = _totals(builder, one, other, 2)
        while four.type.count > 4:
            each = four.type.count // 4
            low = [g * each + x for g in range(4) for x in range(each // 2)]
            halves = (builder.shuffle_vector(four, four, picked([p + k for p in low])) for k in (0, each // 2))
            four = builder.fadd(*halves, flags=FLAGS)
        return four

    return Lanes(s.dtype, 4)(s, t, u, v), make
