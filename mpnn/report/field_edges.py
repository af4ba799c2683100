"""The receptive field by the edges: which inputs have a path to the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from mpnn import EdgeWeights
from mpnn.report.field import Field, targets_of


def field_by_edges(
    captured: Mapping[str, Sequence[EdgeWeights]], target: int | Sequence[int], *, skips: bool = False
) -> Field:
    """Which input tokens have a path to the target over edges of a weight that is not 0: 1 where they have, else 0.

    It knows the message passing layers alone, one after the other as they were called, whatever lies between them; for
    a model that adds a token to what it hears, say ``skips=True``.

    Args:
        captured: what :func:`~mpnn.capture_weights` collected in one forward, of layers that stand in a row.
        target: a token of every layer's output, or one for each layer where their numbers of tokens differ.
        skips: every layer also passes a token on to itself.

    Raises:
        TypeError, ValueError, IndexError: at the door; layers whose numbers of tokens do not follow on each other.

    Example::

        >>> import torch
        >>> from mpnn import capture_weights
        >>> from mpnn.models import CNN
        >>> from mpnn.report import field_by_edges
        >>> model = CNN(1, (4, 4), 10, size=(9,))
        >>> with capture_weights(model) as weights:
        ...     _ = model(torch.randn(9, 1))
        >>> field_by_edges(weights, 4).values.sum(-1).tolist()
        [3.0, 5.0]
    """
    calls = _in_order(captured)
    names, layers = [name for name, _ in calls], [edges for _, edges in calls]
    for (name, after), before in zip(calls[1:], layers, strict=False):
        if after.size[1] != before.size[0]:
            raise ValueError(
                f"expected layers that follow on each other, got {name!r}, which hears {after.size[1]} tokens after "
                f"{before.size[0]}; field_by_gradients follows any model"
            )
    sizes = tuple(edges.size[0] for edges in layers)
    targets = targets_of(target, names, sizes)
    found = []
    for depth, one in enumerate(targets):
        reached = torch.zeros(layers[depth].size[0], dtype=torch.bool)
        reached[one] = True
        for edges in reversed(layers[: depth + 1]):
            reached = _heard(edges, reached, skips)
        found.append(reached.float())
    return Field(torch.stack(found), targets, sizes, tuple(names), "by the edges: grey is out of reach")


def _heard(edges: EdgeWeights, reached: Tensor, skips: bool) -> Tensor:
    """The sources of these targets, in any sample."""
    weight = edges.weight
    axis = weight.ndim - (2 if edges.family == "heads" else 4)
    alive = (weight != 0).movedim(axis, 0).flatten(1).any(-1).cpu()
    source = edges.source.cpu()[alive & reached[edges.target.cpu()]]
    heard = torch.zeros(edges.size[1], dtype=torch.bool).index_fill_(0, source, True)
    return heard | reached if skips and len(heard) == len(reached) else heard


def _in_order(captured: Any) -> list[tuple[str, EdgeWeights]]:
    if not isinstance(captured, Mapping) or not all(isinstance(one, EdgeWeights) for one in chain(*captured.values())):
        raise TypeError(
            f"expected captured to be what capture_weights(model) gives, name → list of edges, got {captured!r}"
        )
    several = [name for name, found in captured.items() if len(found) > 1]
    if several:
        raise ValueError(
            f"expected the weights of one forward, got {len(captured[several[0]])} calls of {several[0]!r}; "
            "field_by_gradients follows a layer that is called again"
        )
    return [(name, found[0]) for name, found in captured.items()]
