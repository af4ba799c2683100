"""Tiles of tokens for dense attention: where they are, and what is added to their scores."""

from mpnn.tiles.index import Group, Slab, Tiles, tiles_of

__all__ = ["Group", "Slab", "Tiles", "tiles_of"]
