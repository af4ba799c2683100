"""Places of tokens: codes added to them, rotations of queries and keys, biases of scores, codes of a graph's nodes."""

from __future__ import annotations

from mpnn.positions.alibi import ALiBi
from mpnn.positions.base import PositionCode, ScoreBias
from mpnn.positions.buckets import Buckets, OffsetBuckets, T5Buckets, WindowBuckets
from mpnn.positions.graph import GraphCode
from mpnn.positions.laplacian import LaplacianEigenvectors
from mpnn.positions.learned import Learned
from mpnn.positions.random_walk import RandomWalk
from mpnn.positions.relative import RelativeBias
from mpnn.positions.rotary import Rotary
from mpnn.positions.sinusoidal import Sinusoidal

__all__ = [
    "Sinusoidal",
    "Learned",
    "Rotary",
    "ALiBi",
    "RelativeBias",
    "LaplacianEigenvectors",
    "RandomWalk",
    "Buckets",
    "OffsetBuckets",
    "T5Buckets",
    "WindowBuckets",
    "PositionCode",
    "ScoreBias",
    "GraphCode",
]
