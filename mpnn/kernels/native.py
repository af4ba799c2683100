"""native: attention over listed edges in one compiled pass, by numba.

Scores, softmax and sum are made row by row, and again in the backward from each row's log-sum-exp: no tensor over edges
and channels, and over edges and heads none but a bias that the call has. A mask is a bias of -inf. Edge features of
QKSoftmax go past the channels: q·(W e) = (Wᵀq)·e, and Σ w (W e) = W Σ w e.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpnn.checks import wide
from mpnn.functions import apply, eager_linear, heard
from mpnn.kernels.base import Call
from mpnn.native.jobs import KINKED, SUM
from mpnn.native.rows import RowAttention, Rows
from mpnn.partial import Part, attention, per_entry
from mpnn.reasons import FORWARD_MODE, UNLISTED, no_memory
from mpnn.scores import all_heads, biased, masked_bias
from mpnn.sparse.csr import Csr
from mpnn.spec import Spec
from mpnn.weights import AdditiveScore, AdditiveScoreV2

name = "native"
INSTALLED = importlib.util.find_spec("numba") is not None
NETWORKS = ("AdditiveScore", "AdditiveScoreV2")


def unsupported(spec: Spec) -> list[str]:
    """Why this call is no attention over rows."""
    why = []
    if not INSTALLED:
        why.append("numba is not installed: pip install 'mpnn[native]'")
    if spec.device != "cpu":
        why.append("compiled for the CPU")
    if not spec.listed:
        why.append(UNLISTED)
    if spec.normalise != "softmax":
        why.append("no softmax")
    if spec.weight not in ("QKSoftmax", "attend") and spec.network not in NETWORKS:
        why.append("needs QKSoftmax, attend, AdditiveScore or AdditiveScoreV2")
    if spec.network == "AdditiveScore" and not spec.square:
        why.append("AdditiveScore between two sets of tokens projects the targets too")
    if spec.network == "AdditiveScoreV2" and spec.edge_attr:
        why.append("edge features inside AdditiveScoreV2's activation")
    if spec.network == "AdditiveScoreV2" and spec.activation != "LeakyReLU":
        why.append("an activation of AdditiveScoreV2 other than LeakyReLU")
    if spec.score:
        why.append("a score function is not compiled")
    if spec.dropout:
        why.append("dropout would need the same random numbers in the backward")
    if spec.compiling:
        why.append("torch.compile does not trace what numba compiled; the reference is traced as one block")
    if "jvp" in spec.transforms:
        why.append(FORWARD_MODE)
    return why + no_memory(spec)


def partial(call: Call) -> Part:
    """The part of an attention that this call is."""
    return _Part(call)


class _Part:
    """Scaled products of queries and keys over rows, with the bias and masks of the call, as a part of an attention."""

    def __init__(self, call: Call) -> None:
        csr = Csr.of(call.all_edges(), call.targets, call.sources)
        self.rows, self.bias = Rows(csr, scale=call.weight.scale), _bias(call, csr)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        out, _, lse = self.rows.forward(*self._inputs(query, key, value))
        return out.transpose(1, 2).to(value.dtype), lse.transpose(1, 2)

    def backward(
        self, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = wide(grad.dtype)
        none = grad.new_empty(*grad.shape[:2], 0, dtype=dtype).transpose(1, 2)
        # where no part has a source every weight is 0 by the bias, and a lse of -inf would make it no number
        finite = lse.masked_fill(lse == -torch.inf, 0)
        outputs = (out.transpose(1, 2).to(dtype), none, finite.transpose(1, 2))
        needed = (True, True, False, False, False, False, True)
        grads = (grad.transpose(1, 2).to(dtype), none)
        found = self.rows.backward(self._inputs(query, key, value), outputs, grads, needed)
        d_query, d_key, d_value = (t.transpose(1, 2).to(grad.dtype) for t in found if t is not None)
        return d_query, d_key, d_value

    def _inputs(self, query: Tensor, key: Tensor, value: Tensor) -> tuple:
        query, key, value = (t.transpose(1, 2).to(wide(t.dtype)) for t in (query, key, value))
        return _inputs(query, key, value, None if self.bias is None else per_entry(self.bias, query.shape[0]))


def run(call: Call, reference: Any) -> Tensor:
    """The aggregate: (..., N, C)."""
    if _overheard(call):
        return reference(call)
    csr = Csr.of(call.all_edges(), call.targets, call.sources)
    dtype, bias = wide(call.value.dtype), _bias(call, csr)
    if "query" not in call.nodes:
        a, b, vector, kind, slope = _additive(call)
        value = _by_row(call, call.value)
        y, _, _ = apply(RowAttention, Rows(csr, kind, 1.0, slope), a, b, vector, None, None, bias, value)
        return y.reshape(*call.lead, call.targets, call.width).to(call.value.dtype)
    rows = Rows(csr, scale=call.weight.scale)
    if bias is None and call.attr is None:
        given = call.again()
        given.nodes = call.nodes | {n: call.nodes[n].to(dtype) for n in ("query", "key", "value")}
        return attention(given, [_Part(given)], reference).to(call.value.dtype)
    query, key, value = (_by_row(call, all_heads(call.nodes[n], call.weight.heads)) for n in ("query", "key", "value"))
    if call.attr is None:
        y, _, _ = apply(RowAttention, rows, *_inputs(query, key, value, bias=bias))
    else:
        matrix = call.weight.edge.weight.unflatten(0, (call.weight.heads, -1))  # (heads, D, F)
        turned = torch.einsum("bnhd,hdf->bnhf", query, matrix.to(dtype)).to(dtype)
        feature = _per_entry(call, call.attr.to(dtype).index_select(-2, csr.order))
        y, z, _ = apply(RowAttention, rows, query, key, None, turned, feature, bias, value)
        y = y + torch.einsum("bnhf,hdf->bnhd", z, matrix.to(dtype)).to(dtype)
    return y.reshape(*call.lead, call.targets, call.width).to(call.value.dtype)


def shortcut(call: Call, reference: Any) -> Callable[[Tensor], Tensor] | None:
    """The whole layer for tokens of this shape, where it is plain attention; else None."""
    rule, x = call.weight, call.tokens[0].x
    if "query" not in call.nodes or biased(call) or call.attr is not None or rule.position is not None:
        return None
    if rule.split is not None or rule.heads != rule.kv_heads or call.tokens[1] is not call.tokens[0]:
        return None
    if x.dtype != wide(x.dtype):
        return None
    rows = Rows(Csr.of(call.all_edges(), call.targets, call.sources), scale=rule.scale)
    four = (call.entries, call.targets, rule.heads, rule.head_channels)
    shape = (*x.shape[:-1], rule.heads * rule.head_channels)

    def run(x: Tensor) -> Tensor:
        query, key, value = (eager_linear(part, x).view(four) for part in (rule.query, rule.key, rule.value))
        y, _, _ = apply(RowAttention, rows, query, key, None, None, None, None, value)
        return rule.finish(y.view(shape), x)

    return run


def _overheard(call: Call) -> bool:
    """Whether somebody listens to a module that this kernel knows by its parameters and never calls, or has put another
    in its place: then the definition runs, which calls it."""
    rule = call.weight
    if "query" in call.nodes:
        edge = None if call.attr is None else rule.edge
        return edge is not None and (type(edge).forward is not torch.nn.Linear.forward or heard(edge))
    network = rule.network
    activation = network.activation
    own = type(network) not in (AdditiveScore, AdditiveScoreV2) or "activation" in network.__dict__
    return own or heard(network) or (isinstance(activation, torch.nn.Module) and heard(activation))


def _inputs(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> tuple:
    return query, key, None, None, None, bias, value


def _by_row(call: Call, x: Tensor) -> Tensor:
    """(..., heads, N, D) as (B, N, heads, D), which is the memory order of a linear layer's output."""
    x = x.transpose(-3, -2).to(wide(x.dtype)).contiguous()
    return x.reshape(call.entries, *x.shape[-3:])


def _bias(call: Call, csr: Csr) -> Tensor | None:
    """What is added to the scores, (B, E, heads), -inf where a mask removes; None for nothing."""
    featured = "query" not in call.nodes and call.attr is not None  # edge features inside an additive score
    if not (featured or biased(call)):
        return None
    rule, pairs = call.weight, call.pairs(csr.edges, csr.order)
    term = rule.network.edge_term(pairs.attr) if featured else None
    total = masked_bias(call, pairs, wide(call.value.dtype), term)
    return None if total is None else _per_entry(call, total.expand(*total.shape[:-1], rule.heads))


def _per_entry(call: Call, x: Tensor) -> Tensor:
    """What stands at the edges, (..., E, k), for each batch entry: (B, E, k), without a copy where all share it."""
    if x.ndim == 2:
        return x.expand(call.entries, *x.shape)
    return x.expand(*call.lead, *x.shape[-2:]).reshape(call.entries, *x.shape[-2:])


def _additive(call: Call) -> tuple[Tensor, Tensor, Tensor | None, int, float]:
    """(target's term, source's term, vector, kind, slope) of GAT's and GATv2's scores."""
    network, dtype = call.weight.network, wide(call.value.dtype)
    x_source, x_target = call.nodes["x_source"], call.nodes["x_target"]
    if type(network).__name__ == "AdditiveScore":
        source, target = (
            t.to(dtype).reshape(call.entries, *t.shape[-2:]) for t in network.factor(call.value, x_source, x_target)
        )
        return target, source, None, SUM, network.negative_slope
    source = call.value if network.source is None else _projected(network.source, x_source, network.heads)
    if network.target is not None:
        target = _projected(network.target, x_target, network.heads)
    else:
        target = call.value if x_target is x_source else call.weight.project(x_target)
    vector = network.vector.to(dtype).expand(call.entries, *network.vector.shape)
    return _by_row(call, target), _by_row(call, source), vector, KINKED, network.activation.negative_slope


def _projected(layer: Any, x: Tensor, heads: int) -> Tensor:
    return layer(x).unflatten(-1, (heads, -1)).transpose(-3, -2)
