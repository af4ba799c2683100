"""The passes of graph attention in Triton: forward by rows, backward by rows and by columns.

A program has one line, a row of the compressed rows or a piece of a long one, and one head. It walks the line's edges
some at a time, so that nothing is kept for edges, and it writes what belongs to its own line only, so that nothing is
added atomically and repeats are equal to the last bit. Pieces of long rows are put together by a second pass: a hub
would otherwise keep one program busy long after all others are done. Scores and sums are float32. This module needs
Triton: only the kernel that runs it imports it.

    forward   out_i = Σ_j p_ij v_j,  lse_i = log Σ_j exp(s_ij),  p_ij = exp(s_ij - lse_i),  s_ij = scale q_i·k_j + b_ij
    rows      ∂q_i = scale Σ_j d_ij k_j,                 d_ij = p_ij (g_i·v_j - δ_i),  δ_i = g_i·out_i
    columns   ∂k_j = scale Σ_i d_ij q_i,  ∂v_j = Σ_i p_ij g_i

``owner`` is a line's row, ``slot`` its place in ``side`` (-1: it is a whole row), ``start`` and ``stop`` its edges.
Addresses are 64-bit. ``*_b, *_h, *_n`` are strides of a batch entry, a head and a token; the last axis has stride 1.
"""

# mypy: disable-error-code="no-untyped-def"
# Triton reads annotations: those of numbers known when it compiles, and no others.
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def forward(
    query, key, value, owner, start, stop, slot, column, bias, out, lse, side, side_lse, scale, lines, pieces, targets,
    heads, width, value_width, q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, o_b, o_h, o_n, bias_b, bias_h,
    BIASED: tl.constexpr, SPLIT: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """Online softmax over the edges of one line."""
    program = tl.program_id(0).to(tl.int64)
    h = program % heads  # heads of one row side by side: they read the same edges
    line = program // heads % lines
    b = program // heads // lines
    if SPLIT:
        row = tl.load(owner + line).to(tl.int64)
    else:
        row = line
    channel, value_channel = tl.arange(0, D), tl.arange(0, DV)
    inside, value_inside = channel < width, value_channel < value_width
    q = tl.load(query + b * q_b + h * q_h + row * q_n + channel, mask=inside, other=0.0).to(tl.float32) * scale
    keys, values = key + b * k_b + h * k_h, value + b * v_b + h * v_h
    first, last = tl.load(start + line).to(tl.int64), tl.load(stop + line).to(tl.int64)
    largest, total = tl.full((), float("-inf"), tl.float32), tl.full((), 0.0, tl.float32)
    kept = tl.zeros((DV,), tl.float32)
    for begin in range(first, last, EDGES):
        edge = begin + tl.arange(0, EDGES)
        live = edge < last
        j = tl.load(column + edge, mask=live, other=0).to(tl.int64)
        k = tl.load(keys + j[:, None] * k_n + channel[None, :], mask=live[:, None] & inside[None, :], other=0.0)
        s = tl.sum(k.to(tl.float32) * q[None, :], 1)
        if BIASED:
            s += tl.load(bias + b * bias_b + h * bias_h + edge, mask=live, other=0.0)
        s = tl.where(live, s, float("-inf"))
        now = tl.maximum(largest, tl.max(s, 0))
        at = tl.where(now == float("-inf"), 0.0, now)  # every edge so far is masked
        p, shrink = tl.exp(s - at), tl.exp(largest - at)
        v = tl.load(
            values + j[:, None] * v_n + value_channel[None, :], mask=live[:, None] & value_inside[None, :], other=0.0
        )
        kept = kept * shrink + tl.sum(p[:, None] * v.to(tl.float32), 0)
        total = total * shrink + tl.sum(p, 0)
        largest = now
    some = total > 0
    kept = kept / tl.where(some, total, 1.0)
    found = tl.where(some, largest + tl.log(tl.where(some, total, 1.0)), float("-inf"))
    if SPLIT:
        at_side = tl.load(slot + line).to(tl.int64)
        spot = (b * heads + h) * pieces + at_side
        whole = value_channel * 0 + at_side < 0  # one answer, in the shape of the masks
        tl.store(side + spot * value_width + value_channel, kept, mask=value_inside & ~whole)
        tl.store(side_lse + spot, found, mask=at_side >= 0)
        value_inside = value_inside & whole
        tl.store(lse + (b * heads + h) * targets + row, found, mask=at_side < 0)
    else:
        tl.store(lse + (b * heads + h) * targets + row, found)
    tl.store(out + b * o_b + h * o_h + row * o_n + value_channel, kept.to(out.dtype.element_ty), mask=value_inside)


@triton.jit
def rows(
    query, key, value, grad, owner, start, stop, slot, column, bias, lse, delta, query_grad, side, scale, lines, pieces,
    targets, heads, width, value_width, q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, g_b, g_h, g_n, o_b, o_h, o_n,
    bias_b, bias_h,
    BIASED: tl.constexpr, SPLIT: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """The gradient of one target's query from one line, its weights recomputed."""
    program = tl.program_id(0).to(tl.int64)
    h = program % heads
    line = program // heads % lines
    b = program // heads // lines
    if SPLIT:
        row = tl.load(owner + line).to(tl.int64)
    else:
        row = line
    channel, value_channel = tl.arange(0, D), tl.arange(0, DV)
    inside, value_inside = channel < width, value_channel < value_width
    q = tl.load(query + b * q_b + h * q_h + row * q_n + channel, mask=inside, other=0.0).to(tl.float32) * scale
    g = tl.load(grad + b * g_b + h * g_h + row * g_n + value_channel, mask=value_inside, other=0.0).to(tl.float32)
    place = (b * heads + h) * targets + row
    joint, d_i = tl.load(lse + place), tl.load(delta + place)
    joint = tl.where(joint == float("-inf"), 0.0, joint)
    keys, values = key + b * k_b + h * k_h, value + b * v_b + h * v_h
    first, last = tl.load(start + line).to(tl.int64), tl.load(stop + line).to(tl.int64)
    kept = tl.zeros((D,), tl.float32)
    for begin in range(first, last, EDGES):
        edge = begin + tl.arange(0, EDGES)
        live = edge < last
        j = tl.load(column + edge, mask=live, other=0).to(tl.int64)
        k = tl.load(keys + j[:, None] * k_n + channel[None, :], mask=live[:, None] & inside[None, :], other=0.0)
        k = k.to(tl.float32)
        v = tl.load(
            values + j[:, None] * v_n + value_channel[None, :], mask=live[:, None] & value_inside[None, :], other=0.0
        )
        s = tl.sum(k * q[None, :], 1)
        if BIASED:
            s += tl.load(bias + b * bias_b + h * bias_h + edge, mask=live, other=0.0)
        p = tl.exp(tl.where(live, s - joint, float("-inf")))
        d = p * (tl.sum(v.to(tl.float32) * g[None, :], 1) - d_i)
        kept += tl.sum(d[:, None] * k, 0)
    kept *= scale
    if SPLIT:
        at_side = tl.load(slot + line).to(tl.int64)
        spot = (b * heads + h) * pieces + at_side
        whole = channel * 0 + at_side < 0
        tl.store(side + spot * width + channel, kept, mask=inside & ~whole)
        inside = inside & whole
    tl.store(query_grad + b * o_b + h * o_h + row * o_n + channel, kept.to(query_grad.dtype.element_ty), mask=inside)


@triton.jit
def columns(
    query, key, value, grad, owner, start, stop, slot, column, place, bias, lse, delta, key_grad, value_grad, key_side,
    value_side, scale, lines, pieces, targets, heads, width, value_width,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, g_b, g_h, g_n, ok_b, ok_h, ok_n,
    ov_b, ov_h, ov_n, bias_b, bias_h,
    BIASED: tl.constexpr, SPLIT: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """The gradients of one source's key and value over the transposed rows; ``place`` finds an edge among the rows."""
    program = tl.program_id(0).to(tl.int64)
    h = program % heads
    line = program // heads % lines
    b = program // heads // lines
    if SPLIT:
        j = tl.load(owner + line).to(tl.int64)
    else:
        j = line
    channel, value_channel = tl.arange(0, D), tl.arange(0, DV)
    inside, value_inside = channel < width, value_channel < value_width
    k = tl.load(key + b * k_b + h * k_h + j * k_n + channel, mask=inside, other=0.0).to(tl.float32) * scale
    v = tl.load(value + b * v_b + h * v_h + j * v_n + value_channel, mask=value_inside, other=0.0).to(tl.float32)
    queries, grads, sums = query + b * q_b + h * q_h, grad + b * g_b + h * g_h, (b * heads + h) * targets
    first, last = tl.load(start + line).to(tl.int64), tl.load(stop + line).to(tl.int64)
    for_key, for_value = tl.zeros((D,), tl.float32), tl.zeros((DV,), tl.float32)
    for begin in range(first, last, EDGES):
        edge = begin + tl.arange(0, EDGES)
        live = edge < last
        i = tl.load(column + edge, mask=live, other=0).to(tl.int64)
        q = tl.load(queries + i[:, None] * q_n + channel[None, :], mask=live[:, None] & inside[None, :], other=0.0)
        q = q.to(tl.float32)
        g = tl.load(
            grads + i[:, None] * g_n + value_channel[None, :], mask=live[:, None] & value_inside[None, :], other=0.0
        ).to(tl.float32)
        joint = tl.load(lse + sums + i, mask=live, other=0.0)
        joint = tl.where(joint == float("-inf"), 0.0, joint)
        s = tl.sum(q * k[None, :], 1)
        if BIASED:
            at = tl.load(place + edge, mask=live, other=0).to(tl.int64)
            s += tl.load(bias + b * bias_b + h * bias_h + at, mask=live, other=0.0)
        p = tl.exp(tl.where(live, s - joint, float("-inf")))
        d = p * (tl.sum(g * v[None, :], 1) - tl.load(delta + sums + i, mask=live, other=0.0))
        for_key += tl.sum(d[:, None] * q, 0)
        for_value += tl.sum(p[:, None] * g, 0)
    for_key *= scale
    if SPLIT:
        at_side = tl.load(slot + line).to(tl.int64)
        spot = (b * heads + h) * pieces + at_side
        whole, value_whole = channel * 0 + at_side < 0, value_channel * 0 + at_side < 0
        tl.store(key_side + spot * width + channel, for_key, mask=inside & ~whole)
        tl.store(value_side + spot * value_width + value_channel, for_value, mask=value_inside & ~value_whole)
        inside, value_inside = inside & whole, value_inside & value_whole
    tl.store(key_grad + b * ok_b + h * ok_h + j * ok_n + channel, for_key.to(key_grad.dtype.element_ty), mask=inside)
    tl.store(
        value_grad + b * ov_b + h * ov_h + j * ov_n + value_channel,
        for_value.to(value_grad.dtype.element_ty),
        mask=value_inside,
    )
