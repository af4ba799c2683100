"""Tokenisers: modules that take data and return ``Tokens``, with what is known about each token."""

from __future__ import annotations

from mpnn.tokens.base import Tokens
from mpnn.tokens.node import NodeTokens
from mpnn.tokens.patch import PatchTokens
from mpnn.tokens.places import counted_positions, grid_positions, mask_from_lengths
from mpnn.tokens.step import StepTokens
from mpnn.tokens.subword import SubwordTokens
from mpnn.tokens.vocabulary import Vocabulary

__all__ = [
    "Tokens",
    "PatchTokens",
    "StepTokens",
    "SubwordTokens",
    "NodeTokens",
    "Vocabulary",
    "counted_positions",
    "grid_positions",
    "mask_from_lengths",
]
