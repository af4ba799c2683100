"""Graph peers: what PyG and torch.sparse offer for the same sums."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor


def normalised(edge_index: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """GCN's edges and weights with loops, by PyG, sorted by target."""
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    index, weight = gcn_norm(edge_index, None, nodes, add_self_loops=True)
    order = torch.argsort(index[1] * nodes + index[0])
    return index[:, order], weight[order]


def csr(index: Tensor, weight: Tensor, nodes: int) -> Tensor:
    """A[target, source] as torch's CSR, of edges sorted by target."""
    start = torch.zeros(nodes + 1, dtype=torch.int64)
    start[1:] = torch.bincount(index[1], minlength=nodes).cumsum(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        return torch.sparse_csr_tensor(start, index[0], weight, (nodes, nodes), check_invariants=False)


def edge_index(index: Tensor, nodes: int) -> Any:
    """PyG's EdgeIndex of edges sorted by target, with both of its compressed forms made."""
    from torch_geometric import EdgeIndex

    made = EdgeIndex(index, sparse_size=(nodes, nodes), sort_order="col").fill_cache_()
    with warnings.catch_warnings():  # torch says these once a process
        warnings.filterwarnings("ignore", "Sparse CS[CR] tensor support is in beta", UserWarning)
        warnings.filterwarnings("ignore", "Sparse invariant checks are implicitly disabled", UserWarning)
        probe = torch.ones(nodes, 1, requires_grad=True)
        made.matmul(probe, torch.ones(index.shape[1]), transpose=True).sum().backward()
    return made


def gather_softmax_scatter(q: Tensor, k: Tensor, v: Tensor, index: Tensor, nodes: int) -> Tensor:
    """Attention as PyG's layers write it: gather, softmax per target, scatter. q, k, v (N, heads, D)."""
    from torch_geometric.utils import scatter, softmax

    source, target = index[0], index[1]
    scores = (q[target] * k[source]).sum(-1) * q.shape[-1] ** -0.5
    weight = softmax(scores, target, num_nodes=nodes)
    return scatter(v[source] * weight.unsqueeze(-1), target, 0, nodes, reduce="sum")
