"""What every weight rule has: the rule itself, a network of the edge, linear maps around it, initialisations."""

from mpnn.weights.base.initialise import glorot_, uniform_
from mpnn.weights.base.linears import linear_or_none
from mpnn.weights.base.network import EdgeNetwork
from mpnn.weights.base.rule import Weight

__all__ = ["EdgeNetwork", "Weight", "glorot_", "linear_or_none", "uniform_"]
