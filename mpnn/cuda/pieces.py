"""Long rows from their pieces, in Triton: a program has one long row and one head, and walks its pieces in their order.

What the pieces found lies in ``side``, float32 (B, heads, pieces, width). Words and strides are those of
``mpnn.cuda.passes``; this module too needs Triton.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def join(
    side, side_lse, long, first_piece, out, lse, longs, pieces, targets, heads, value_width, o_b, o_h, o_n,
    DV: tl.constexpr,
):  # fmt: skip
    """One long row from its pieces, by their log-sum-exps."""
    program = tl.program_id(0).to(tl.int64)
    h = program % heads
    at = program // heads % longs
    b = program // heads // longs
    row = tl.load(long + at).to(tl.int64)
    first, last = tl.load(first_piece + at).to(tl.int64), tl.load(first_piece + at + 1).to(tl.int64)
    channel = tl.arange(0, DV)
    inside = channel < value_width
    largest, total = tl.full((), float("-inf"), tl.float32), tl.full((), 0.0, tl.float32)
    kept = tl.zeros((DV,), tl.float32)
    for piece in range(first, last):
        spot = (b * heads + h) * pieces + piece
        s = tl.load(side_lse + spot)
        now = tl.maximum(largest, s)
        safe = tl.where(now == float("-inf"), 0.0, now)
        p, shrink = tl.exp(s - safe), tl.exp(largest - safe)
        kept = kept * shrink + p * tl.load(side + spot * value_width + channel, mask=inside, other=0.0)
        total = total * shrink + p
        largest = now
    some = total > 0
    kept = kept / tl.where(some, total, 1.0)
    tl.store(out + b * o_b + h * o_h + row * o_n + channel, kept.to(out.dtype.element_ty), mask=inside)
    found = tl.where(some, largest + tl.log(tl.where(some, total, 1.0)), float("-inf"))
    tl.store(lse + (b * heads + h) * targets + row, found)


@triton.jit
def add(side, long, first_piece, out, longs, pieces, heads, width, o_b, o_h, o_n, D: tl.constexpr):
    """The gradient of one long row, summed over its pieces in their order."""
    program = tl.program_id(0).to(tl.int64)
    h = program % heads
    at = program // heads % longs
    b = program // heads // longs
    row = tl.load(long + at).to(tl.int64)
    first, last = tl.load(first_piece + at).to(tl.int64), tl.load(first_piece + at + 1).to(tl.int64)
    channel = tl.arange(0, D)
    inside = channel < width
    kept = tl.zeros((D,), tl.float32)
    for piece in range(first, last):
        spot = (b * heads + h) * pieces + piece
        kept += tl.load(side + spot * width + channel, mask=inside, other=0.0)
    tl.store(out + b * o_b + h * o_h + row * o_n + channel, kept.to(out.dtype.element_ty), mask=inside)
