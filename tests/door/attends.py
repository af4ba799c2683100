"""Wrong calls of attend: the arguments, the error and what it says."""

from __future__ import annotations

from typing import Any

import torch

from door.layers import E, x
from mpnn.neighbours import KNN, AllTokens, Full, Graph, Grid, Radius, Window
from mpnn.positions import ALiBi

V, T, N = ValueError, TypeError, IndexError
Q, THREE, ALL = x(2, 5, 4), x(2, 3, 4), AllTokens()
TRUE = torch.ones(5, dtype=torch.bool)
GRAPH, NODES = Graph(E, 3), torch.zeros(5, dtype=torch.int64)
Wrong = tuple[tuple, dict[str, Any], type[Exception], str]

ATTENDS: list[Wrong] = [
    (([1.0], Q, Q, ALL), {}, T, r"q of shape \(..., heads, N, D\), floating point, got list"),
    ((Q, None, Q, ALL), {}, T, r"k of shape \(..., heads, N, D\), floating point, got NoneType"),
    ((x(5, 4), Q, Q, ALL), {}, V, r"q of shape \(..., heads, N, D\).*got \(5, 4\)"),
    ((Q, Q, x(4), ALL), {}, V, r"v of shape \(..., heads, N, D\).*got \(4,\)"),
    ((Q.long(), Q, Q, ALL), {}, (T, V), "q of shape .*floating point, got .*torch.int64"),
    ((Q, Q.double(), Q, ALL), {}, T, "q, k and v of one dtype, got torch.float32, torch.float64 and torch.float32"),
    ((Q, Q, Q.half(), ALL), {}, T, "q, k and v of one dtype, got torch.float32, torch.float32 and torch.float16"),
    ((Q, x(2, 5, 3), Q, ALL), {}, V, "q and k of the same width, got 4 and 3"),
    ((Q, Q, x(2, 6, 4), ALL), {}, V, r"k and v of the same heads and length, got \(2, 5, 4\) and \(2, 6, 4\)"),
    ((Q, Q, x(1, 5, 4), ALL), {}, V, r"k and v of the same heads and length, got \(2, 5, 4\) and \(1, 5, 4\)"),
    ((x(3, 5, 4), Q, Q, ALL), {}, V, "heads of q to be a multiple of the heads of k=2, got 3"),
    ((x(2, 2, 5, 4), Q, Q, ALL), {}, V, r"same leading dimensions, got \(2, 2, 5, 4\) and \(2, 5, 4\)"),
    ((Q, Q, Q, "all"), {}, T, "neighbours to be a rule of mpnn.neighbours, got str"),
    ((Q, Q, Q, None), {}, T, "neighbours to be a rule of mpnn.neighbours, got NoneType"),
    ((Q, Q, Q, ALL), {"mask": TRUE[:4]}, V, r"mask of shape .*= \(5,\), got \(4,\)"),
    ((Q, Q, Q, ALL), {"mask": TRUE.expand(2, 5)}, V, r"mask of shape .*= \(5,\), got \(2, 5\)"),
    ((Q, Q, Q, ALL), {"mask": x(5)}, T, "mask of dtype bool .*got torch.float32; pass a bool mask.*score_bias="),
    ((Q, Q, Q, ALL), {"pair_mask": x(5, 5)}, T, "pair_mask of dtype bool .*got torch.float32; .*score_bias="),
    ((Q, Q, Q, ALL), {"pair_mask": TRUE[:4].expand(5, 4)}, V, r"pair_mask to broadcast to .*\(2, 5, 5\), got \(5, 4\)"),
    ((Q, Q, Q, ALL), {"pair_mask": TRUE.expand(3, 5, 5)}, V, r"pair_mask to broadcast to .*got \(3, 5, 5\)"),
    (
        (Q, Q, Q, ALL),
        {"score_bias": x(5, 5).long()},
        T,
        "score_bias of a floating dtype, got torch.int64; .*pair_mask=",
    ),
    (
        (Q, Q, Q, ALL),
        {"score_bias": TRUE.expand(5, 5)},
        T,
        "score_bias of a floating dtype, got torch.bool; .*pair_mask=",
    ),
    ((Q, Q, Q, KNN(2)), {}, V, r"coordinates= for KNN\(2\), since attend has no features to compare, got None"),
    ((Q[None], Q[None], Q[None], Radius(1)), {"coordinates": x(5, 2)}, V, r"leading dimensions \(1,\); .*batch="),
    ((Q, THREE, THREE, KNN(2)), {"coordinates": (x(3, 2), x(5, 3))}, V, "coordinates .* of one width .*got 2 and 3"),
    ((Q, THREE, THREE, KNN(2)), {"coordinates": x(5, 2)}, V, "coordinates as a pair"),
    ((Q, Q, Q, ALL), {"score_bias": x(3, 5, 5)}, V, r"score_bias to broadcast to .*\(2, 5, 5\), got \(3, 5, 5\)"),
    ((Q, Q, Q, ALL), {"score_bias": [1.0]}, T, "score_bias to be a tensor or a module of mpnn.positions, got list"),
    ((Q, Q, Q, ALL), {"score_bias": ALiBi(4)}, V, "score_bias for 2 heads, got 4"),
    ((THREE, THREE, THREE, GRAPH), {"score_bias": x(4, 2)}, V, r"score_bias .*got \(4, 2\)"),
    ((Q, Q, Q, ALL), {"score": 1.0}, T, "score to be a function.*got float"),
    ((Q, Q, Q, ALL), {"score": lambda scores, pairs: scores[..., 0]}, V, r"\(..., E, heads\) = .*25, 2\), got \(25,\)"),
    ((Q, Q, Q, ALL), {"dropout": 1.5}, V, r"dropout in \[0, 1\], got 1.5"),
    ((Q, Q, Q, ALL), {"dropout": -0.1}, V, r"dropout in \[0, 1\], got -0.1"),
    ((Q, Q, Q, ALL), {"kernel": "cudnn"}, V, "kernel to be one of 'linear'.*'reference', got 'cudnn'"),
    ((Q, Q, Q, Window(1)), {"kernel": "sdpa"}, V, r"a kernel that can run Window × attend, got sdpa \(.*reference can"),
    ((Q, Q, Q, Graph()), {}, V, "edge_index at the call, since .* was built without edges, got None"),
    ((Q, Q, Q, GRAPH), {}, V, "3 source and 3 target nodes for Graph.*, got 5 and 5"),
    ((THREE, THREE, THREE, Graph(E, 3, weight=2 * x(2))), {}, V, "would be ignored by attend; pass score_bias="),
    ((THREE, THREE, THREE, Graph(E, 3, self_loops="add", loop_weight=2.0)), {}, V, "loop_weight would be ignored by a"),
    ((THREE, THREE, THREE, Graph(E, 3, attr=x(2, 3))), {}, V, "would be ignored by attend; pass score_bias="),
    ((Q, Q, Q, Full(4)), {}, V, r"tokens of shape \(..., 4, C\) for Full\(4\), got 5 tokens"),
    ((Q, Q, Q, Full(5, 4)), {}, V, r"q of 4 targets for Full\(5, 4\), got 5"),
    ((Q, Q, Q, Grid((2, 3), 3)), {}, V, r"tokens of shape \(..., 6, C\) for Grid.*, got 5 tokens"),
    ((Q, Q, Q, Grid(axes=2)), {}, V, "grid= at the call, since .*got None"),
    ((Q, Q, Q, Grid(5, 3)), {"grid": (4,)}, V, "grid"),
    ((Q, Q, Q, ALL), {"grid": (5,)}, V, r"grid would be ignored by AllTokens\(\)"),
    ((Q, Q, Q, ALL), {"positions": torch.arange(5)}, V, "positions would be ignored by attend without"),
    ((Q, Q, Q, ALL), {"coordinates": x(5, 2)}, V, r"coordinates would be ignored by AllTokens\(\)"),
    ((THREE, Q, Q, ALL), {"score_bias": ALiBi(2), "positions": torch.arange(5)}, V, r"positions as a pair .*got one"),
    ((THREE, Q, Q, ALL), {"batch": NODES}, V, r"batch as a pair \(sources, targets\), since N ≠ M, got one tensor"),
    ((Q[None], Q[None], Q[None], ALL), {"batch": NODES}, V, r"batch= needs x of shape \(N, C\)"),
    ((Q, Q, Q, ALL), {"batch": torch.tensor([0, 1, 0, 1, 1])}, V, "batch sorted ascending"),
    ((Q, Q, Q, Full(5)), {"batch": NODES}, V, r"batch= is refused .*got Full\(5\)"),
    ((Q, Q, Q, AllTokens(max_tokens=4)), {}, V, r"at most max_tokens=4 sources .*got 5"),
]
