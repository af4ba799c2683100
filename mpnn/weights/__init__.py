"""How much: rules that say how much a source counts, one parameter per pair, per relation, a network, or attention."""

from mpnn.pairs import Pairs
from mpnn.weights.additive import AdditiveScore, AdditiveScoreV2
from mpnn.weights.base import EdgeNetwork, Weight
from mpnn.weights.edge_learned import EdgeLearned
from mpnn.weights.filters import EdgeMLP, OffsetMLP, RadialFilter
from mpnn.weights.linear_like import HeadMean, HeadSum, ScaledIdentity
from mpnn.weights.qk_softmax import QKSoftmax
from mpnn.weights.shared_kernel import SharedKernel
from mpnn.weights.static import Static

__all__ = [
    "AdditiveScore",
    "AdditiveScoreV2",
    "EdgeLearned",
    "EdgeMLP",
    "EdgeNetwork",
    "HeadMean",
    "HeadSum",
    "OffsetMLP",
    "Pairs",
    "QKSoftmax",
    "RadialFilter",
    "ScaledIdentity",
    "SharedKernel",
    "Static",
    "Weight",
]
