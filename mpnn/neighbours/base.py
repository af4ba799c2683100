"""What every neighbourhood is: a rule that says which pairs (target, source) meet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from mpnn.cover import Cover, band
from mpnn.edges import Edges
from mpnn.listing import enumerate_edges, joined_graphs
from mpnn.memo import Revised
from mpnn.slots import device_of

Layout = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


class Neighbours(Revised, ABC):
    """Who sends to whom: a rule without parameters.

    A subclass writes ``edges(targets, sources, *, rows=None, tokens=None) -> Edges`` for ``targets`` = N and
    ``sources`` = M tokens; ``rows`` is a slice of targets (target numbers stay absolute), ``tokens`` the call's
    :class:`~mpnn.Tokens`, or a pair (source, target) of them.
    It may also have ``contains(target, source) -> bool``, elementwise on numbers of tokens, which says the same and
    lets attention run by the fused kernel instead of a list; and it may stand in expressions with ``|``, ``&``, ``-``.

    Attributes: ``relations``, how many kinds of pair there are; ``pairs``, how many pairs if they are fixed (then
    ``edges().index`` numbers them), else None; ``axes``, the width of ``offset``; ``listed``, True where the pairs are
    few (of the order of the tokens), so that the sparse kernels may list them all.

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
    reads_grid = False  # whether the call's grid= is read
    fixed_places = False  # whether units have fixed places, so that a batch of graphs is refused
    complete = False  # whether every pair of tokens meets, in whatever batch
    contains: Callable[[Tensor, Tensor], Tensor] | None = None  # a person's own: (target, source) → bool, optional

    @property
    def distinct(self) -> bool:
        """Whether :meth:`edges` names no pair twice; of a person's own rule nobody knows."""
        return self.enumerates

    @property
    def foreseen(self) -> bool:
        """Whether the pairs are known to depend on the sizes and what this rule holds, where no token is read: a
        person's own ``edges`` may read the tokens at each call, and nobody knows; their ``contains`` is given none."""
        ours = self.enumerates or hasattr(self, "built")  # and no subclass with edges of its own
        return self.contains is not None or (ours and type(self).edges.__module__.startswith("mpnn."))

    @property
    def tiled(self) -> bool:
        """Whether :meth:`cover` puts the pairs into tiles that dense attention may run."""
        return self.contains is not None and not self.listed

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

    def holds(self, target: Tensor, source: Tensor, targets: int, sources: int, tokens: Any = None) -> Tensor:
        """Which of these pairs are the rule's: bool, of the shape that ``target`` and ``source`` broadcast to."""
        if self.contains is not None:
            kept = self.contains(target, source)
            joined_graphs(f"{type(self).__name__}.contains", target, source, tokens, kept)
            return kept
        edges = enumerate_edges(self, targets, sources, tokens, target.device)
        keys, wanted = edges.keys(sources), target * max(1, sources) + source
        if torch.compiler.is_compiling():  # how many there are may depend on values: one more, which no pair has
            keys = torch.cat([keys, keys.new_full((1,), torch.iinfo(keys.dtype).max)])
        elif len(keys) == 0:
            return torch.zeros_like(wanted, dtype=torch.bool)
        return keys[torch.searchsorted(keys, wanted).clamp(max=keys.shape[0] - 1)] == wanted

    def cover(self, targets: int, sources: int, tokens: Any = None) -> Cover:
        """The tiles of a tiled rule, see ``mpnn.cover``; of a person's own, some targets with all sources."""
        first = torch.zeros(1, dtype=torch.int64, device=device_of(tokens))
        return band(first, first + targets, first, first, first + sources, tile=128)

    def versions(self) -> tuple:
        """Tells apart the states of tensors that the rule holds."""
        return ()

    def state(self) -> Any:
        """Changes with every assignment to this rule or one inside it, and every write to a tensor that they hold."""
        return self.revision

    def stamp(self) -> tuple:
        """What this rule is now, by value: equal stamps mean equal pairs."""
        key = self.key()
        return (type(self), key) if key is not None else (type(self), id(self), self.state())

    def __or__(self, other: Neighbours) -> Neighbours:
        return _combined("|", self, other)

    def __and__(self, other: Neighbours) -> Neighbours:
        return _combined("&", self, other)

    def __sub__(self, other: Neighbours) -> Neighbours:
        return _combined("-", self, other)

    def operands(self) -> list[Neighbours]:
        """The rules that a union joins; else this one."""
        return [self]

    def within(self, other: Neighbours) -> bool:
        """Whether all its pairs are known to be ``other``'s too, whatever the tokens."""
        return any(rule.complete or rule == self for rule in other.operands())

    def alone(self) -> Neighbours:
        """A simpler rule that meets the same pairs, where one is known; relations, offsets and data may differ."""
        return self

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

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_made", "_parts_of")}

    def _apply(self, fn, recurse=True):
        """Move tensors between devices; dtypes stay."""
        for name, tensor in self._buffers.items():
            if tensor is not None:
                moved = fn(tensor)
                self._buffers[name] = moved if moved.dtype == tensor.dtype else tensor.to(moved.device)
        for child in self.children():
            child._apply(fn)
        return self


OPERATORS: dict[str, Callable[[Neighbours, Neighbours], Neighbours]] = {}  # filled by the file of the operators


def _combined(sign: str, left: Neighbours, right: Any) -> Neighbours:
    return OPERATORS[sign](left, right) if isinstance(right, Neighbours) else NotImplemented
