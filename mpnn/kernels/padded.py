"""padded: many small graphs as one dense masked batch, a node in a row and each graph a few rows wider than it is.

Nodes are gathered once into (graphs, width), for a few widths; attention over all pairs of a graph, with what is no
edge at -inf, then needs neither a gather nor a sum per edge. It pays where graphs are dense: the pairs that are no
edges cost as much as those that are, and with their weight of 0 a value of inf is no number within its graph. On the
CPU it runs through torch's fused kernel, elsewhere in matrix products of some graphs at a time; the backward makes the
weights again from each row's log-sum-exp.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from mpnn import limits
from mpnn.checks import wide
from mpnn.kernels.base import Call
from mpnn.partial import attention, per_entry
from mpnn.reasons import EDGE_FEATURES, TRACED, no_memory, no_products
from mpnn.scores import edge_bias
from mpnn.spec import Spec
from mpnn.tiles.graphs import SmallGraphs

name = "padded"
INSTALLED = importlib.util.find_spec("numba") is not None  # and with it native
# Padded pairs for each edge up to which this was measured to be the faster one, forward and backward, on a CPU:
NATIVE, LISTED = 1.5, 3.0  # than native, and than edge_softmax
LEAST, LEAST_FORWARD = 48, 128  # sources a node from which it was faster than native, in training and forward alone
MOST = 64  # padded pairs for each edge: what bounds the memory of the mask
COPIED = 1 << 17  # numbers of queries gathered at once on the CPU: what stays in its cache
FUSED = ("cpu",)  # where the fused kernel runs
_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def unsupported(spec: Spec) -> list[str]:
    """Why this call is no attention within small graphs."""
    why = no_products(spec)
    if spec.neighbours != "Graph":
        why.append("needs a Graph, in whose edges small graphs are found")
    elif spec.targets != spec.sources:
        why.append("targets and sources of different numbers are not in the same graphs")
    elif not ((spec.padded and spec.batch) or spec.compiling):
        why.append("no edges, or none that can be read here")
    elif spec.padded > MOST * (spec.edges or 0):
        text = f"its graphs would have {spec.padded:,} pairs as a dense batch, more than {MOST} for each of "
        why.append(f"{text}{spec.edges:,} edges: they are large, or the nodes of one are not side by side")
    if spec.edge_attr and spec.weight == "QKSoftmax":
        why.append(EDGE_FEATURES)
    if spec.dropout:
        why.append("dropout leaves the fused path, and would take parallel edges, one pair here, together")
    if spec.learned_bias:
        why.append("the gradient of a score bias is a number per edge and head, which this kernel never holds")
    if spec.score_channels != spec.channels // max(1, spec.kv_heads):
        why.append("keys and values of different widths leave the fused path")
    if spec.compiling:
        why.append(TRACED)
    return why + no_memory(spec)


def slower(spec: Spec) -> list[str]:
    """Why a kernel after this one is the faster one, where none is forced."""
    if spec.device not in FUSED:
        return [f"its speed on {spec.device} is not measured; name it to have it"]
    edges = spec.edges or 0
    most, better = (NATIVE, "native") if INSTALLED else (LISTED, "edge_softmax")
    if spec.padded > most * edges:
        text = f"its graphs have {spec.padded:,} pairs as a dense batch, more than {most} for each of {edges:,} edges"
        return [f"{text}, where {better} is faster"]
    least = LEAST if spec.grad else LEAST_FORWARD
    if INSTALLED and edges < least * (spec.targets or 0):
        return [f"its {spec.targets:,} nodes have fewer than {least} sources each, where native is faster"]
    return []


def run(call: Call, reference: Callable[[Call], Tensor]) -> Tensor:
    """The aggregate: (..., N, C)."""
    return attention(call, [partial(call)], reference)


def partial(call: Call) -> Padded:
    """The part of an attention that this call is."""
    edges = call.all_edges()
    bias = edge_bias(call, edges, None, wide(call.value.dtype))
    return Padded(SmallGraphs.of(edges, call.targets), call.weight.scale, bias)


class Piece(NamedTuple):
    """Some graphs of one width: the nodes in their rows, and where the rows go back to."""

    rows: Tensor
    home: Tensor
    width: int

    def take(self, x: Tensor) -> Tensor:
        """(N, G, D) by graph: (graphs, G, width, D)."""
        return x.index_select(0, self.rows).unflatten(0, (-1, self.width)).transpose(1, 2)

    def put(self, total: Tensor, x: Tensor) -> None:
        """Write (graphs, G, width, D) to its nodes; the last row of total (N + 1, G, D) takes what is no node."""
        total.index_copy_(0, self.home, x.transpose(1, 2).flatten(0, 1).to(total.dtype))


class Padded:
    """The attention of small graphs, a :class:`~mpnn.partial.Part`. ``bias`` (B or 1, heads or 1, E) at the edges."""

    def __init__(self, graphs: SmallGraphs, scale: float, bias: Tensor | None) -> None:
        self.graphs, self.scale, self.bias = graphs, scale, bias

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        sides = [_nodes_first(x) for x in (query, key, value)]
        nodes, count, width = sides[2].shape
        out = self.graphs.nodes(query.dtype, 0, nodes + 1, count, width)
        lse = self.graphs.nodes(wide(query.dtype), -torch.inf, nodes + 1, count, 1)
        for piece, mask in self._pieces(query):
            y, sums = self._attend(mask, *(piece.take(x) for x in sides))
            piece.put(out, y)
            piece.put(lse, sums.masked_fill((mask == -torch.inf).all(-1), -torch.inf)[..., None])
        return _heads_first(out, query), _heads_first(lse, query).squeeze(-1)

    def backward(
        self, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        # where no part has a source every weight is 0 by the mask, and a lse of -inf would make it no number
        finite = lse.masked_fill(lse == -torch.inf, 0)[..., None]
        sides = [_nodes_first(x) for x in (grad, query, key, value, out, finite)]
        found = [self.graphs.nodes(query.dtype, 0, len(x) + 1, *x.shape[1:]) for x in sides[1:4]]
        for piece, mask in self._pieces(query):
            for total, part in zip(found, self._pull(mask, *(piece.take(x) for x in sides)), strict=True):
                piece.put(total, part)
        d_query, d_key, d_value = (_heads_first(x, query) for x in found)
        return d_query, d_key, d_value

    def _pieces(self, query: Tensor) -> Iterator[tuple[Piece, Tensor]]:
        """Some graphs of one width at a time, and what is added to their scores, (graphs, G or 1, width, width)."""
        (entries, heads, _, channels), bias = query.shape, self.bias
        fused = query.device.type in FUSED
        added = self.graphs.added(None if bias is None else per_entry(bias, entries), wide(query.dtype))
        if added.ndim == 1:
            added = added[None]
        else:
            shape = (entries, heads) if added[..., 0].numel() > 1 else (1, 1)
            added = added.expand(*shape, -1).flatten(0, 1)
        for graphs, width, row, pair in self.graphs.buckets:
            each = entries * heads * width * (channels if fused else width)
            step = max(1, (COPIED if fused else limits.block) // each)
            for a in range(0, graphs, step):
                some = min(step, graphs - a)
                rows = slice(row + a * width, row + (a + some) * width)
                own = added[:, pair + a * width * width : pair + (a + some) * width * width]
                piece = Piece(self.graphs.rows[rows], self.graphs.home[rows], width)
                yield piece, own.unflatten(1, (some, width, width)).transpose(0, 1)

    def _attend(self, mask: Tensor, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if query.device.type in FUSED:
            mask = mask.expand(*query.shape[:2], -1, -1)
            return _forward(query, key, value, 0.0, False, attn_mask=mask, scale=self.scale)
        scores = self._scores(query, key, mask)
        lse = scores.logsumexp(-1)
        weight = (scores - lse.masked_fill(lse == -torch.inf, 0)[..., None]).exp()
        return weight @ value.to(weight.dtype), lse

    def _pull(
        self, mask: Tensor, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        if query.device.type in FUSED:
            mask = mask.expand(*query.shape[:2], -1, -1)
            sides = grad, query, key, value, out, lse.squeeze(-1)
            return _backward(*sides, 0.0, False, attn_mask=mask, scale=self.scale)
        grad, query, key, value, out = (x.to(lse.dtype) for x in (grad, query, key, value, out))
        weight = (self._scores(query, key, mask) - lse).exp()
        slope = weight * (grad @ value.mT - (grad * out).sum(-1, keepdim=True)) * self.scale
        return slope @ key, slope.mT @ query, weight.mT @ grad

    def _scores(self, query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
        return (query.to(mask.dtype) * self.scale) @ key.to(mask.dtype).mT + mask


def _nodes_first(x: Tensor) -> Tensor:
    """(B, heads, N, D) as (N, B·heads, D)."""
    return x.movedim(2, 0).flatten(1, 2)


def _heads_first(total: Tensor, query: Tensor) -> Tensor:
    """(N + 1, B·heads, D) as (B, heads, N, D)."""
    return total[:-1].unflatten(1, query.shape[:2]).movedim(0, 2)
