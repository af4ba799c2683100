"""What is added to the scores of all pairs, for some targets: masks and the score bias."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mpnn.memo import derived


def pads_end(source: Tensor, target: Tensor | None) -> bool:
    """Whether every masked token stands after the real ones, and masked sources are masked targets too."""
    if torch.compiler.is_compiling() or source is not target or torch._C._functorch.is_functorch_wrapped_tensor(source):
        return False
    return derived(lambda: not bool((~source[..., :-1] & source[..., 1:]).any()), "pads_end", source)


def mask_of(call: Any, source_mask: Tensor | None, causal: bool, rows: slice) -> Tensor | None:
    """Which pairs take part: broadcast to (B, heads, rows, M); None for all."""
    mask = None
    if source_mask is not None:
        mask = source_mask if source_mask.ndim == 1 else source_mask.expand(*call.lead, call.sources)
        mask = mask.reshape(-1, 1, 1, call.sources)
    if causal:
        i = torch.arange(rows.start, rows.stop, device=call.value.device) + (call.sources - call.targets)
        sees = torch.arange(call.sources, device=call.value.device) <= i[:, None]
        mask = sees if mask is None else mask & sees
    if call.pair_mask is not None:
        pairs = _dense(call, call.pair_mask, rows)
        mask = pairs if mask is None else mask & pairs
    return mask


def _dense(call: Any, dense: Tensor, rows: slice) -> Tensor:
    """Some rows of what broadcasts to (..., heads, N, M), with one batch axis."""
    dense = dense.expand(*(1,) * (3 - dense.ndim), *dense.shape) if dense.ndim < 3 else dense
    dense = dense if dense.shape[-2] == 1 else dense[..., rows, :]
    if dense.ndim == 3:
        return dense[None]
    return dense.expand(*call.lead, *dense.shape[-3:]).reshape(-1, *dense.shape[-3:])


def bias_of(call: Any, rows: slice) -> Tensor | None:
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
