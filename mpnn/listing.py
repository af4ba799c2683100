"""Listing: the edges of a rule as kernels and expressions read them, checked, sorted, without duplicates, and kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpnn.checks import integers, values
from mpnn.edges import Edges
from mpnn.memo import derived, outside
from mpnn.slots import device_of, two

_CACHED_EDGES = 1 << 23  # entries of larger edge lists are made anew rather than kept
_made: OrderedDict[tuple, Any] = OrderedDict()


def enumerate_edges(rule: Any, targets: int, sources: int, tokens: Any, device: torch.device) -> Edges:
    """All edges of a rule that depends on sizes only, kept for the last few of them."""
    if torch.compiler.is_compiling() and sources == 0:  # not even rows that are no pair, whose sources would be read
        made = rule.edges(targets, sources, tokens=tokens)
        return made.take(torch.zeros(0, dtype=torch.int64, device=device))
    if not rule.enumerates and type(rule).__module__ != "mpnn.neighbours.graph":
        made = own_edges(rule, rule.edges(targets, sources, tokens=tokens), targets, sources, device, tokens)
        return made.take(torch.argsort(made.target * max(1, sources) + made.source, stable=True))
    if not rule.enumerates:  # a graph keeps its own
        return rule.edges(targets, sources, tokens=tokens)
    return kept_for(
        rule, "edges", targets, sources, tokens, device, lambda: rule.edges(targets, sources, tokens=tokens)
    )


def kept_for(
    rule: Any, name: str, targets: int, sources: int, tokens: Any, device: Any, make: Callable[[], Any]
) -> Any:
    """``make()``, kept for the last few rules, sizes, grids and batches; anew where it depends on more than these."""
    if torch.compiler.is_compiling() or rule.key() is None or rule.reads_tokens or not rule.foreseen:
        return make()
    ends = [t for t in two(tokens) if t is not None]
    key = (name, rule.stamp(), targets, sources, ends[0].grid if ends else None, device)
    batches = [t.batch for t in ends if t.batch is not None]
    if batches:  # with the rule, so that nothing else takes the identity of one inside it
        return derived(lambda: (rule, make()), key, *batches)[1]
    # what is made from tensors lives as long as the rule that holds these
    store = rule.__dict__.setdefault("_made", OrderedDict()) if rule.versions() else _made
    found = store[key][1] if key in store else None
    if found is None:
        with outside():
            found = make()
        if not isinstance(found, Edges) or len(found) <= _CACHED_EDGES:
            store[key] = (None if store is not _made else rule, found)
            if len(store) > 16:
                store.popitem(last=False)
    else:
        store.move_to_end(key)
    return found


def own_edges(rule: Any, edges: Any, targets: int, sources: int, device: torch.device, tokens: Any = None) -> Edges:
    """What a person's own rule returned, checked and moved to the tokens' device."""
    name = f"{type(rule).__name__}.edges"
    if not isinstance(edges, Edges):
        raise TypeError(f"expected {name} to return Edges, got {type(edges).__name__}")
    for field, limit in (("source", sources), ("target", targets), ("relation", rule.relations)):
        ends = getattr(edges, field)
        if ends is None and field == "relation":
            continue
        if not isinstance(ends, Tensor) or ends.ndim != 1 or ends.shape != edges.source.shape:
            got = tuple(ends.shape) if isinstance(ends, Tensor) else type(ends).__name__
            raise ValueError(f"expected {name} to give {field} as a tensor (E,), got {got}")
        integers(f"{field} of {name}", ends)
        values((ends >= 0) & (ends < limit), IndexError, f"expected {name} to give {field} in 0 … {limit - 1}", ends)
    fields = (edges.source.long(), edges.target.long(), None if edges.relation is None else edges.relation.long())
    moved = [None if t is None else t.to(device) for t in (*fields, edges.offset, edges.index)]
    joined_graphs(name, moved[1], moved[0], tokens, edges.valid)  # type: ignore[arg-type]
    return Edges(*moved, valid=edges.valid)  # type: ignore[arg-type]


def joined_graphs(name: str, target: Tensor, source: Tensor, tokens: Any, meets: Tensor | None) -> None:
    """Refuse pairs of a person's own rule that join two graphs of the batch; ``meets``: which of them are pairs."""
    ends = two(tokens)
    if all(t is None or t.batch is None for t in ends):
        return
    batch_s, batch_t = (t.batch for t in ends)  # type: ignore[union-attr]
    same = batch_s[source] == batch_t[target]  # type: ignore[index]
    text = f"expected {name} to give pairs inside the graphs of batch; one joins two, from source node"
    values(same if meets is None else same | ~meets, ValueError, text, source.expand_as(same))


def distinct_edges(rule: Any, targets: int, sources: int, rows: slice | None, tokens: Any) -> Edges:
    """A rule's distinct pairs by target and source; of duplicates the first stays."""
    device = device_of(tokens) or torch.device("cpu")
    made = enumerate_edges(rule, targets, sources, tokens, device) if rows is None else None
    if made is None:
        made = rule.edges(targets, sources, rows=rows, tokens=tokens)
        if not (rule.enumerates or hasattr(rule, "built")):  # a person's own may return more than it was asked for
            assert rows is not None
            made = own_edges(rule, made, targets, sources, device, tokens)
            made = made.take(((made.target >= rows.start) & (made.target < rows.stop)).nonzero().squeeze(-1))
    if rule.distinct:
        return made
    key = made.target * max(1, sources) + made.source
    if made.valid is not None:
        key = key.masked_fill(~made.valid, -1)
    key, order = key.sort(stable=True)
    first = torch.ones_like(key, dtype=torch.bool)
    first[1:] = key[1:] != key[:-1]
    made = made.take(order)
    made.valid = first if made.valid is None else first & made.valid
    return made.compact()


def joined_edges(a: Edges, b: Edges, relations: int, sources: int, offsets: bool, index: Tensor | None) -> Edges:
    """Two lists of other pairs as one, by target and source; the second's relations are numbered after the first's."""
    kinds = [torch.zeros_like(e.source) if e.relation is None else e.relation for e in (a, b)]
    relation = torch.cat([kinds[0], kinds[1] + relations])
    offset = torch.cat([a.offset, b.offset]) if offsets else None  # type: ignore[list-item]
    valid = None
    if a.valid is not None or b.valid is not None:
        each = [torch.ones_like(e.source, dtype=torch.bool) if e.valid is None else e.valid for e in (a, b)]
        valid = torch.cat(each)
    target, source = torch.cat([a.target, b.target]), torch.cat([a.source, b.source])
    order = torch.argsort(target * max(1, sources) + source, stable=True)
    return Edges(source, target, relation, offset, index, valid=valid).take(order)
