"""edge_softmax: attention over listed edges by sampled products, without a tensor over edges and channels.

Scores are inner products sampled at the edges, or sums of one term per end; the softmax runs over compressed rows; the
weighted sum is a sparse product per head. Each piece is closed under differentiation, see ``mpnn.sparse.products``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpnn.checks import HALF, wide
from mpnn.functions import apply, eager_linear
from mpnn.kernels.base import Call
from mpnn.partial import per_entry
from mpnn.reasons import FORWARD_MODE, UNLISTED, WIDE_EDGES, no_memory
from mpnn.scores import all_heads, bias_at, biased, edge_bias
from mpnn.sparse.attention import EdgeAttention, TokenAttention, row_softmax
from mpnn.sparse.csr import Csr
from mpnn.sparse.products import Rows, SegmentMax, SegmentSum, rows3, sddmm, spmm
from mpnn.spec import Spec

name = "edge_softmax"
MKL = torch.backends.mkl.is_available()


def unsupported(spec: Spec) -> list[str]:
    """Why this call is no attention over a list of edges."""
    why = []
    if not spec.listed:
        why.append(UNLISTED)
    if spec.normalise != "softmax":
        why.append("no softmax")
    if spec.weight not in ("QKSoftmax", "attend") and spec.network != "AdditiveScore":
        why.append(
            "needs QKSoftmax, attend or AdditiveScore: scores that are products or sums of terms of the two ends"
        )
    if spec.network == "AdditiveScore" and not spec.square:
        why.append("AdditiveScore between two sets of tokens projects the targets too")
    if spec.edge_attr and spec.weight == "QKSoftmax":
        why.append(WIDE_EDGES)
    if spec.compiling:
        why.append("torch.compile does not trace sparse CSR tensors; the reference is traced as one block")
    if "jvp" in spec.transforms:
        why.append(FORWARD_MODE)
    if spec.device == "cpu" and not MKL:
        why.append("sampled products need MKL, and this torch has none")
    return why + no_memory(spec)


def run(call: Call, reference: Any) -> Tensor:
    """The aggregate: (..., N, C)."""
    if "query" not in call.nodes and not call.weight.network.factors():  # whose terms are added here without calling it
        return reference(call)
    csr = Csr.of(call.all_edges(), call.targets, call.sources)
    edges, heads = csr.edges, call.weight.heads
    dtype = wide(call.value.dtype)
    if _plain(call):
        query, key, value = (all_heads(call.nodes[n], heads).to(dtype) for n in ("query", "key", "value"))
        y, _ = apply(EdgeAttention, csr, rows3(query) * call.weight.scale, rows3(key), rows3(value))
        y = y.view(*call.lead, heads, call.targets, value.shape[-1]).transpose(-3, -2).flatten(-2)
        return y.to(call.value.dtype)
    pairs = call.pairs(edges, csr.order)
    scores = _products(call, csr, pairs, dtype) if "query" in call.nodes else _terms(call, pairs, dtype)
    keep = call.keep(edges)
    if keep is not None:
        scores = scores.expand(torch.broadcast_shapes(scores.shape, keep.shape)).masked_fill(~keep, -torch.inf)
    count = len(edges)
    weight = row_softmax(
        csr, scores.transpose(-2, -1).expand(*call.lead, heads, count).reshape(call.entries * heads, count)
    )
    weight = torch.nn.functional.dropout(weight, call.dropout) if call.dropout else weight
    value = all_heads(call.value, heads).to(dtype)
    y = spmm(csr, weight, rows3(value))
    y = y.view(*call.lead, heads, call.targets, value.shape[-1]).transpose(-3, -2).flatten(-2)
    return y.to(call.value.dtype)


def _plain(call: Call) -> bool:
    """Whether the scores are products and nothing else."""
    return "query" in call.nodes and not (biased(call) or call.dropout or getattr(call.weight, "score", None))


def partial(call: Call) -> EdgePart:
    """The part of an attention that this call is."""
    return EdgePart(call)


class EdgePart:
    """Attention over listed edges with its log-sum-exp, for joining with other parts."""

    def __init__(self, call: Call) -> None:
        self.csr, self.scale = Csr.of(call.all_edges(), call.targets, call.sources), call.weight.scale
        self.bias = edge_bias(call, self.csr.edges, self.csr.order, wide(call.value.dtype))

    def _scores(self, query: Tensor, key: Tensor) -> Tensor:
        """(B·heads, E), -inf where a mask removes the edge."""
        dtype = wide(query.dtype)
        scores = sddmm(self.csr, rows3(query).to(dtype) * self.scale, rows3(key).to(dtype))
        if self.bias is None:
            return scores
        bias = per_entry(self.bias, query.shape[0])
        scores = scores.view(*query.shape[:2], -1) + bias
        return scores.masked_fill(bias == -torch.inf, -torch.inf).flatten(0, 1)  # also where a product overflowed

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        csr, scores = self.csr, self._scores(query, key)
        top = apply(SegmentMax, csr, scores)
        weight = (scores - apply(Rows, csr, top)).exp()
        total = apply(SegmentSum, csr, weight)
        out = spmm(csr, weight, rows3(value).to(weight.dtype)) / torch.where(total == 0, 1, total)[..., None]
        shape = query.shape[:-1]
        return out.view(*shape, value.shape[-1]).to(value.dtype), (top + total.log()).view(shape)

    def backward(
        self, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        csr, flipped, dtype = self.csr, self.csr.transpose, wide(query.dtype)
        q, k, v, g, o = (rows3(x).to(dtype) for x in (query, key, value, grad, out))
        finite = lse.masked_fill(lse == -torch.inf, 0).flatten(0, 1)
        weight = (self._scores(query, key) - apply(Rows, csr, finite)).exp()
        slope = weight * (sddmm(csr, g, v) - apply(Rows, csr, (g * o).sum(-1))) * self.scale
        back = slope.index_select(-1, flipped.order)
        found = spmm(csr, slope, k), spmm(flipped, back, q), spmm(flipped, weight.index_select(-1, flipped.order), g)
        return tuple(y.view_as(x).to(x.dtype) for y, x in zip(found, (query, key, value), strict=True))  # type: ignore[return-value]


def shortcut(call: Call, reference: Any) -> Callable[[Tensor], Tensor] | None:
    """The whole layer for tokens of this shape, where it is plain attention; else None."""
    rule = call.weight
    if not _plain(call) or rule.position is not None or rule.split is not None or rule.root is not None:
        return None
    if rule.heads != rule.kv_heads or call.tokens[1] is not call.tokens[0] or call.tokens[0].x.dtype in HALF:
        return None
    csr = Csr.of(call.all_edges(), call.targets, call.sources)
    heads, entries, n, inner = rule.heads, call.entries, call.targets, rule.heads * rule.head_channels
    four, out = (entries, n, heads, rule.head_channels), (*call.lead, n, inner)

    def run(x: Tensor) -> Tensor:
        query, key, value = (eager_linear(part, x).view(four) for part in (rule.query, rule.key, rule.value))
        return rule.finish(apply(TokenAttention, csr, rule.scale, query, key, value)[0].view(out), x)

    return run


def _products(call: Call, csr: Csr, pairs: Any, dtype: torch.dtype) -> Tensor:
    """scale · q·k + bias at the edges: (..., E, heads)."""
    rule = call.weight
    query, key = call.nodes["query"].to(dtype), all_heads(call.nodes["key"], rule.heads).to(dtype)
    flat = sddmm(csr, rows3(query) * rule.scale, rows3(key))
    scores = flat.view(*call.lead, rule.heads, len(csr.row)).transpose(-2, -1)
    bias = bias_at(pairs, rule.score_bias, dtype)
    scores = scores if bias is None else scores + bias
    score = getattr(rule, "score", None)
    return scores if score is None else score(scores, pairs)


def _terms(call: Call, pairs: Any, dtype: torch.dtype) -> Tensor:
    """activation(s_j + t_i + edge) at the edges: (..., E, heads)."""
    network = call.weight.network
    source, target = network.factor(call.value, call.nodes["x_source"], call.nodes["x_target"])
    total = pairs.at_source(source.to(dtype)) + pairs.at_target(target.to(dtype))
    if network.edge is not None:
        total = total + network.edge_term(pairs.attr).to(dtype)
    return network.activation(total)
