"""Places: positions and coordinates of a call's tokens, given or by default."""

from __future__ import annotations

import torch
from torch import Tensor

from mpnn.call import Call
from mpnn.slots import extent


def counted(mask: Tensor | None, batch: Tensor | None, count: int, device: torch.device) -> Tensor:
    """cumsum(mask) - 1, or 0 … N - 1, restarting in each graph (masked tokens before the first real one: -1)."""
    if mask is None and batch is None:
        return torch.arange(count, device=device)
    real = torch.ones(count, dtype=torch.bool, device=device) if mask is None else mask
    place = real.long().cumsum(-1)
    if batch is not None:
        place = place - (place - real.long()).index_select(-1, torch.searchsorted(batch.long(), batch.long()))
    return place - 1


def default_positions(call: Call, one_set: bool, axes: int) -> tuple[Tensor, Tensor]:
    """(source, target) positions of a call: those of its tokens, else slots.

    With two sets of tokens the targets are the last N of the sources where the neighbourhood is causal or a window.
    """
    source, target = call.tokens
    device = source.x.device
    at_source = (
        counted(source.mask, source.batch, call.sources, device) if source.positions is None else source.positions
    )
    if one_set:
        return at_source, at_source
    if target is not None and target.positions is not None:
        return at_source, target.positions
    if target is None and call.centres is not None:  # a rule's own targets stand where their centres do
        return at_source, at_source.index_select(-2 if axes else -1, call.centres)
    if not call.neighbours.counts_slots:
        return at_source, counted(None, None if target is None else target.batch, call.targets, device)
    i = torch.arange(call.targets, device=device)
    low, _, slot = extent(call.target_tokens, call.targets, call.sources, i)
    if call.sources == 0:
        return at_source, slot
    last = at_source.index_select(-2 if axes else -1, slot.clamp(min=0))
    known = slot >= low
    return at_source, torch.where(known[:, None], last, 0) if axes else torch.where(known, last, slot - low)


def place(call: Call, one_set: bool) -> None:
    """Add to the call's constants the positions that its weight's modules read, and its tokens' coordinates."""
    modules = [getattr(call.weight, name, None) for name in ("position", "score_bias")]
    if any(m is not None for m in modules):
        axes = max(getattr(m, "axes", 0) for m in modules if m is not None)
        source, target = default_positions(call, one_set, axes)
        for end, at in (("sources", source), ("targets", target)):
            if at.shape[-1] != (axes or (call.sources if end == "sources" else call.targets)):
                wanted = f"(..., N, {axes})" if axes else "(..., N)"
                raise ValueError(f"expected positions of the {end} of shape {wanted}, got {tuple(at.shape)}")
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
