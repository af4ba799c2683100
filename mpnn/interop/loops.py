"""PyG's ``add_remaining_self_loops``: of several loops at a node the last stays; a sparse matrix gets one more."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mpnn.checks import readable
from mpnn.edge_index import read
from mpnn.memo import derived


def one_loop_each(edge_index: Any, weight: Tensor | None, nodes: int, loop: float) -> tuple[Any, Tensor | None]:
    """The edges and weights with which adding loops where a node has none gives what PyG adds.

    Of the loops that a node has, all but the last get the weight 0, which neither a sum nor a degree sees. To a sparse
    matrix PyG adds the identity times ``loop``, also where the diagonal has an entry. Without edge weights PyG reads no
    ``loop``: all its loops weigh 1.
    """
    if edge_index is None:  # a rule that swap() gave makes its own edges; a Graph refuses it
        return None, weight
    if isinstance(edge_index, Tensor) and edge_index.layout != torch.strided:
        index, values, _ = read(edge_index)
        assert values is not None
        weight = values if weight is None else weight
        return index, weight + loop * (index[0] == index[1]).to(weight.dtype)
    index = read(edge_index)[0] if type(edge_index) is not Tensor else edge_index
    if index.ndim != 2 or index.shape[0] != 2 or index.is_floating_point():
        return edge_index, weight  # refused at the door
    if weight is None and loop != 1:
        return _with_loops(index, nodes)
    if not readable(index):
        surplus: Tensor | None = _surplus(index, nodes)
    else:
        surplus = derived(lambda: _some(_surplus(index, nodes)), ("surplus loops", nodes), index)
    if surplus is None:
        return edge_index, weight
    weight = torch.ones(index.shape[1], device=index.device) if weight is None else weight
    return edge_index, weight.masked_fill(surplus, 0)


def _with_loops(index: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Edges with a loop of weight 1 at each node, after them, and given loops of weight 0."""
    weight = (index[0] != index[1]).to(torch.get_default_dtype())
    loop = torch.arange(nodes, device=index.device, dtype=index.dtype)
    return torch.cat([index, loop.expand(2, -1)], 1), torch.cat([weight, weight.new_ones(nodes)])


def _some(mask: Tensor) -> Tensor | None:
    return mask if bool(mask.any()) else None


def _surplus(index: Tensor, nodes: int) -> Tensor:
    """Which edges are loops of a node that has a later one."""
    is_loop, row = index[0] == index[1], torch.arange(index.shape[1], device=index.device)
    at = index[0].long().clamp(0, max(nodes - 1, 0))  # a wrong number is refused at the door
    last = torch.full((max(nodes, 1),), -1, device=index.device).scatter_reduce(
        0, at, torch.where(is_loop, row, -1), "amax"
    )
    return is_loop & (row != last[at])
