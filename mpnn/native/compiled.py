"""Functions that numba compiles, and numbers at addresses for them.

numba's arrays count their owners in every inner call: a pointer has none. Importing this module imports numba.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

types: Any = numba.types
# sums may be taken in any order; inf and NaN keep their meaning
FLAGS = ("reassoc", "contract", "nsz", "arcp")
_SOURCES = hashlib.sha256(b"".join(p.read_bytes() for p in sorted(Path(__file__).parent.glob("*.py")))).hexdigest()[:12]


def _known(function: Callable) -> Callable:
    """The function with these sources in its name: what numba keeps on disk it finds by that and by the function's own
    file, and it would not see that another file has changed."""
    function.__qualname__ += f"_{_SOURCES}"
    return function


def compiled(function: Callable, inline: bool = True) -> Any:
    """numba's function, kept on disk where that can be written."""
    _known(function)
    options: dict[str, Any] = {"nogil": True, "fastmath": set(FLAGS), "error_model": "numpy"}
    if inline:
        options["forceinline"] = True
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no place for a cache
        return numba.njit(**options)(function)


def outlined(function: Callable) -> Any:
    """The same for a function so long that it is called where it is used, and not compiled anew at each place."""
    return compiled(function, inline=False)


def entry(function: Callable, *fixed: Any) -> Any:
    """A C function of one address from numba's, kept like :func:`compiled`; ``fixed``: what its closure holds.

    All of them have one signature: what tells them apart, also among those that other processes kept, is their names.
    """
    words = "_".join(str(len(x) if isinstance(x, tuple) else getattr(x, "__name__", x)) for x in fixed)
    function.__name__ = function.__qualname__ = f"{function.__name__}_{words}"
    _known(function)
    kind, options = types.void(types.intp), {"fastmath": set(FLAGS), "error_model": "numpy"}
    try:
        return numba.cfunc(kind, cache=True, **options)(function)
    except RuntimeError:
        return numba.cfunc(kind, **options)(function)


@intrinsic
def pointer(typing: Any, address: Any, kind: Any) -> Any:
    """The numbers at an address, of the type of ``kind``: unlike an array it has no owner to be counted."""

    def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(kind).as_pointer())

    return types.CPointer(kind)(types.intp, kind), make


@intrinsic
def several(typing: Any, x: Any, i: Any, lanes: Any) -> Any:
    """The tuple of x[i], x[i + 1], … of as many entries as ``lanes`` has."""
    kind = types.UniTuple(x.dtype, len(lanes))

    def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        places = (builder.add(args[1], ir.Constant(args[1].type, k)) for k in range(len(lanes)))
        return context.make_tuple(builder, kind, [builder.load(builder.gep(args[0], [place])) for place in places])

    return kind(x, types.intp, lanes), make


@intrinsic
def taken(typing: Any, x: Any, i: Any) -> Any:
    """x[i], which becomes one more, whichever thread asks."""

    def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = builder.gep(args[0], [args[1]])
        return builder.atomic_rmw("add", place, ir.Constant(place.type.pointee, 1), "monotonic")

    return x.dtype(x, types.intp), make


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
