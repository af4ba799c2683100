"""Who sends: rules that say which pairs of tokens meet. They hold no parameters and know no channels."""

from mpnn.edges import Edges
from mpnn.neighbours.all_tokens import AllTokens
from mpnn.neighbours.base import Neighbours
from mpnn.neighbours.blocks import Blocks
from mpnn.neighbours.expression import Difference, Intersection, Union
from mpnn.neighbours.full import Full
from mpnn.neighbours.global_tokens import Global
from mpnn.neighbours.graph import Graph
from mpnn.neighbours.grid import Grid
from mpnn.neighbours.window import Window

__all__ = [
    "AllTokens",
    "Blocks",
    "Difference",
    "Edges",
    "Full",
    "Global",
    "Graph",
    "Grid",
    "Intersection",
    "Neighbours",
    "Union",
    "Window",
]
