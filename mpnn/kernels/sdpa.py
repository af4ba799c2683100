"""sdpa: attention over all tokens through torch's fused kernels.

FlashAttention, cuDNN or memory-efficient attention on a GPU, the fused kernel on a CPU: no N × N tensor. Tensors are
4-D, since others leave the fused path. Padding is a (B, 1, 1, M) mask; a causal call with padding at the end needs
none, since no real target sees it; what must be a mask over targets and sources is made for some targets at a time.

The fused backward cannot be differentiated: a backward that runs with gradients enabled recomputes through the
reference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from mpnn.functions import eager_linear, fold, unfold
from mpnn.kernels.base import Call
from mpnn.memo import derived
from mpnn.partial import by_reference, four, per_entry, pull
from mpnn.reasons import no_fused_products
from mpnn.spec import Spec

name = "sdpa"
_FLASH = "ScaledDotProductFlashAttentionForCpuBackward0"
_grad, _keeps = torch.is_grad_enabled, torch._C._autograd._get_current_graph_task_keep_graph
KEPT = 1 << 22  # entries of a score bias that may be kept for a backward
DROPPED = 1 << 24  # weights of a batch entry that may be kept where dropout acts on them
MASK = 1 << 22  # entries of a mask over targets, sources and heads made at once
ENTRIES = 65_535  # batch entries of one launch: torch's fused kernels fail beyond (pytorch/pytorch#142228, #146704)
CHUNKED = ("cuda",)  # where they do


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
    given = call.nodes.get("score_bias")
    module = call.weight.score_bias
    learned = (given is not None and given.requires_grad) or (
        module is not None and any(p.requires_grad for p in module.parameters())
    )
    attention = _attention(call, query.shape[1] != key.shape[1])
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    if torch.compiler.is_compiling() or call.dropout or learned or not (wanted or call.transformed):
        y = attention(
            query, key, value
        )  # where dropout or a learned bias act, torch's own formula has every derivative
    else:
        again = by_reference(call, reference)
        y = (_Transformed if call.transformed else _Fused).apply(attention, again, query, key, value)
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
    many = entries > ENTRIES and call.tokens[0].x.device.type in CHUNKED
    fused = _in_chunks if many else F.scaled_dot_product_attention

    layers, scale, biased = rule._modules, rule.scale, rule.bias is not None  # a look-up costs less than an attribute

    def run(x: Tensor) -> Tensor:
        q = eager_linear(layers["query"], x).view(heads).transpose(1, 2)
        k = eager_linear(layers["key"], x).view(fewer).transpose(1, 2)
        v = eager_linear(layers["value"], x).view(fewer).transpose(1, 2)
        if not (_grad() and (q.requires_grad or k.requires_grad or v.requires_grad)):
            y = fused(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)
        elif flash and not many:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
            node = y.grad_fn
            if type(node).__name__ == _FLASH:  # torch's written-out path has every derivative
                _differentiable_twice(node, again, [q, k, v])
        else:
            y = _Fused.apply(attention, again, q, k, v)
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
    if causal and source_mask is not None and square and _pads_end(source_mask, call.target_mask):
        source_mask = None
    biased = rule.score_bias is not None or "score_bias" in call.nodes
    if source_mask is None and call.pair_mask is None and not biased and (square or not causal):
        return lambda q, k, v: _in_chunks(q, k, v, is_causal=causal, **options)

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


def _in_chunks(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    """torch's fused attention, as many batch entries at a time as one launch takes."""
    if torch.compiler.is_compiling() or q.device.type not in CHUNKED or q.shape[0] <= ENTRIES:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, **options)
    parts = []
    for a in range(0, q.shape[0], ENTRIES):
        at = slice(a, a + ENTRIES)
        whole = attn_mask is None or attn_mask.ndim < 4 or attn_mask.shape[0] == 1
        mask = attn_mask if whole else attn_mask[at]  # type: ignore[index]
        parts.append(F.scaled_dot_product_attention(q[at], k[at], v[at], attn_mask=mask, **options))
    return torch.cat(parts)


def _pads_end(source: Tensor, target: Tensor | None) -> bool:
    """Whether every masked token stands after the real ones, and masked sources are masked targets too."""
    if torch.compiler.is_compiling() or source is not target or torch._C._functorch.is_functorch_wrapped_tensor(source):
        return False
    return derived(lambda: not bool((~source[..., :-1] & source[..., 1:]).any()), "pads_end", source)


def _rows(
    call: Call,
    source_mask: Tensor | None,
    causal: bool,
    rows: slice,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: dict[str, Any],
) -> Tensor:
    """Attention of some targets under a mask and a bias."""
    mask, bias = _mask(call, source_mask, causal, rows), _bias(call, rows)
    some = None
    if bias is not None and bias.ndim == 4:
        bias = per_entry(bias, q.shape[0])
    if mask is not None:
        mask = per_entry(mask, q.shape[0]) if mask.ndim == 4 else mask
        some = mask.any(-1, keepdim=True)
        mask = mask | ~some  # a row without sources would be no number; it is set to 0 below
    if bias is not None:
        mask = bias.to(q.dtype) if mask is None else bias.to(q.dtype).masked_fill(~mask, -torch.inf)
    y = _in_chunks(q[:, :, rows], k, v, attn_mask=mask, **options)
    return y if some is None else y.masked_fill(~some, 0)


def _mask(call: Call, source_mask: Tensor | None, causal: bool, rows: slice) -> Tensor | None:
    """Which pairs take part: broadcast to (B, heads, rows, M); None for all."""
    mask = None
    if source_mask is not None:
        mask = (
            source_mask
            if source_mask.ndim == 1
            else source_mask.expand(*call.lead, call.sources).reshape(call.entries, 1, 1, call.sources)
        )
        mask = mask.view(mask.numel() // call.sources, 1, 1, call.sources)
    if causal:
        i = torch.arange(rows.start, rows.stop, device=call.value.device) + (call.sources - call.targets)
        sees = torch.arange(call.sources, device=call.value.device) <= i[:, None]
        mask = sees if mask is None else mask & sees
    if call.pair_mask is not None:
        pairs = _dense(call, call.pair_mask, rows)
        mask = pairs if mask is None else mask & pairs
    return mask


def _dense(call: Call, dense: Tensor, rows: slice) -> Tensor:
    """Some rows of what broadcasts to (..., heads, N, M), with one batch axis."""
    dense = dense.expand(*(1,) * (3 - dense.ndim), *dense.shape) if dense.ndim < 3 else dense
    dense = dense if dense.shape[-2] == 1 else dense[..., rows, :]
    if dense.ndim == 3:
        return dense[None]
    return dense.expand(*call.lead, *dense.shape[-3:]).reshape(-1, *dense.shape[-3:])


def _bias(call: Call, rows: slice) -> Tensor | None:
    """The scores' bias, broadcast to (B, heads, rows, M)."""
    bias = None
    module = call.weight.score_bias
    if module is not None:
        target, source = call.nodes["positions_target"], call.nodes["positions_source"]
        if getattr(module, "axes", 0):
            dense = module(target[..., rows, None, :], source[..., None, :, :])
        else:
            dense = module(target[..., rows, None], source[..., None, :])
        dense = dense.movedim(-1, -3)
        bias = dense if dense.ndim < 5 else dense.reshape(-1, *dense.shape[-3:])
    if "score_bias" in call.nodes:
        given = _dense(call, call.nodes["score_bias"], rows)
        bias = given if bias is None else bias + given
    return bias


class _Fused(Function):
    """Fused attention with its own fused backward; differentiated once more, it recomputes through the reference."""

    @staticmethod
    def forward(ctx: Any, attention: Any, again: Any, *inputs: Tensor) -> Tensor:
        with torch.enable_grad():
            inner = [t.detach().requires_grad_(t.requires_grad) for t in inputs]
            out = attention(*inner)
        ctx.inner, ctx.again = (out, inner), again
        ctx.save_for_backward(*inputs)
        return out.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        if torch.is_grad_enabled():
            return (None, None, *pull(ctx.again, ctx.saved_tensors, ctx.needs_input_grad[2:], grad))
        out, inner = ctx.inner or ctx.saved_tensors  # of a graph that was freed, which autograd says
        keep = _keeps()
        grads = iter(torch.autograd.grad(out, [t for t in inner if t.requires_grad], grad, retain_graph=keep))
        if not keep:
            ctx.inner = None
        return None, None, *(next(grads) if t.requires_grad else None for t in inner)


def _differentiable_twice(node: Any, again: Any, held: list[Tensor]) -> None:
    """The CPU's fused attention by torch's own autograd, whose backward cannot be differentiated: where a backward runs
    with gradients enabled, its results are replaced by the reference's. A hook costs less than a Function."""

    def replace(found: tuple, grads: tuple) -> tuple | None:
        if _grad():
            needed = tuple(g is not None for g in found[:3])
            return (*pull(again, tuple(held), needed, grads[0]), *found[3:])
        if not _keeps():
            held.clear()  # as autograd frees what it saved
        return None

    node.register_hook(replace)


class _Transformed(Function):
    """Fused attention inside functional transforms: its backward is always the reference's."""

    @staticmethod
    def forward(attention: Any, again: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attention(query, key, value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.again = inputs[1]
        ctx.save_for_backward(*inputs[2:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return (None, None, *pull(ctx.again, ctx.saved_tensors, ctx.needs_input_grad[2:], grad))

    @staticmethod
    def vmap(info: Any, in_dims: tuple, attention: Any, again: Any, *inputs: Tensor) -> tuple:
        """The vmapped axis as the outer part of the batch."""
        folded = [fold(t, d, info.batch_size) for t, d in zip(inputs, in_dims[2:], strict=True)]
        return unfold(_Transformed.apply(attention, again, *folded), info.batch_size)
