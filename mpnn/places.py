"""Places: positions and coordinates of a call's tokens, given or by default."""

from __future__ import annotations

import torch
from torch import Tensor

from mpnn.kernels.base import Call
from mpnn.tokens.places import counted_positions


def counted(mask: Tensor | None, batch: Tensor | None, count: int, device: torch.device) -> Tensor:
    """cumsum(mask) - 1, or 0 … N - 1, restarting in each graph; masked tokens before the first real one are at 0."""
    if mask is None and batch is None:
        return torch.arange(count, device=device)
    return counted_positions(torch.ones(count, dtype=torch.bool, device=device) if mask is None else mask, batch)


def default_positions(call: Call, one_set: bool) -> tuple[Tensor, Tensor]:
    """(source, target) positions of a call: those of its tokens, else slots.

    With two sets of tokens the targets are the last N of the sources where the neighbourhood is causal or a window.
    """
    source, target = call.tokens
    device = source.x.device
    at_source = counted(source.mask, source.batch, call.sources, device) if source.positions is None else source.positions
    if one_set:
        return at_source, at_source
    if target is not None and target.positions is not None:
        return at_source, target.positions
    if not call.neighbours.counts_slots:
        return at_source, counted(None, None if target is None else target.batch, call.targets, device)
    if source.batch is not None:
        raise ValueError(
            "expected positions= for the targets of a batch with source=, whose places in each graph are not told"
        )
    if call.targets <= call.sources:
        return at_source, at_source[..., call.sources - call.targets :]
    return at_source, torch.arange(call.targets, device=device) + (call.sources - call.targets)


def place(call: Call, one_set: bool) -> None:
    """Add to the call's constants the positions that its weight's modules read, and its tokens' coordinates."""
    if getattr(call.weight, "position", None) is not None or getattr(call.weight, "score_bias", None) is not None:
        source, target = default_positions(call, one_set)
        call.constants |= {"positions_source": source, "positions_target": target}
    for end, tokens in zip(("source", "target"), call.tokens, strict=True):
        if tokens is not None and tokens.coordinates is not None:
            kept = tokens.coordinates
            kept = kept if tokens.mask is None else kept.masked_fill(~tokens.mask[..., None], 0)
            call.constants[f"coordinates_{end}"] = kept


def rotate(call: Call) -> None:
    """Run the weight's position module on queries and keys: (..., heads, N, D) with positions (..., N)."""
    module = getattr(call.weight, "position", None)
    if module is None:
        return
    axes = bool(getattr(module, "axes", 0))
    for node, end in (("query", "target"), ("key", "source")):
        at = call.constants[f"positions_{end}"]
        at = at if at.ndim == 1 + axes else at.unsqueeze(-2 - axes)  # an axis for the heads
        call.nodes[node] = module(call.nodes[node], at)
