"""Nodes of a graph by the walks that return to them."""

from __future__ import annotations

import torch
from torch import Tensor

from mpnn import checks
from mpnn.positions.graph import GraphCode, first_of_graph

_COLUMNS = 256  # starts that walk at once: bounds the memory at this many numbers for each node


class RandomWalk(GraphCode):
    """Codes a node by its chances to be back after 1 … count steps: ``diag((D⁻¹ A)^k)``, projected and added.

    A step takes an edge out of the node with a chance in proportion to its weight; a node without one has chance 0.

    Args:
        channels: channels of the tokens.
        count: steps of the longest walk.

    Shapes, errors: see ``GraphCode``.

    Source: Dwivedi et al., "Graph neural networks with learnable structural and positional representations", 2022;
    PyG's ``AddRandomWalkPE``.

    >>> triangle = torch.tensor([[0, 1, 1, 2, 2, 0], [1, 0, 2, 1, 0, 2]])
    >>> RandomWalk(8, 3).table(triangle, 3)[0]
    tensor([0.0000, 0.5000, 0.2500])
    """

    def compute(self, edge_index: Tensor, edge_weight: Tensor | None, batch: Tensor | None, num_nodes: int) -> Tensor:
        run = _opaque if checks.compiling() else return_chances
        return run(edge_index, edge_weight, batch, num_nodes, self.count)


def return_chances(
    edge_index: Tensor, edge_weight: Tensor | None, batch: Tensor | None, nodes: int, count: int
) -> Tensor:
    """The table of ``RandomWalk``."""
    source, target = edge_index.long()
    device = edge_index.device
    weight = torch.ones(len(source), device=device) if edge_weight is None else edge_weight
    weight = weight.double()
    total = torch.zeros(nodes, dtype=torch.float64, device=device).index_add_(0, source, weight)
    chance = weight / total.where(total != 0, torch.ones_like(total))[source]
    ends = torch.stack([target, source])
    step = torch.sparse_coo_tensor(ends, chance, (nodes, nodes), check_invariants=False).coalesce()
    # Walks in different graphs never meet, so that one column carries a start in each of them.
    node = torch.arange(nodes, device=device)
    local = node - first_of_graph(batch, nodes, device)
    table = torch.zeros(nodes, count, dtype=torch.float64, device=device)
    for low in range(0, int(local.max()) + 1 if nodes else 0, _COLUMNS):
        starts = node[(local >= low) & (local < low + _COLUMNS)]
        columns = local[starts] - low
        walk = torch.zeros(nodes, int(columns.max()) + 1, dtype=torch.float64, device=device)
        walk[starts, columns] = 1.0
        for k in range(count):
            walk = torch.sparse.mm(step, walk)
            table[starts, k] = walk[starts, columns]
    return table.float()


# torch.compile cannot see through sparse products; eagerly the function itself runs, as an operation loads dynamo.
_opaque = torch.library.custom_op(
    "mpnn::return_chances",
    return_chances,
    mutates_args=(),
    schema="(Tensor edge_index, Tensor? edge_weight, Tensor? batch, SymInt nodes, SymInt count) -> Tensor",
)


@_opaque.register_fake
def _(edge_index: Tensor, edge_weight: Tensor | None, batch: Tensor | None, nodes: int, count: int) -> Tensor:
    return torch.empty(nodes, count, dtype=torch.float32, device=edge_index.device)
