"""Grid: the k × k window of a regular grid in one, two or three dimensions (any number, in fact)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mpnn.checks import one_of, positive
from mpnn.cover import Cover
from mpnn.cover import axis as axis_tiles
from mpnn.cover import product as grid_tiles
from mpnn.edges import Edges
from mpnn.lattice import BORDERS, Axis, windows
from mpnn.neighbours.base import Layout, Neighbours
from mpnn.slots import device_of, grid_size, product, row_numbers


class Grid(Neighbours):
    """The window of a convolution: N(i) = {stride · i - padding + dilation · k : 0 ≤ k < kernel_size}, axis by axis.

    Tokens are the cells in row-major order. ``border`` decides what an edge cell sees: ``zeros`` fewer cells, ``clamp``
    the window shifted inside (neighbourhood attention), ``circular``, ``reflect`` and ``replicate`` what ``F.pad`` puts
    there. Even kernels with ``padding="same"`` pad the extra cell at the end.

    Relations: the offset in the kernel, row-major; under ``clamp`` the true offset, 2k - 1 per axis.
    Pairs: target cells × offsets.

    Args:
        size: the grid's shape, or an int for one axis; without it the call gives ``grid=``.
        kernel_size, stride, dilation: an int for every axis, or one int per axis.
        axes: the number of axes where neither ``size`` nor ``kernel_size`` tells.
        padding: "same" (stride 1), "valid", an int, or one int per axis.

    Raises:
        ValueError: for numbers that do not fit, "same" with a stride, an even kernel with ``clamp``; at the call where
            the tokens are not the grid's cells or the grid is smaller than the window that ``clamp`` shifts.

    Source: ``torch.nn.Conv2d``; ``clamp`` is neighbourhood attention (Hassani et al., 2023), `arXiv:2204.07143
    <https://arxiv.org/abs/2204.07143>`_.

    Example::

        >>> from mpnn.neighbours import Grid
        >>> Grid(4, 3).edges(4, 4).source
        tensor([0, 1, 0, 1, 2, 1, 2, 3, 2, 3])
        >>> Grid((28, 28), 5, stride=2, padding=2).target_size((28, 28))
        (14, 14)
    """

    enumerates = True
    listed = True
    reads_grid = fixed_places = True

    def __init__(  # type: ignore[no-untyped-def]
        self, size=None, kernel_size=3, *, axes=None, stride=1, dilation=1, padding="same", border="zeros"
    ) -> None:  # fmt: skip
        super().__init__()
        size = (size,) if isinstance(size, int) else size
        given = [len(v) for v in (size, kernel_size, stride, dilation, padding) if isinstance(v, tuple | list)]
        if axes is not None:
            given.append(positive("axes", axes))
        if not given:
            raise ValueError(
                "expected size=, a tuple kernel_size= or axes=, to know the number of axes, got none of them"
            )
        if len(set(given)) > 1:
            raise ValueError(
                f"expected one number of axes for size, kernel_size, stride, dilation, padding and axes, got {given}"
            )
        self.axes = d = given[0]
        one_of("border", border, BORDERS)
        self.border = border
        self.kernel_size = self._per_axis("kernel_size", kernel_size, d)
        self.stride, self.dilation = self._per_axis("stride", stride, d), self._per_axis("dilation", dilation, d)
        self.size = None if size is None else self._per_axis("size", tuple(size), d)
        self.padding = padding if isinstance(padding, str) else self._per_axis("padding", padding, d, 0)
        if isinstance(padding, str):
            one_of("padding", padding, ("same", "valid"))
        self._check_rule()
        self.relation_shape = tuple(line.relations for line in self.lines)
        self.relations = product(self.relation_shape)
        if self.size is not None:
            self._check_size(self.size)
            self.pairs = product(self.target_size(self.size)) * product(self.kernel_size)

    @staticmethod
    def _per_axis(name: str, value: Any, axes: int, least: int = 1) -> tuple[int, ...]:
        return tuple(positive(name, v, least) for v in (value if isinstance(value, tuple | list) else (value,) * axes))

    def _check_rule(self) -> None:
        if self.padding == "same" and any(s > 1 for s in self.stride):
            raise ValueError(
                f"padding='same' is not supported for strided grids, got stride={self.stride}; pass padding= as an int"
            )
        if self.border == "clamp" and (self.padding != "same" or any(k % 2 == 0 for k in self.kernel_size)):
            raise ValueError(
                f"border='clamp' needs an odd kernel_size and padding='same', got {self.kernel_size}, {self.padding!r}"
            )

    @property
    def pads(self) -> list[tuple[int, int]]:
        """Padding before and after, per axis."""
        if self.padding == "same":
            total = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
            return [(t // 2, t - t // 2) for t in total]
        return [(0, 0)] * self.axes if self.padding == "valid" else [(int(p), int(p)) for p in self.padding]

    @property
    def lines(self) -> list[Axis]:
        """The windows of each axis."""
        each = zip(self.kernel_size, self.stride, self.dilation, self.pads, strict=True)
        return [Axis(k, s, d, *padding, self.border) for k, s, d, padding in each]

    def target_size(self, size: tuple[int, ...] | int) -> tuple[int, ...]:
        """The shape of the grid of targets for a grid of sources of shape ``size``."""
        size = (size,) if isinstance(size, int) else tuple(size)
        if len(size) != self.axes:
            raise ValueError(f"expected a size of {self.axes} axes for {self}, got {size}")
        return tuple(line.targets(n) for line, n in zip(self.lines, size, strict=True))

    def _check_size(self, size: tuple[int, ...]) -> None:
        for number, (line, n) in enumerate(zip(self.lines, size, strict=True)):
            line.check(self, number, n)

    def size_of(self, tokens: Any) -> tuple[int, ...]:
        """The grid's shape: the rule's own, or the call's."""
        return grid_size(self, self.size, tokens)

    def check(self, targets: int, sources: int, tokens: Any) -> None:
        size = self.size_of(tokens)
        if sources != product(size):
            raise ValueError(
                f"expected tokens of shape (..., {product(size)}, C) for {self}, got {int(sources)} tokens; "
                "pass grid= or flatten the image with PatchTokens, or cell by cell: image.flatten(-"
                f"{self.axes}).mT of (B, C, {', '.join(map(str, size))})"
            )
        if self.size is None:
            self._check_size(size)
        if targets != product(self.target_size(size)):
            raise ValueError(f"expected {product(self.target_size(size))} targets for {self}, got {int(targets)}")

    def target_count(self, sources: int, tokens: Any = None) -> int | None:
        size = self.size_of(tokens)
        return None if self.target_size(size) == size else product(self.target_size(size))

    def centres(self, tokens: Any, device: torch.device) -> Tensor | None:
        """The cell at the middle of each target's window (the nearest cell, where the middle lies in the padding)."""
        size = self.size_of(tokens)
        flat = torch.zeros((), dtype=torch.int64, device=device)
        for line, n in zip(self.lines, size, strict=True):
            middle = torch.arange(line.targets(n), device=device) * line.stride + line.middle
            flat = flat[..., None] * n + middle.clamp(0, n - 1)
        return flat.reshape(-1)

    def edges(self, targets: int, sources: int, *, rows: slice | None = None, tokens: Any = None) -> Edges:
        size = self.size_of(tokens)
        i = row_numbers(rows, targets, device_of(tokens))
        cell, valid, offset, relation = windows(self.lines, size, i)
        kernel = product(self.kernel_size)
        target = i[:, None].expand(-1, kernel).reshape(-1)
        index = target * kernel + torch.arange(kernel, device=i.device).repeat(i.shape[0])
        offset = offset.reshape(-1, self.axes)
        edges = Edges(cell.reshape(-1), target, relation.reshape(-1), offset, index, valid=valid.reshape(-1))
        if not self.distinct:  # wrapped and mirrored windows are in another order
            return edges.take(torch.argsort(target * sources + edges.source, stable=True)).compact()
        return edges.compact()

    @property
    def distinct(self) -> bool:
        """Not where a cell outside is another one inside."""
        return self.border in ("zeros", "clamp")

    @property
    def tiled(self) -> bool:
        """Not where a cell may be met twice."""
        if self.border == "circular" and self.size is not None:
            return all(line.span <= n for line, n in zip(self.lines, self.size, strict=True))
        return self.border in ("zeros", "clamp")

    def holds(self, target: Tensor, source: Tensor, targets: int, sources: int, tokens: Any = None) -> Tensor:
        size = self.size_of(tokens)
        out = self.target_size(size)
        kept = torch.ones((), dtype=torch.bool, device=target.device)
        for a in reversed(range(self.axes)):
            cell, valid, _, _ = self.lines[a].cells(size[a], torch.arange(out[a], device=target.device))
            table = valid.new_zeros(out[a], size[a])
            for k in range(cell.shape[1]):  # a cell may be met twice
                table[valid[:, k].nonzero().squeeze(-1), cell[:, k][valid[:, k]]] = True
            kept = kept & table[target % out[a], source % size[a]]
            target, source = target // out[a], source // size[a]
        return kept

    def cover(self, targets: int, sources: int, tokens: Any = None) -> Cover:
        size, device = self.size_of(tokens), device_of(tokens)
        out = self.target_size(size)
        side = {1: 32, 2: 7}.get(self.axes, 4)
        axes = []
        for line, n in zip(self.lines, size, strict=True):
            cell, valid, _, _ = line.cells(n, torch.arange(line.targets(n), device=device))
            step = line.dilation if line.stride == 1 else 1
            axes.append(axis_tiles(cell, valid, max(side, line.kernel), step))
        return grid_tiles(axes, out, size, device)

    def degree(self, targets: int, sources: int) -> int:
        return product(self.kernel_size)

    def pair_layout(self) -> Layout | None:
        return None if self.size is None else ((product(self.target_size(self.size)),), (), self.kernel_size)

    def key(self) -> tuple:
        return self.size, self.kernel_size, self.stride, self.dilation, self.padding, self.border

    def extra_repr(self) -> str:
        names = ("stride", "dilation", "padding", "border")
        plain = ((1,) * self.axes, (1,) * self.axes, "same", "zeros")
        shown = [f"{n}={getattr(self, n)!r}" for n, p in zip(names, plain, strict=True) if getattr(self, n) != p]
        size = f"{self.size}" if self.size is not None else f"axes={self.axes}"
        return ", ".join([size, f"kernel_size={self.kernel_size}", *shown])
