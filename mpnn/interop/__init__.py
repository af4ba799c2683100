"""Bridges to other libraries: load any layer, convert whole models, give them back."""

from mpnn.interop.convert import Report, convert, revert
from mpnn.interop.layer import from_layer, to_layer
from mpnn.interop.swap import swap

__all__ = ["Report", "convert", "from_layer", "revert", "swap", "to_layer"]
