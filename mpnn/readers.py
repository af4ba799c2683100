"""Readers: who reads positions, coordinates and a grid; what nothing would read is refused, not dropped."""

from __future__ import annotations

from typing import Any

from mpnn.neighbours import Neighbours
from mpnn.tokens.base import Tokens
from mpnn.weights import EdgeLearned, EdgeNetwork, QKSoftmax, SharedKernel, Static


def check_read(rule: Neighbours, weight: Any, positions: Any, coordinates: Any, grid: Any) -> None:
    """Refuse a keyword that nothing here reads. A person's own rules may read any."""
    kind = getattr(weight, "spec_name", type(weight).__name__)
    known_rule = type(rule).__module__.startswith("mpnn.")
    places = getattr(weight, "position", None) is not None or getattr(weight, "score_bias", None) is not None
    if positions is not None and reads_nothing_else(weight) and not places:
        raise ValueError(
            f"positions would be ignored by {kind} without a position or score_bias module; leave them out"
        )
    if coordinates is not None and known_rule and not (rule.reads_tokens or reads_offset(weight)):
        raise ValueError(f"coordinates would be ignored by {rule} with {kind}; leave them out")
    if grid is not None and known_rule and not rule.reads_grid:
        raise ValueError(f"grid would be ignored by {rule}; leave it out")


def reads_nothing_else(weight: Any) -> bool:
    """Whether a weight rule is one of ours, of which we know what it reads."""
    return type(weight) in (Static, SharedKernel, EdgeLearned, QKSoftmax) or hasattr(weight, "spec_name")


def reads_offset(weight: Any) -> bool:
    """Whether a weight rule may read offsets: a network that does, a score function, a person's own rule."""
    if isinstance(weight, EdgeLearned):
        network = weight.network
        return network.reads_offset is not False if isinstance(network, EdgeNetwork) else weight.takes_pairs
    return not reads_nothing_else(weight) or getattr(weight, "score", None) is not None


def check_offsets(rule: Neighbours, weight: Any, source: Tokens, target: Tokens | None) -> None:
    """Refuse coordinates on one side only, and a network of offsets without any or of another width."""
    ends = [t for t in (source, target) if t is not None]
    given = [t.coordinates for t in ends if t.coordinates is not None]
    if given and len(given) < len(ends):
        raise ValueError("expected coordinates of sources and targets, got those of one; pass Tokens with coordinates")
    network = getattr(weight, "network", None)
    if not (isinstance(network, EdgeNetwork) and network.reads_offset):
        return
    axes = given[0].shape[-1] if given else rule.axes
    if not axes:
        raise ValueError(f"expected coordinates= for {type(network).__name__}, since {rule} has no offsets, got None")
    wanted = getattr(network, "axes", axes)
    if axes != wanted:
        raise ValueError(f"expected offsets of {wanted} axes for {type(network).__name__}, got {axes}")
