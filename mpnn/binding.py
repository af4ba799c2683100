"""Binding: a call's arguments, checked at the door and joined into what kernels read."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from mpnn.checks import bool_mask, broadcastable, compiling, readable, same_device, values
from mpnn.edges import Edges
from mpnn.kernels.base import Call
from mpnn.memo import derived
from mpnn.neighbours import Graph, Neighbours
from mpnn.neighbours.graph import check_rows, read
from mpnn.tokens.base import Tokens

FIELDS = ("mask", "positions", "coordinates", "batch", "grid")


def as_tokens(name: str, x: Any, **given: Any) -> Tokens:
    """Tokens of a tensor and keywords; a field that the tokens have already may not be given again."""
    given = {k: v for k, v in given.items() if v is not None}
    bool_mask("mask", given.get("mask"))
    if isinstance(x, Tokens):
        for field in given:
            if getattr(x, field) is not None:
                raise ValueError(f"expected {field} once, got it in {name}'s Tokens and as {field}=; leave one of them out")
        return x.replace(**given) if given else x
    if not isinstance(x, Tensor):
        raise TypeError(f"expected {name} to be a tensor (..., N, C), Tokens or a pair of them, got {type(x).__name__}")
    return Tokens(x, **given)


def token_sets(neighbours: Neighbours, x: Any, source: Any, fields: dict[str, Any]) -> tuple[Tokens, Tokens | None]:
    """(source, target) tokens of a call; target is None where the neighbourhood fixes targets and the call has none."""
    others = {k: v for k, v in fields.items() if k != "mask"}
    if isinstance(x, tuple | list):
        if source is not None:
            raise ValueError("expected the sources once, got (x_source, x_target) and source=; leave one of them out")
        if len(x) != 2:
            raise ValueError(f"expected a pair (x_source, x_target), got {len(x)} entries")
        return as_tokens("x_source", x[0], mask=fields["mask"]), as_tokens("x_target", x[1], **others)
    if source is not None:
        return as_tokens("source", source, mask=fields["mask"]), as_tokens("x", x, **others)
    tokens = as_tokens("x", x, **fields)
    return tokens, (tokens if neighbours.target_count(tokens.x.shape[-2], tokens) is None else None)


def check_batches(neighbours: Neighbours, source: Tokens, target: Tokens | None) -> None:
    """Refuse a batch that is not sorted, on one side only, or where units have fixed places."""
    batches = [t.batch for t in (source, target) if t is not None]
    if all(b is None for b in batches):
        return
    if any(b is None for b in batches):
        raise ValueError("expected batch for targets and sources, got one; pass source=Tokens(..., batch=...) and batch=")
    if neighbours.pair_layout() is not None and not isinstance(neighbours, Graph) and getattr(neighbours, "max_tokens", None) is None:
        raise ValueError(f"batch= is refused where units have fixed places, got {neighbours}; use leading dimensions")
    if type(neighbours).__name__ == "Grid":
        raise ValueError(f"batch= is refused on a grid, got {neighbours}; use leading dimensions (B, N, C)")
    for b in batches:
        assert b is not None
        if readable(b):
            derived(lambda b=b: values(b[1:] >= b[:-1], ValueError, "expected batch sorted ascending; sort the tokens by graph"), "sorted", b)
        elif compiling():
            values(b[1:] >= b[:-1], ValueError, "expected batch sorted ascending; sort the tokens by graph")


def check_pair_mask(pair_mask: Tensor | None, lead: tuple[int, ...], heads: int, n: int, m: int, device: torch.device) -> None:
    """Refuse a pair mask that is not bool or does not broadcast."""
    bool_mask("pair_mask", pair_mask)
    if pair_mask is not None:
        same_device("pair_mask", pair_mask, device)
        broadcastable("pair_mask", pair_mask.shape, (*lead, heads, n, m), "(..., heads, N, M)")


@dataclasses.dataclass
class EdgeData:
    """The edges of a call and what belongs to them, before loops are filled in."""

    explicit: Edges | None = None
    attr: Tensor | None = None
    weight: Tensor | None = None
    rule: Graph | None = None


def edge_data(
    neighbours: Neighbours, n: int, m: int, one_set: bool, edge_index: Any, attr: Tensor | None, kind: Tensor | None, weight: Tensor | None
) -> EdgeData:
    """The edges of a call: the layer's own graph, the call's, or none where the rule makes them."""
    if not isinstance(neighbours, Graph):
        for name, value in (("edge_index", edge_index), ("edge_type", kind)):
            if value is not None:
                raise ValueError(f"{name} would be ignored by {neighbours}, which makes its own edges; use Graph() or leave it out")
        return EdgeData(None, attr, weight)
    if neighbours.self_loops and not one_set:
        raise ValueError(f"self_loops={neighbours.self_loops!r} is refused between two node sets, got sources and targets")
    built = edge_index if isinstance(edge_index, Graph) else neighbours if neighbours.built else None
    if built is neighbours and edge_index is not None:
        raise ValueError(f"expected edge_index once, got it in {neighbours} and at the call; leave one of them out")
    if built is None and edge_index is None:
        raise ValueError(f"expected edge_index at the call, since {neighbours} was built without edges, got None")
    if built is not None:
        for rule, unset in (("self_loops", None), ("relations", 1)):
            theirs, ours = getattr(built, rule), getattr(neighbours, rule)
            if theirs not in (unset, ours):
                raise ValueError(f"expected a graph with {rule}={ours!r}, as the layer's, got {theirs!r}")
        built.check(n, m, None)
        index = built.edge_index
        pairs = (("edge_attr", attr, built.edge_attr), ("edge_type", kind, built.edge_type), ("edge_weight", weight, built.edge_weight))
        for name, given, own in pairs:
            if given is not None and own is not None:
                raise ValueError(f"expected {name} once, got it in the graph and at the call; leave one of them out")
        attr, kind, weight = (own if given is None else given for _, given, own in pairs)
    elif type(edge_index) is Tensor and edge_index.layout == torch.strided:
        index = edge_index
    else:
        index, values_, shape = read(edge_index)
        if not compiling() and isinstance(edge_index, Tensor) and edge_index.layout == torch.strided:
            index = derived(lambda: index.clone(), "index", edge_index)
        if values_ is not None and weight is not None:
            raise ValueError("expected edge weights once, got edge_weight= and a sparse matrix with values")
        if shape is not None and shape != (m, n):
            raise ValueError(f"expected a sparse matrix A[target, source] of shape {(n, m)}, got {(shape[1], shape[0])}")
        weight = values_ if weight is None else weight
    if kind is None and neighbours.relations > 1:
        raise ValueError(f"expected edge_type (E,) in 0 … {neighbours.relations - 1} for {neighbours}, got None")
    if kind is not None and neighbours.relations == 1:
        raise ValueError("edge_type would be ignored by a Graph of one relation; build it with Graph(relations=…)")
    check_rows(attr, kind, weight, index.shape[-1], ("edge_attr", "edge_type", "edge_weight"))
    return EdgeData(neighbours.link(index, kind, n, m), attr, weight, neighbours)


def check_graphs(edges: Edges, source: Tokens, target: Tokens | None) -> None:
    """Refuse an edge between two graphs of a batch."""
    if source.batch is None or target is None or target.batch is None:
        return
    key = ("graphs", id(source.batch), source.batch._version if readable(source.batch) else None)
    if key in edges.cache:
        return
    same = source.batch[edges.source] == target.batch[edges.target]
    same = same if edges.valid is None else same | ~edges.valid
    values(same, ValueError, "expected edges inside the graphs of batch, one joins two graphs: source node", edges.source)
    if not compiling():
        edges.cache[key] = source.batch  # kept, so that no other tensor takes its identity


def slots(mask: Tensor | None, batch: Tensor | None, count: int, device: torch.device) -> Tensor:
    """Positions of tokens: cumsum(mask) - 1, or 0 … N - 1, restarting in each graph."""
    place = torch.arange(count, device=device) if mask is None else mask.long().cumsum(-1) - 1
    if batch is None:
        return place
    start = torch.searchsorted(batch.long(), batch.long())
    before = start if mask is None else (mask.long().cumsum(-1) - mask.long())[start]
    return place - before


def default_positions(call: Call, one_set: bool) -> tuple[Tensor, Tensor]:
    """(source, target) positions of a call, where it does not give them."""
    source, target = call.tokens
    device = source.x.device
    at_source = slots(source.mask, source.batch, call.sources, device) if source.positions is None else source.positions
    if one_set:
        return at_source, at_source
    if target is not None and target.positions is not None:
        return at_source, target.positions
    if not call.neighbours.counts_slots:
        batch = None if target is None else target.batch
        return at_source, slots(None, batch, call.targets, device)
    if call.targets <= call.sources and source.batch is None:
        return at_source, at_source[..., call.sources - call.targets :]
    if source.batch is None:
        return at_source, torch.arange(call.targets, device=device) + (call.sources - call.targets)
    raise ValueError("expected positions= for targets in a batch with source=, where their places in each graph are not told")
