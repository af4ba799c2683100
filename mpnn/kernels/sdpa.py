"""sdpa: attention over all tokens through torch's fused kernels.

FlashAttention, cuDNN or memory-efficient attention on a GPU, the fused kernel on a CPU: no N × N tensor. Tensors are
4-D, since others leave the fused path. Padding is a (B, 1, 1, M) mask; a causal call with padding at the end needs
none, since no real target sees it; what must be a mask over targets and sources is made for some targets at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mpnn.functions import eager_linear
from mpnn.fused.added import bias_of, mask_of, pads_end
from mpnn.fused.launch import in_chunks, too_many
from mpnn.fused.twice import Fused, Transformed, differentiable_twice
from mpnn.kernels.base import Call
from mpnn.partial import by_reference, four, per_entry
from mpnn.reasons import no_fused_products
from mpnn.spec import Spec, learned_bias

name = "sdpa"
KEPT = 1 << 22  # entries of a score bias that may be kept for a backward
DROPPED = 1 << 24  # weights of a batch entry that may be kept where dropout acts on them
MASK = 1 << 22  # entries of a mask over targets, sources and heads made at once
_grad = torch.is_grad_enabled


def unsupported(spec: Spec) -> list[str]:
    """Why this call is no dense attention."""
    why = []
    if spec.neighbours not in ("AllTokens", "Full"):
        why.append("needs AllTokens or Full: every pair of tokens")
    why += no_fused_products(spec)
    if spec.ragged:
        why.append("batch: graphs of different size are no dense batch")
    if spec.score_bias and spec.grad and spec.device == "cpu" and spec.targets * spec.sources * spec.parts > KEPT:
        why.append("a score bias as large as all pairs would be kept for the backward; tiles make it some at a time")
    if spec.grad and spec.device == "cpu" and not spec.compiling:
        if spec.gaps:
            why.append("a causal call's mask with gaps would be kept for all pairs; tiles make it some at a time")
        if spec.dropout and spec.targets * spec.sources * spec.parts > DROPPED:
            why.append("dropout would keep the weights of all pairs; tiles draw them again, which here is no slower")
    if not (spec.compiling or (spec.batch and spec.targets and spec.sources)):
        why.append("no tokens")
    return why


def run(call: Call, reference: Callable[[Call], Tensor]) -> Tensor:
    """The aggregate: (..., N, C)."""
    query, key, value = (four(call.nodes[n], call.lead) for n in ("query", "key", "value"))
    attention = _attention(call, query.shape[1] != key.shape[1])
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    plain = call.dropout or learned_bias(call, call.weight)  # torch's own formula then, which has every derivative
    if torch.compiler.is_compiling() or plain or not (wanted or call.transformed):
        y = attention(query, key, value)
    else:
        again = by_reference(call, reference)
        y = (Transformed if call.transformed else Fused).apply(attention, again, query, key, value)
    y = y.transpose(-3, -2).flatten(-2)
    return call.blank_targets(y.reshape(*call.lead, *y.shape[-2:]))


def shortcut(call: Call, reference: Callable[[Call], Tensor]) -> Callable[[Tensor], Tensor] | None:
    """The whole layer for tokens of this shape, where it is plain multi-head attention; else None."""
    rule = call.weight
    plain = rule.position is None and rule.score_bias is None and rule.split is None and rule.root is None
    if not plain or call.dropout or call.tokens[1] is not call.tokens[0]:
        return None
    causal, entries, n = call.neighbours.causal and call.targets > 1, call.entries, call.targets
    heads, fewer = ((entries, n, h, rule.head_channels) for h in (rule.heads, rule.kv_heads))
    inner = (*call.lead, n, rule.heads * rule.head_channels)
    attention, grouped = _attention(call, rule.heads != rule.kv_heads), rule.heads != rule.kv_heads
    again = by_reference(call, reference)
    flash = call.tokens[0].x.device.type == "cpu" and not grouped
    many = too_many(call.tokens[0].x.device, entries)
    fused = in_chunks if many else F.scaled_dot_product_attention

    layers, scale, biased = rule._modules, rule.scale, rule.bias is not None  # a look-up costs less than an attribute

    def run(x: Tensor) -> Tensor:
        q = eager_linear(layers["query"], x).view(heads).transpose(1, 2)
        k = eager_linear(layers["key"], x).view(fewer).transpose(1, 2)
        v = eager_linear(layers["value"], x).view(fewer).transpose(1, 2)
        if not (_grad() and (q.requires_grad or k.requires_grad or v.requires_grad)):
            y = fused(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)
        elif flash and not many:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
            differentiable_twice(y.grad_fn, again, [q, k, v])
        else:
            y = Fused.apply(attention, again, q, k, v)
        y = y.transpose(1, 2).reshape(inner)
        output = layers.get("output")
        y = y if output is None else eager_linear(output, y)
        return y + rule.bias if biased else y

    return run


def _attention(call: Call, grouped: bool) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The fused call that this one needs, as a function of query, key, value."""
    rule = call.weight
    options: dict[str, Any] = {"dropout_p": call.dropout, "scale": rule.scale, "enable_gqa": grouped}
    square = call.tokens[1] is call.tokens[0] or call.targets == call.sources
    causal = call.neighbours.causal and (square or torch.compiler.is_compiling() or call.targets != 1)
    source_mask = call.source_mask
    if causal and source_mask is not None and square and pads_end(source_mask, call.target_mask):
        source_mask = None
    biased = rule.score_bias is not None or "score_bias" in call.nodes
    if source_mask is None and call.pair_mask is None and not biased and (square or not causal):
        return lambda q, k, v: in_chunks(q, k, v, is_causal=causal, **options)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        whole = not (causal or biased) or isinstance(call.targets, torch.SymInt)  # a range would fix an open size
        if whole:
            return _rows(call, source_mask, causal, slice(0, call.targets), q, k, v, options)
        step = max(1, MASK // max(1, q.shape[0] * q.shape[1] * call.sources))
        parts = [
            _rows(call, source_mask, causal, slice(a, min(a + step, call.targets)), q, k, v, options)
            for a in range(0, call.targets, step)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -2)

    return attend


def _rows(
    call: Call, source_mask: Tensor | None, causal: bool, rows: slice, q: Tensor, k: Tensor, v: Tensor, options: Any
) -> Tensor:
    """Attention of some targets under a mask and a bias."""
    mask, bias = mask_of(call, source_mask, causal, rows), bias_of(call, rows)
    some = None
    if bias is not None and bias.ndim == 4:
        bias = per_entry(bias, q.shape[0])
    if mask is not None:
        mask = per_entry(mask, q.shape[0]) if mask.ndim == 4 else mask
        some = mask.any(-1, keepdim=True)
        mask = mask | ~some  # a row without sources would be no number; it is set to 0 below
    if bias is not None:
        mask = bias.to(q.dtype) if mask is None else bias.to(q.dtype).masked_fill(~mask, -torch.inf)
    y = in_chunks(q[:, :, rows], k, v, attn_mask=mask, **options)
    return y if some is None else y.masked_fill(~some, 0)
