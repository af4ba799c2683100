"""The four architectures as calls of one network."""

from mpnn.models.architectures import CNN, GNN, MLP, Transformer
from mpnn.models.blocks import PlainBlock, ResidualBlock, Skip
from mpnn.models.network import Network, Readout

__all__ = ["CNN", "GNN", "MLP", "Network", "PlainBlock", "Readout", "ResidualBlock", "Skip", "Transformer"]
