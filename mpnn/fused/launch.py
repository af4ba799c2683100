"""Launches of torch's fused attention: how many batch entries one may take."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

ENTRIES = 65_535  # batch entries of one launch: torch's fused kernels fail beyond (pytorch/pytorch#142228, #146704)
CHUNKED = ("cuda",)  # where they do


def too_many(device: torch.device, entries: int) -> bool:
    """Whether one launch cannot take so many batch entries."""
    return entries > ENTRIES and device.type in CHUNKED


def in_chunks(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    """torch's fused attention, as many batch entries at a time as one launch takes."""
    if torch.compiler.is_compiling() or not too_many(q.device, q.shape[0]):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, **options)
    parts = []
    for a in range(0, q.shape[0], ENTRIES):
        at = slice(a, a + ENTRIES)
        whole = attn_mask is None or attn_mask.ndim < 4 or attn_mask.shape[0] == 1
        mask = attn_mask if whole else attn_mask[at]  # type: ignore[index]
        parts.append(F.scaled_dot_product_attention(q[at], k[at], v[at], attn_mask=mask, **options))
    return torch.cat(parts)
