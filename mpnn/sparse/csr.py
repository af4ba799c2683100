"""Csr: the edges of a graph in compressed rows, with the transpose, made once and kept with the edges."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from mpnn.edges import Edges
from mpnn.memo import lasting, outside

_TOGETHER = 1 << 18  # edges, over all heads, up to which one product serves all heads


class Csr:
    """Edges in compressed rows of ``rows`` targets, with the transpose, made once and kept with the edges.

    ``order``: the caller's edge at each place · ``edges``: the edges in this order · ``row``, ``col``: their ends.
    """

    def __init__(self, row: Tensor, col: Tensor, order: Tensor, start: Tensor, shape: tuple[int, int]) -> None:
        self.row, self.order, self.shape = row, order, shape
        small = max(row.shape[0], *shape) < 2**31  # MKL's 32-bit products are the faster ones
        kind = torch.int32 if small else torch.int64
        self.start, self.col = start.to(kind), col.to(kind)
        self.offsets = start
        self._col = col
        self._transpose: Csr | None = None
        self._last: tuple[Any, int | None, Tensor] | None = None
        self._turned: tuple[Any, int, Tensor] | None = None
        self._ones: dict[torch.dtype, Tensor] = {}
        self.cache: dict[Any, Any] = {}
        self.edges: Edges  # in this order

    @staticmethod
    def of(edges: Edges, targets: int, sources: int, relations: int = 1) -> Csr:
        """The rows of these edges; with several relations one row for each (relation, target)."""
        key = ("csr", targets, sources, relations)
        if key not in edges.cache:
            with outside() if lasting(edges.source) else nullcontext():
                edges.cache[key] = Csr._made(edges, targets, sources, relations)
        return edges.cache[key]

    @staticmethod
    def _made(edges: Edges, targets: int, sources: int, relations: int) -> Csr:
        row = edges.target if relations == 1 or edges.relation is None else edges.relation * targets + edges.target
        by = Edges(edges.source, row).rows("target", targets * relations)
        csr = Csr(row[by.order], edges.source[by.order], by.order, by.start, (targets * relations, sources))
        csr.edges = edges.take(by.order)
        return csr

    def through(self, change: Callable[[Tensor], Tensor]) -> Csr:
        """The same rows of changed tensors, with nothing kept."""
        with outside():
            row, col, order, start = (change(t) for t in (self.row, self._col, self.order, self.offsets))
            return Csr(row, col, order, start, self.shape)

    def matrix(self, values: Tensor) -> Tensor:
        """The sparse matrix with these values, in this order."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
            Csr.matrix = Csr._matrix  # type: ignore[method-assign]  # torch warns once a process
            return self._matrix(values)

    def _matrix(self, values: Tensor) -> Tensor:
        return torch.sparse_csr_tensor(self.start, self.col, values, self.shape, check_invariants=False)

    def kept(self, weight: Tensor) -> Tensor:
        """The matrix of weights (1, E), kept while the same tensor comes again."""
        if not lasting(weight):
            return self.matrix(weight[0].contiguous())
        if self._last is None or self._last[0]() is not weight or self._last[1] != weight._version:
            self._last = (weakref.ref(weight), weight._version, self.matrix(weight.detach()[0].contiguous()))
        return self._last[2]

    def turned(self, weight: Tensor) -> Tensor | None:
        """Weights without a gradient in the transpose's order, kept while the same tensor comes again."""
        if weight.requires_grad or not lasting(weight):
            return None
        if self._turned is None or self._turned[0]() is not weight or self._turned[1] != weight._version:
            turned = weight.index_select(-1, self.transpose.order)
            self._turned = (weakref.ref(weight), weight._version, turned)
        return self._turned[2]

    def ones(self, dtype: torch.dtype) -> Tensor:
        """Weights of 1: (1, E)."""
        if dtype not in self._ones:
            with outside():
                self._ones[dtype] = torch.ones(1, self.row.shape[0], dtype=dtype, device=self.row.device)
        return self._ones[dtype]

    def repeated(self, times: int) -> Csr | None:
        """These rows once for each of several heads, one matrix below and beside the other; None where that is large.

        On small graphs a call costs more than its numbers, so that one product for all heads is the faster way.
        """
        edges = self.row.shape[0]
        if not 1 < times <= _TOGETHER // max(1, edges):
            return None
        key = ("repeated", times)
        if key not in self.cache:
            with outside() if lasting(self._col) else nullcontext():
                head = torch.arange(times, device=self.row.device)[:, None]
                row = (head * self.shape[0] + self.row).reshape(-1)
                col = (head * self.shape[1] + self._col).reshape(-1)
                start = (head * edges + self.offsets[:-1]).reshape(-1)
                start = torch.nn.functional.pad(start, (0, 1), value=times * edges)
                shape = times * self.shape[0], times * self.shape[1]
                self.cache[key] = Csr(row, col, self.order, start, shape)
        return self.cache[key]

    @property
    def transpose(self) -> Csr:
        """The same edges by source; its ``order`` counts places of this one."""
        if self._transpose is None:
            with outside() if lasting(self._col) else nullcontext():
                self._transpose = self._flipped()
        return self._transpose

    def _flipped(self) -> Csr:
        by = Edges(self._col, self._col).rows("target", self.shape[1])
        flipped = Csr(self._col[by.order], self.row[by.order], by.order, by.start, (self.shape[1], self.shape[0]))
        back = Csr.__new__(Csr)
        back.__dict__.update(self.__dict__)
        back.order = torch.argsort(by.order)
        back._transpose = flipped
        flipped._transpose = back
        return flipped
