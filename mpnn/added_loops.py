"""Added loops: an edge from each node to itself, and what stands for its attributes and weight."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mpnn.checks import wide
from mpnn.edges import Edges


def add_loops(edges: Edges, nodes: int, *, replace: bool) -> Edges:
    """The edges with a loop where a node has none or, with ``replace``, without their loops and with one each."""
    assert edges.index is not None
    source, target, relation, row = edges.source, edges.target, edges.relation, edges.index
    loop = torch.arange(nodes, device=source.device)
    is_loop = source == target
    if replace:
        kept, wanted = ~is_loop, torch.ones_like(loop, dtype=torch.bool)
    else:
        has = torch.zeros(nodes, dtype=torch.int64, device=source.device).index_add(0, target, is_loop.long())
        kept, wanted = torch.ones_like(is_loop), has == 0
    ends = torch.cat([source, loop]), torch.cat([target, loop])
    relation = None if relation is None else torch.cat([relation, torch.zeros_like(loop)])
    index, valid = torch.cat([row, torch.full_like(loop, -1)]), torch.cat([kept, wanted])
    return Edges(*ends, relation, index=index, valid=valid).compact()


def fill_loops(
    edges: Edges, nodes: int, attr: Tensor | None, weight: Tensor | None, counted: Tensor | None,
    loop_fill: float | str, loop_weight: float,
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """Attributes and weights for edges with added loops: the caller's rows, a loop's ``loop_weight`` and, by
    ``loop_fill``, a number or the "mean" of what its node's other edges have. ``counted``: bool (..., E), edges that no
    mask removes; the mean is over these."""
    assert edges.index is not None
    added, row = edges.index < 0, edges.index.clamp(min=0)
    if weight is not None:
        own = F.pad(weight, (0, 1), value=loop_weight)  # the last column is an added loop's
        weight = own.index_select(-1, torch.where(added, weight.shape[-1], row))
    if attr is not None:
        own = F.pad(attr, (0, 0, 0, 1), value=0.0 if isinstance(loop_fill, str) else loop_fill)
        attr = own.index_select(-2, torch.where(added, attr.shape[-2], row))
        if loop_fill == "mean":
            attr = torch.where(added[:, None], _mean(edges, nodes, attr, ~added, counted), attr)
    return attr, weight


def _mean(edges: Edges, nodes: int, attr: Tensor, given: Tensor, counted: Tensor | None) -> Tensor:
    """For each edge, the mean attribute over the given edges into its target."""
    given = given if edges.valid is None else given & edges.valid
    share = (given if counted is None else given & counted).to(wide(attr.dtype))[..., None]
    summands = share * attr
    total = summands.new_zeros(*summands.shape[:-2], nodes, attr.shape[-1]).index_add(-2, edges.target, summands)
    number = share.new_zeros(*share.shape[:-2], nodes, 1).index_add(-2, edges.target, share)
    return (total / number.clamp(min=1)).to(attr.dtype).index_select(-2, edges.target)
