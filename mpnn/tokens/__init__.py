"""Tokenisers: from data to Tokens."""

from __future__ import annotations

from mpnn.tokens.base import Tokens

__all__ = ["Tokens"]
