"""Weights as they were used: what ``return_weights`` gives and ``capture_weights`` collects."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mpnn.call import Call
from mpnn.checks import instance, wide
from mpnn.kernels.reference import edge_weights
from mpnn.scores import all_heads

listening: list[Callable[[nn.Module, str, Call], None]] = []


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class EdgeWeights:
    """The edges of a call and their weights.

    ``source``, ``target`` int64 (E,) · ``index`` int64 (E,), the row in the caller's ``edge_index``, -1 for an added
    loop, None where the neighbourhood makes its edges · ``weight`` (..., E, heads) or (..., E, groups, out/groups,
    in/groups), before dropout; a pair that a mask removes has weight 0 · ``size`` the numbers of targets and sources,
    those without an edge included · ``family`` "heads" or "groups": which of the two shapes the weight has.
    """

    source: Tensor
    target: Tensor
    index: Tensor | None
    weight: Tensor
    size: tuple[int, int]
    family: str

    def __repr__(self) -> str:
        return f"EdgeWeights({self.source.shape[0]} edges, weight {tuple(self.weight.shape)})"


def returned(call: Call) -> EdgeWeights:
    """The edges of a call: a graph's in the caller's order with added loops last, else by target and source."""
    rule, dense = call.weight, _dense(call)
    edges, weight = (call.all_edges(), _of_all_pairs(call)) if dense else edge_weights(call)
    if rule.groups is not None:
        matrix = (rule.groups, rule.before // rule.groups, rule.after // rule.groups)
        weight = weight.unflatten(-1, matrix).transpose(-2, -1)
        ends = (*call.lead, *weight.shape[-4:])
    else:
        ends = (*call.lead, *weight.shape[-2:])
    weight = weight.expand(ends).to(call.value.dtype)
    dim = -4 if rule.groups is not None else -2
    source, target, index = edges.source, edges.target, edges.index
    if call.neighbours.__class__.__name__ != "Graph":
        index = None
        if not dense and not torch.compiler.is_compiling():
            order = torch.argsort(target * max(1, call.sources) + source, stable=True)
            source, target, weight = source[order], target[order], weight.index_select(dim, order)
    elif call.target_mask is not None and not torch.compiler.is_compiling():
        assert index is not None
        alive = call.target_mask[None].flatten(0, -2).any(0).index_select(0, target)
        kept = alive | (index >= 0)  # masked tokens get no loop
        if not bool(kept.all()):
            rows = kept.nonzero().squeeze(-1)
            source, target, index, weight = source[rows], target[rows], index[rows], weight.index_select(dim, rows)
    return EdgeWeights(
        source, target, index, weight, (call.targets, call.sources), "heads" if rule.groups is None else "groups"
    )


def _dense(call: Call) -> bool:
    """Whether the weights are a softmax of plain products of all pairs: then one product makes them."""
    rule = call.weight
    plain = rule.normalise == "softmax" and "query" in call.nodes and "edge_bias" not in call.nodes
    added = [getattr(rule, name, None) for name in ("score", "score_bias", "edge")]
    return plain and call.neighbours.complete and call.tokens[0].batch is None and all(a is None for a in added)


def _of_all_pairs(call: Call) -> Tensor:
    """The weights of every pair by target and source, before dropout: (..., N · M, heads)."""
    query = call.nodes["query"]
    key = all_heads(call.nodes["key"], query.shape[-3])
    dtype = wide(query.dtype)
    scores = torch.matmul(query.to(dtype) * call.weight.scale, key.to(dtype).transpose(-2, -1))
    if "score_bias" in call.nodes:
        scores = scores + call.nodes["score_bias"]
    kept = call.pair_mask
    sources = None if call.source_mask is None else call.source_mask[..., None, None, :]
    targets = None if call.target_mask is None else call.target_mask[..., None, :, None]
    for mask in (sources, targets):
        if mask is not None:
            kept = mask if kept is None else kept & mask
    if kept is None and "score_bias" not in call.nodes:
        return scores.softmax(-1).flatten(-2).transpose(-2, -1)
    scores = scores if kept is None else scores.masked_fill(~kept, -torch.inf)
    none = (scores == -torch.inf).all(-1, keepdim=True)  # by the masks, or by a bias of -inf where these leave a source
    weight = scores.masked_fill(none, 0).softmax(-1).masked_fill(none, 0)
    return weight.flatten(-2).transpose(-2, -1)


def notify(layer: nn.Module, kernel: str, call: Call) -> None:
    """Tell all listeners of a call."""
    for listener in listening:
        listener(layer, kernel, call)


@contextmanager
def _listen(listener: Callable[[nn.Module, str, Call], None]) -> Iterator[None]:
    listening.append(listener)
    try:
        yield
    finally:
        listening.remove(listener)


def _names(model: nn.Module) -> dict[int, str]:
    instance("model", model, nn.Module, "a module that holds message passing layers")
    return {id(m): name for name, m in model.named_modules()}  # of a module with several names the first, as torch


@contextmanager
def capture_weights(model: nn.Module) -> Iterator[dict[str, list[EdgeWeights]]]:
    """Collect the weights of every message passing layer of a model: module name → one entry a call.

    The forward is unchanged to the last bit; the weights are made beside it, without gradient and before dropout.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing, capture_weights
        >>> from mpnn.neighbours import AllTokens
        >>> from mpnn.weights import QKSoftmax
        >>> model = torch.nn.Sequential(MessagePassing(AllTokens(), QKSoftmax(8, heads=2)))
        >>> with capture_weights(model) as weights:
        ...     y = model(torch.ones(3, 8))
        >>> weights["0"][0].weight.shape
        torch.Size([9, 2])
    """
    names = _names(model)
    found: dict[str, list[EdgeWeights]] = {}

    def listener(layer: nn.Module, kernel: str, call: Call) -> None:
        if id(layer) in names:
            with torch.no_grad():
                found.setdefault(names[id(layer)], []).append(
                    returned(dataclasses.replace(call, nodes=dict(call.nodes)))
                )

    with _listen(listener):
        yield found


@contextmanager
def trace_kernels(model: nn.Module) -> Iterator[dict[str, str]]:
    """Note which kernel ran each message passing layer of a model: module name → kernel of the last call.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing, trace_kernels
        >>> from mpnn.neighbours import Full
        >>> from mpnn.weights import Static
        >>> model = torch.nn.Sequential(MessagePassing(Full(3, 2), Static()))
        >>> with trace_kernels(model) as kernels:
        ...     y = model(torch.ones(5, 3, 1))
        >>> kernels
        {'0': 'linear'}
    """
    names = _names(model)
    found: dict[str, str] = {}

    def listener(layer: nn.Module, kernel: str, call: Any) -> None:
        if id(layer) in names:
            found[names[id(layer)]] = kernel

    with _listen(listener):
        yield found
