"""torch's attention masks, where True excludes and floats are added, as masks where True takes part and biases."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mpnn.checks import readable
from mpnn.memo import derived


def masks(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, lead: tuple[int, ...], heads: int, n: int, m: int,
    dtype: torch.dtype,
) -> dict[str, Tensor]:  # fmt: skip
    """``mask``, ``pair_mask`` and ``score_bias`` of a call, from torch's two masks.

    A float mask's ``-inf`` removes a pair, and its other entries are added to the scores, so that a row without any
    source is 0 as everywhere here. ``attn_mask`` is (N, M) or (B · heads, N, M), ``key_padding_mask`` (B, M).
    """
    found: dict[str, Tensor] = {}
    biases = []
    if key_padding_mask is not None:
        _check("key_padding_mask", key_padding_mask, ((*lead, m),))
        kept, bias = _apart(key_padding_mask)
        if kept is not None:
            found["mask"] = kept
        if bias is not None:
            biases.append(bias[..., None, None, :])
    if attn_mask is not None:
        batch = lead[0] if lead else 1
        _check("attn_mask", attn_mask, ((n, m), (batch * heads, n, m)))
        kept, bias = _apart(attn_mask)
        if kept is not None:
            found["pair_mask"] = _by_head(kept, lead, heads)
        if bias is not None:
            biases.append(_by_head(bias, lead, heads))
    if biases:
        found["score_bias"] = sum(biases[1:], biases[0]).to(dtype)
    return found


def _by_head(mask: Tensor, lead: tuple[int, ...], heads: int) -> Tensor:
    """(N, M) as it is, (B · heads, N, M) as (B, heads, N, M), unbatched (heads, N, M)."""
    return mask if mask.ndim == 2 else mask.unflatten(0, (*lead, heads))


def _check(name: str, mask: Any, shapes: tuple[tuple[int, ...], ...]) -> None:
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"expected {name} to be a bool tensor (True = excluded) or one of floats, got {got}")
    if tuple(mask.shape) not in shapes:
        wanted = " or ".join(str(tuple(int(n) for n in shape)) for shape in shapes)
        raise ValueError(f"expected {name} of shape {wanted}, got {tuple(mask.shape)}")


def _apart(mask: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Which entries take part, and what is added to the others; None where all do, and where nothing is."""
    if mask.dtype == torch.bool:
        return ~mask, None
    kept = mask > -torch.inf
    bias = mask.masked_fill(~kept, 0)
    if mask.requires_grad or not readable(mask):
        return kept, bias
    # nn.TransformerEncoder makes floats of bool masks: without the zeros the fused kernels stay open
    all_kept, no_bias = derived(lambda: (bool(kept.all()), not bool(bias.any())), "apart", mask)
    return None if all_kept else kept, None if no_bias else bias
