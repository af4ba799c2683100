"""Two ways of joining layers: nodes to hyperedges and back, and a local beside a global layer (GPS)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpnn.interop.stacks import redraw


class Hyperedges(nn.Module):
    """y_i = D_i Σ_{e ∋ i} mean_{j ∈ e} W x_j + b, D_i = 1 / Σ_{e ∋ i} w_e: two layers between two node sets.

    Args:
        to_edges, to_nodes: MessagePassing from nodes to hyperedges, and back.

    Shapes: x (N, C), hyperedge_index (2, E) of (node, hyperedge), hyperedge_weight (hyperedges,) → (N, out).

    Source: Bai et al. (2019), `arXiv:1901.08150 <https://arxiv.org/abs/1901.08150>`_; ``HypergraphConv``.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing
        >>> from mpnn.interop.compositions import Hyperedges
        >>> from mpnn.neighbours import Graph
        >>> from mpnn.weights import SharedKernel
        >>> to_edges = MessagePassing(Graph(), SharedKernel(4, 2, reduce="mean", bias=False))
        >>> layer = Hyperedges(to_edges, MessagePassing(Graph(), SharedKernel(2, 2, fixed=True)))
        >>> layer(torch.ones(3, 4), torch.tensor([[0, 1, 2], [0, 0, 1]])).shape
        torch.Size([3, 2])
    """

    def __init__(self, to_edges: nn.Module, to_nodes: nn.Module) -> None:
        super().__init__()
        self.to_edges, self.to_nodes = to_edges, to_nodes

    def forward(
        self,
        x: Tensor,
        hyperedge_index: Tensor,
        hyperedge_weight: Tensor | None = None,
        *,
        num_edges: int | None = None,
    ) -> Tensor:
        node, edge = hyperedge_index[0], hyperedge_index[1]
        if num_edges is None:
            num_edges = int(edge.max()) + 1 if edge.numel() else 0
        weight = x.new_ones(num_edges) if hyperedge_weight is None else hyperedge_weight
        total = x.new_zeros(x.shape[-2]).index_add(0, node, weight[edge].to(x.dtype))
        share = torch.where(total == 0, 0, 1 / torch.where(total == 0, 1, total))
        met = self.to_edges((x, x.new_zeros(num_edges, x.shape[-1])), hyperedge_index)
        back = met.new_zeros(x.shape[-2], met.shape[-1])
        return self.to_nodes((met, back), hyperedge_index.flip(0), edge_weight=share[node])

    def reset_parameters(self) -> None:
        """Draw the parameters of both layers again."""
        redraw(self.to_edges, self.to_nodes)


class LocalGlobal(nn.Module):
    """z = norm₁(x + conv(x)) + norm₂(x + attention(x)), y = norm₃(z + mlp(z)): GPS's block.

    Args:
        conv: a layer over the graph, or None. attention: a MessagePassing over all tokens of a graph. norms: three
            modules, or None. mlp: a module. dropout: after conv and attention, in training.

    Shapes: x (N, C), the edges of ``conv``'s call, batch (N,) sorted → (N, C). ``local(conv, x, …)`` calls the conv
    with a signature of its own.

    Source: Rampášek et al. (2022), `arXiv:2205.12454 <https://arxiv.org/abs/2205.12454>`_; ``GPSConv``.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing
        >>> from mpnn.interop.compositions import LocalGlobal
        >>> from mpnn.neighbours import AllTokens, Graph
        >>> from mpnn.weights import QKSoftmax, SharedKernel
        >>> conv = MessagePassing(Graph(), SharedKernel(4, 4))
        >>> block = LocalGlobal(conv, MessagePassing(AllTokens(), QKSoftmax(4, 2)), (None,) * 3, torch.nn.Linear(4, 4))
        >>> block(torch.ones(3, 4), torch.tensor([[0, 1], [1, 2]]), batch=torch.tensor([0, 0, 0])).shape
        torch.Size([3, 4])
    """

    def __init__(  # type: ignore[no-untyped-def]
        self, conv, attention, norms, mlp, *, dropout=0.0
    ) -> None:
        super().__init__()
        self.conv, self.attention, self.mlp, self.dropout = conv, attention, copy.deepcopy(mlp), dropout
        self.norm1, self.norm2, self.norm3 = (copy.deepcopy(norm) for norm in norms)

    def forward(
        self,
        x: Tensor,
        *args: Any,
        batch: Tensor | None = None,
        local: Callable[..., Tensor] | None = None,
        **given: Any,
    ) -> Tensor:
        met = self._met(x, self.attention(x, batch=batch), self.norm2, batch)
        if self.conv is not None:
            found = self.conv(x, *args, **given) if local is None else local(self.conv, x, *args, **given)
            met = self._met(x, found, self.norm1, batch) + met
        return self._norm(met + self.mlp(met), self.norm3, batch)

    def _met(self, x: Tensor, found: Tensor, norm: nn.Module | None, batch: Tensor | None) -> Tensor:
        return self._norm(x + F.dropout(found, self.dropout, self.training), norm, batch)

    @staticmethod
    def _norm(x: Tensor, norm: nn.Module | None, batch: Tensor | None) -> Tensor:
        if norm is None:
            return x
        return norm(x, batch=batch) if reads_batch(norm) else norm(x)

    def reset_parameters(self) -> None:
        """Draw the parameters of all parts again."""
        redraw(self.conv, self.attention, self.mlp, self.norm1, self.norm2, self.norm3)


def reads_batch(norm: nn.Module) -> bool:
    """Whether a norm of PyG is one of graphs: its forward takes ``batch``."""
    return "batch" in type(norm).forward.__code__.co_varnames[: type(norm).forward.__code__.co_argcount]
