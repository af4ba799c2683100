"""spmm: sums over edges as a sparse matrix product, with the transpose kept for the backward.

One matrix for all pairs commutes with the sum, so it is applied on the narrower side; with several relations the rows
are (relation, target) and one dense product follows. A number per edge and head is one sparse product a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mpnn.checks import HALF, wide
from mpnn.functions import apply
from mpnn.kernels.base import Call
from mpnn.memo import lasting
from mpnn.normalise import factors, normalised
from mpnn.reasons import FORWARD_MODE, UNLISTED, no_memory
from mpnn.sparse.csr import Csr
from mpnn.sparse.fixed import Fixed, Product
from mpnn.sparse.products import SegmentSum, rows3, spmm
from mpnn.spec import Spec

name = "spmm"
MKL = torch.backends.mkl.is_available()
READ_VALUES = ("AdditiveScore", "AdditiveScoreV2")


def unsupported(spec: Spec) -> list[str]:
    """Why this call is no sparse product."""
    why = []
    if not spec.listed:
        why.append(UNLISTED)
    if spec.normalise == "softmax":
        why.append("softmax belongs to edge_softmax")
    if spec.reduce == "max":
        why.append("reduce='max' is no sum")
    if spec.family == "groups" and spec.weight != "SharedKernel":
        why.append("a matrix per edge is not shared between edges")
    if spec.network in READ_VALUES:
        why.append("scores that read values would hold a tensor over edges and channels")
    if spec.edge_value:
        why.append("what edges add to their source's value would hold a tensor over edges and channels")
    if spec.compiling:
        why.append("torch.compile does not trace sparse CSR tensors; the reference is traced as one block")
    if "jvp" in spec.transforms:
        why.append(FORWARD_MODE)
    if spec.device == "cpu" and spec.family == "heads" and not MKL:
        why.append("the gradient of edge weights needs MKL's sampled products, and this torch has no MKL")
    return why + no_memory(spec)


def run(call: Call, reference: Any) -> Tensor:
    """The aggregate: (..., N, C)."""
    y = _numbers(call) if call.weight.heads is not None else _matrices(call)
    if call.weight.reduce == "mean":
        y = y / _count(call).clamp(min=1).to(y.dtype)
    return y.to(call.value.dtype)


def shortcut(call: Call, reference: Any) -> Callable[[Tensor], Tensor] | None:
    """The whole layer for one set of tokens, where one matrix serves all edges; else None."""
    rule = call.weight
    edges = call.all_edges()
    if (
        rule.groups != 1
        or edges.relation is not None
        or rule.relations != 1
        or rule.reduce != "sum"
        or rule.root is not None
        or rule.value is not None
        or call.lead
    ):
        return None
    if (
        rule.output is not None
        or rule.bases is not None
        or rule.kernel_shape is not None
        or call.tokens[0].x.dtype in HALF
    ):
        return None
    csr = Csr.of(edges, call.targets, call.sources)
    weight = _scale(call, csr)
    weight = csr.ones(call.value.dtype) if weight is None else weight
    if edges.count == 0 or call.value.numel() == 0 or weight.requires_grad:
        return None
    a, matrix_first = Fixed(csr, weight), _matrix_first(rule)
    grad, shape = torch.is_grad_enabled(), (rule.after, rule.before)  # a remembered call is one with or without
    times = partial(apply, Product, a) if grad else a.times

    def run(x: Tensor) -> Tensor:
        matrix = rule.weight.view(shape)
        if not matrix_first:  # the dense product comes last and takes the bias with it
            return F.linear(times(x), matrix, rule.bias)
        y = times(F.linear(x, matrix))
        if rule.bias is None:
            return y
        return y + rule.bias if grad else y.add_(rule.bias)

    return run


def _numbers(call: Call) -> Tensor:
    csr = Csr.of(call.all_edges(), call.targets, call.sources)
    edges = csr.edges
    value = call.value
    heads = value.shape[-3]
    if call.weight.fixed:
        weight = _scale(call, csr)
    else:
        weight = normalised(call, call.pairs(edges, csr.order), csr.order, 0, call.targets)[0]
        weight = torch.nn.functional.dropout(weight, call.dropout) if call.dropout else weight
        weight = _per_row(weight, call.lead, heads).to(wide(value.dtype))
    y = spmm(csr, weight, rows3(value).to(wide(value.dtype)))
    return y.view(*call.lead, heads, call.targets, value.shape[-1]).transpose(-3, -2).flatten(-2)


def _matrices(call: Call) -> Tensor:
    rule, value = call.weight, call.value
    matrices = rule.matrices()  # (relations, out, in/groups)
    kinds = matrices.shape[0] if call.all_edges().relation is not None else 1
    csr = Csr.of(call.all_edges(), call.targets, call.sources, kinds)
    weight = _scale(call, csr)
    x = rows3(value)
    first = kinds == 1 and _matrix_first(rule)
    if first:
        x = _apply(x, matrices[:1], rule.groups)
    y = spmm(csr, weight, x.to(wide(value.dtype))).to(value.dtype)
    if not first:
        y = _apply(y.unflatten(-2, (kinds, call.targets)).movedim(-3, 0).flatten(1, -2), matrices[:kinds], rule.groups)
    return y.reshape(*call.lead, call.targets, rule.after)


def _matrix_first(rule: Any) -> bool:
    """Whether the one matrix comes before the sum: where that is the narrower side. Between equal sides, without
    gradients, since rows that were just written are gathered from the cache; with them the sum comes first, so that
    tokens without a gradient need no sum in the backward."""
    return rule.after < rule.before or (rule.after == rule.before and not torch.is_grad_enabled())


def _apply(x: Tensor, matrices: Tensor, groups: int) -> Tensor:
    """Σ_r x_r W_rᵀ, per group: x (relations, rows, in) or (K, rows, in) for one relation."""
    if groups == 1 and matrices.shape[0] == 1:
        return x @ matrices[0].t()
    kinds, out, inner = matrices.shape
    per_group = x.reshape(kinds, x.shape[:-1].numel() // kinds, groups, inner)
    blocks = matrices.view(kinds, groups, out // groups, inner)
    y = torch.einsum("rngi,rgoi->ngo", per_group, blocks).flatten(-2)
    return y.view(*x.shape[:-1], out) if kinds == 1 else y


def _per_row(weight: Tensor, lead: tuple[int, ...], heads: int) -> Tensor:
    """(..., E, heads or 1) → (K, E), or (1, E) where one row serves all."""
    if weight.ndim == 2 and weight.shape[-1] == 1:
        return weight.t()
    edges = weight.shape[-2]
    return weight.transpose(-2, -1).expand(*lead, heads, edges).reshape(math.prod(lead) * heads, edges)


def _scale(call: Call, csr: Csr) -> Tensor | None:
    """Edge weights, degrees and masks in one number per edge, kept with the edges where only these decide."""
    plain = call.edge_weight is None and not call.masked
    key = ("scale", call.weight.normalise, call.value.dtype)
    if plain and call.weight.normalise is None:
        return None
    if plain and key in csr.cache:
        return csr.cache[key]
    edges = csr.edges
    keep = call.keep(edges)
    scale = factors(call, edges, csr.order, keep, 0, call.targets)
    if keep is not None:
        scale = keep.to(wide(call.value.dtype)) if scale is None else torch.where(keep, scale, 0)
    assert scale is not None
    heads = call.value.shape[-3] if call.weight.heads is not None else 1
    made = _per_row(scale.to(wide(call.value.dtype)), call.lead, heads)
    if plain and lasting(made):
        csr.cache[key] = made
    return made


def _count(call: Call) -> Tensor:
    """Edges of each target, (..., N, 1)."""
    csr = Csr.of(call.all_edges(), call.targets, call.sources)
    keep = call.keep(csr.edges)
    if keep is None:
        return csr.offsets.diff()[:, None]
    counted = apply(
        SegmentSum, csr, keep.to(torch.float32).squeeze(-1).reshape(math.prod(keep.shape[:-2]), len(csr.row))
    )
    return counted.view(*keep.shape[:-2], call.targets, 1)
