"""What every neighbourhood is: a rule that says which pairs (target, source) meet."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mpnn.checks import integers, values
from mpnn.edges import Edges
from mpnn.memo import Revised, outside
from mpnn.tokens.base import Tokens

Layout = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
_CACHED_EDGES = 1 << 23  # entries of larger edge lists are made anew rather than kept


class Neighbours(Revised, ABC):
    """Who sends to whom: a rule without parameters.

    A subclass writes ``edges(targets, sources, *, rows=None, tokens=None) -> Edges`` for ``targets`` = N and
    ``sources`` = M tokens; ``rows`` is a slice of targets (target numbers stay absolute), ``tokens`` the call's
    :class:`~mpnn.Tokens`, or a pair (source, target) of them.

    Attributes: ``relations``, how many kinds of pair there are; ``pairs``, how many pairs if they are fixed (then
    ``edges().index`` numbers them), else None; ``axes``, the width of ``offset``; ``listed``, True where the pairs are
    few
    (of the order of the tokens), so that the sparse kernels may list them all.

    Example::

        >>> import torch
        >>> from mpnn.neighbours import Edges, Neighbours
        >>> class Previous(Neighbours):
        ...     def edges(self, targets, sources, *, rows=None, tokens=None):
        ...         i = torch.arange(targets)[rows or slice(None)]
        ...         i = i[i > 0]
        ...         return Edges(i - 1, i)
        >>> Previous().edges(3, 3).source
        tensor([0, 1])
    """

    relations: int = 1
    pairs: int | None = None
    axes: int = 0
    causal: bool = False
    counts_slots = False  # targets are the last N of the sources (causal, windows), for default positions
    listed = False  # whether edges() are few enough to be listed whole, which opens the sparse kernels
    enumerates = False  # of our own rules: whether edges() is cheap, sorted by target, and honours rows
    reads_tokens = False  # whether edges() reads features or coordinates, so that no call's edges serve another

    @abstractmethod
    def edges(self, targets: int, sources: int, *, rows: slice | None = None, tokens: Any = None) -> Edges:
        """The pairs of ``targets`` and ``sources``."""

    def target_count(self, sources: int, tokens: Any = None) -> int | None:
        """The number of targets, where this rule fixes its own; None where the caller's tokens are the targets."""
        return None

    def centres(self, tokens: Any, device: torch.device) -> Tensor | None:
        """The source that stands for each target, where this rule fixes targets and they have one."""
        return None

    def check(self, targets: int, sources: int, tokens: Any) -> None:
        """Raise where these numbers of tokens do not fit."""

    def degree(self, targets: int, sources: int) -> int:
        """An upper bound on the sources of one target."""
        return sources

    def pair_layout(self) -> Layout | None:
        """Where the pair axes stand in ``Static.weight``: before out, between out and in, after in."""
        return None if self.pairs is None else ((self.pairs,), (), ())

    def pair_ids(self, edges: Edges, targets: int, sources: int) -> Tensor:
        """The number of each edge's pair in the flattened pair axes."""
        if edges.index is None:
            raise ValueError(f"expected {type(self).__name__}.edges to give index=, the number of each pair, got None")
        return edges.index

    def key(self) -> tuple | None:
        """The values that this rule is made of; None where only identity tells rules apart."""
        return None

    def __eq__(self, other: object) -> bool:
        key = self.key()
        if key is None or type(self) is not type(other):
            return self is other
        return key == other.key()

    def __hash__(self) -> int:
        key = self.key()
        return id(self) if key is None else hash((type(self), key))

    def row_blocks(self, targets: int, sources: int, edges: int) -> Iterator[slice]:
        """Slices of targets of about ``edges`` edges each."""
        step = max(1, edges // max(1, self.degree(targets, sources)))
        return (slice(a, min(a + step, targets)) for a in range(0, targets, step))

    def _apply(self, fn, recurse=True):
        """Move tensors between devices; dtypes stay."""
        for name, tensor in self._buffers.items():
            if tensor is not None:
                moved = fn(tensor)
                self._buffers[name] = moved if moved.dtype == tensor.dtype else tensor.to(moved.device)
        for child in self.children():
            child._apply(fn)
        return self


_made: OrderedDict[tuple, Edges] = OrderedDict()


def enumerate_edges(rule: Neighbours, targets: int, sources: int, tokens: Any, device: torch.device) -> Edges:
    """All edges of a rule that depends on sizes only, kept for the last few of them."""
    if not rule.enumerates and type(rule).__module__ != "mpnn.neighbours.graph":
        made = own_edges(rule, rule.edges(targets, sources, tokens=tokens), targets, sources, device)
        return made.take(torch.argsort(made.target * max(1, sources) + made.source, stable=True))
    if torch.compiler.is_compiling() or rule.key() is None or rule.reads_tokens or _ragged(tokens):
        return rule.edges(targets, sources, tokens=tokens)
    grid = tokens[0].grid if isinstance(tokens, tuple) else tokens.grid if tokens is not None else None
    key = (rule, targets, sources, grid, device)
    found = _made.get(key)
    if found is None:
        with outside():
            found = rule.edges(targets, sources, tokens=tokens)
        if len(found) <= _CACHED_EDGES:
            _made[key] = found
            if len(_made) > 16:
                _made.popitem(last=False)
    else:
        _made.move_to_end(key)
    return found


def own_edges(rule: Neighbours, edges: Any, targets: int, sources: int, device: torch.device) -> Edges:
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
    return Edges(*moved, valid=edges.valid)  # type: ignore[arg-type]


def _ragged(tokens: Any) -> bool:
    return any(t is not None and t.batch is not None for t in two(tokens))


def row_numbers(rows: slice | None, targets: int, device: torch.device | None = None) -> Tensor:
    """The targets of a slice as a tensor."""
    if rows is None:
        return torch.arange(targets, device=device)
    start, stop, _ = rows.indices(targets)
    return torch.arange(start, stop, device=device)


class SameSet(tuple):
    """(source, target) tokens that are one set seen twice, as keys and queries are: target i is source i."""


def two(tokens: Any) -> tuple[Tokens | None, Tokens | None]:
    """(source, target) tokens of a call."""
    return tokens if isinstance(tokens, tuple) else (tokens, tokens)


def device_of(tokens: Any) -> torch.device | None:
    """The device on which edges are wanted."""
    source, _ = two(tokens)
    return None if source is None else source.x.device


def extent(tokens: Any, targets: int, sources: int, i: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For targets ``i``: the first source of their graph, the one after its last, and the slot that i itself has.

    Without ``batch`` there is one graph, and target i sits at slot i + M - N: the ends are aligned.
    """
    source, target = two(tokens)
    if source is None or source.batch is None:
        zero = torch.zeros_like(i)
        return zero, zero + sources, i + (sources - targets)
    batch_s, batch_t = source.batch.long(), target.batch.long()  # type: ignore[union-attr]
    graph = batch_t[i]
    low, high = torch.searchsorted(batch_s, graph), torch.searchsorted(batch_s, graph, right=True)
    end_t = torch.searchsorted(batch_t, graph, right=True)
    return low, high, high - (end_t - i)


def spread(i: Tensor, low: Tensor, high: Tensor, sources: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """The pairs of targets ``i`` with the sources low ≤ j < high of each: (target, source, valid)."""
    if torch.compiler.is_compiling():
        j = torch.arange(sources, device=i.device).expand(i.shape[0], sources)
        valid = (j >= low[:, None]) & (j < high[:, None])
        return i[:, None].expand(-1, sources).reshape(-1), j.reshape(-1), valid.reshape(-1)
    count = (high - low).clamp(min=0)
    target = torch.repeat_interleave(i, count)
    start = torch.repeat_interleave(low - (count.cumsum(0) - count), count)
    return target, torch.arange(target.shape[0], device=i.device) + start, None


def product(shape: tuple[int, ...]) -> int:
    """Number of cells."""
    return math.prod(shape)
