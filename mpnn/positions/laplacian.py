"""Nodes of a graph by the slowest waves on it."""

from __future__ import annotations

import torch
from torch import Tensor

from mpnn import checks
from mpnn.positions.graph import GraphCode, first_of_graph

_DENSE = 2000  # nodes of a graph up to which all eigenvectors are computed densely


class LaplacianEigenvectors(GraphCode):
    """Codes a node by its entries in the eigenvectors 1 … count of ``I - D^-½ A D^-½``, projected and added.

    Eigenvalues ascend and the first vector, the constant one, is left out; a graph of fewer nodes has zeros. Edges
    count in both directions (a graph that lacks one is made symmetric) and self-loops do not. The sign of a vector has
    no meaning: in training each flips at random, for each graph by itself, in evaluation its largest entry is positive.
    Where eigenvalues coincide any basis is as good, and which one comes out is left to the solver.

    Args:
        channels: channels of the tokens.
        count: how many eigenvectors.

    Shapes, errors: see ``GraphCode``. Graphs above 2,000 nodes need scipy.

    Source: Dwivedi & Bresson, "A generalization of transformer networks to graphs", 2021; PyG's
    ``AddLaplacianEigenvectorPE``.

    >>> path = torch.tensor([[0, 1], [1, 2]])
    >>> LaplacianEigenvectors(8, 1).table(path, 3)[:, 0].abs().round(decimals=4)
    tensor([0.7071, 0.0000, 0.7071])
    """

    def compute(self, edge_index: Tensor, edge_weight: Tensor | None, batch: Tensor | None, num_nodes: int) -> Tensor:
        run = _opaque if checks.compiling() else laplacian_eigenvectors
        return run(edge_index, edge_weight, batch, num_nodes, self.count)

    def add(self, x: Tensor, table: Tensor, *, batch: Tensor | None = None) -> Tensor:
        if self.training:
            # One draw for each node and vector, of which all nodes of a graph read their first node's.
            flips = torch.randint(0, 2, table.shape, device=table.device)[
                first_of_graph(batch, len(table), table.device)
            ]
            table = table * (1 - 2 * flips)
        return super().add(x, table, batch=batch)


def laplacian_eigenvectors(
    edge_index: Tensor, edge_weight: Tensor | None, batch: Tensor | None, nodes: int, count: int
) -> Tensor:
    """The table of ``LaplacianEigenvectors``."""
    source, target = edge_index.long()
    weight = torch.ones(len(source), device=source.device) if edge_weight is None else edge_weight
    kept = (source != target).nonzero().squeeze(-1)
    source, target, weight = source[kept], target[kept], weight[kept].double()
    graph = torch.zeros(nodes, dtype=torch.int64, device=source.device) if batch is None else batch.long()
    sizes = torch.bincount(graph).tolist()
    by_graph = torch.argsort(graph[source], stable=True)
    edges = torch.bincount(graph[source], minlength=len(sizes)).tolist()
    table = torch.zeros(nodes, count, dtype=torch.float64, device=source.device)
    start = 0
    for size, rows in zip(sizes, by_graph.split(edges), strict=True):
        if size > 1:
            vectors = _vectors(source[rows] - start, target[rows] - start, weight[rows], size, count)
            table[start : start + size, : vectors.shape[1]] = vectors
        start += size
    return table.float()


# Opaque to torch.compile, as sizes of graphs are values; in eager mode the function runs, as an operation loads dynamo.
_opaque = torch.library.custom_op(
    "mpnn::laplacian_eigenvectors",
    laplacian_eigenvectors,
    mutates_args=(),
    schema="(Tensor edge_index, Tensor? edge_weight, Tensor? batch, SymInt nodes, SymInt count) -> Tensor",
)


@_opaque.register_fake
def _(edge_index: Tensor, edge_weight: Tensor | None, batch: Tensor | None, nodes: int, count: int) -> Tensor:
    return torch.empty(nodes, count, dtype=torch.float32, device=edge_index.device)


def _vectors(source: Tensor, target: Tensor, weight: Tensor, size: int, count: int) -> Tensor:
    """The eigenvectors 1 … count of one graph, as many as there are, with the largest entry of each positive."""
    both = torch.stack([torch.cat([source, target]), torch.cat([target, source])])
    weight = torch.cat([weight, weight])
    degree = torch.zeros(size, dtype=torch.float64, device=both.device).index_add_(0, both[0], weight)
    scale = torch.where(degree > 0, degree, torch.inf).rsqrt()
    weight = scale[both[0]] * weight * scale[both[1]]
    if size <= _DENSE or size <= count + 1:
        laplacian = torch.eye(size, dtype=torch.float64, device=both.device)
        laplacian.index_put_((both[0], both[1]), -weight, accumulate=True)
        vectors = torch.linalg.eigh(laplacian).eigenvectors[:, 1 : count + 1]
    else:
        vectors = _sparse_vectors(both, weight, size, count)
    largest = vectors.abs()
    # Entries of one size up to rounding: the first of them decides, on every machine.
    first = (largest >= largest.amax(0) * (1 - 1e-6)).long().argmax(0)
    return vectors * torch.sign(vectors.gather(0, first[None]))


def _sparse_vectors(both: Tensor, weight: Tensor, size: int, count: int) -> Tensor:
    try:
        from scipy import sparse
        from scipy.sparse import linalg
    except ImportError as error:
        raise ImportError(f"LaplacianEigenvectors of a graph of {size} nodes need scipy: pip install scipy") from error
    row, column = both.cpu().numpy()
    adjacency = sparse.csr_matrix((weight.cpu().numpy(), (row, column)), shape=(size, size))
    laplacian = sparse.identity(size, format="csr") - adjacency
    # A start of its own keeps numpy's random state as it is and repeats the result.
    start = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64).numpy()
    values, vectors = linalg.eigsh(laplacian, k=count + 1, which="SA", v0=start)
    order = values.argsort()[1:]
    return torch.from_numpy(vectors[:, order].copy()).to(both.device)
