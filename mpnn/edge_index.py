"""What is given as a graph's edges: read, whatever library it comes from, and checked."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mpnn.checks import compiling, integers, positive, values


def sizes_of(num_nodes: Any, shape: tuple[int, int] | None) -> tuple[int, int] | None:
    """(sources, targets), from num_nodes and from a sparse matrix."""
    if num_nodes is None:
        return shape
    pair = num_nodes if isinstance(num_nodes, tuple | list) else (num_nodes, num_nodes)
    if len(pair) != 2:
        raise ValueError(f"expected num_nodes to be an int or (sources, targets), got {num_nodes!r}")
    sizes = positive("num_nodes", pair[0], 0), positive("num_nodes", pair[1], 0)
    if shape is not None and sizes != shape:
        raise ValueError(f"expected num_nodes={shape} (sources, targets), as the sparse matrix's, got {num_nodes!r}")
    return sizes


def read(edge_index: Any) -> tuple[Tensor, Tensor | None, tuple[int, int] | None]:
    """(edge_index (2, E), edge weights or None, (sources, targets) or None) of whatever PyG and torch call a graph."""
    if not isinstance(edge_index, Tensor):
        raise TypeError(
            "expected edge_index to be a tensor (2, E), a Graph, an EdgeIndex or a sparse matrix, "
            f"got {type(edge_index).__name__}"
        )
    if edge_index.layout != torch.strided:
        coo = edge_index.to_sparse_coo().coalesce()
        if coo.ndim != 2:
            raise ValueError(f"expected a sparse matrix A[target, source] of 2 dimensions, got {tuple(coo.shape)}")
        return coo.indices().flip(0).contiguous(), coo.values(), (coo.shape[1], coo.shape[0])
    if type(edge_index) is not Tensor and hasattr(edge_index, "as_tensor"):  # PyG's EdgeIndex
        plain = edge_index.as_tensor()
        plain = plain if edge_index.is_contiguous() else plain.contiguous()
        return plain, getattr(edge_index, "_value", None), None
    return edge_index, None, None


class EdgeIndexError(ValueError, IndexError):
    """An ``edge_index`` of another shape than (2, E): a wrong value, and no index."""


def check_index(edge_index: Tensor, targets: int, sources: int) -> None:
    """Refuse what is no (2, E) integer index of existing tokens."""
    integers("edge_index", edge_index)
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        swapped = "; pass edge_index.t()" if edge_index.ndim == 2 and edge_index.shape[1] == 2 else ""
        raise EdgeIndexError(f"expected edge_index of shape (2, E), got {tuple(edge_index.shape)}{swapped}")
    for row, side, count in ((0, "source", sources), (1, "target", targets)):
        ends = edge_index[row]
        # a number in the traced text would compile anew for every number of tokens
        limit = "the number of tokens - 1" if compiling() else count - 1
        text = f"expected edge_index[{row}] ({side}) in 0 … {limit}"
        values((ends >= 0) & (ends < count), IndexError, text, ends)


def check_rows(
    attr: Tensor | None, type: Tensor | None, weight: Tensor | None, edges: int, names: tuple[str, str, str]
) -> None:
    """Refuse edge data whose rows are not the edges."""
    for name, rows, axis in zip(names, (attr, type, weight), (-2, -1, -1), strict=True):
        if rows is not None and (rows.ndim < -axis or rows.shape[axis] != edges):
            raise ValueError(
                f"expected {name} with one row for each of {int(edges)} edges, got shape {tuple(rows.shape)}"
            )
