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
from mpnn.neighbours.base import Layout, Neighbours
from mpnn.slots import device_of, grid_size, product, row_numbers

BORDERS = ("zeros", "clamp", "circular", "reflect", "replicate")


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

    def __init__(
        self,
        size: Any = None,
        kernel_size: Any = 3,
        *,
        axes: int | None = None,
        stride: Any = 1,
        dilation: Any = 1,
        padding: Any = "same",
        border: str = "zeros",
    ) -> None:
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
        reach = [2 * k - 1 if border == "clamp" else k for k in self.kernel_size]
        self.relation_shape = tuple(reach)
        self.relations = product(self.relation_shape)
        if self.size is not None:
            self._check_size(self.size)
            self.pairs = product(self.target_size(self.size)) * product(self.kernel_size)

    @staticmethod
    def _per_axis(name: str, value: Any, axes: int, least: int = 1) -> tuple[int, ...]:
        values = tuple(value) if isinstance(value, tuple | list) else (value,) * axes
        return tuple(positive(name, v, least) for v in values)

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

    def target_size(self, size: tuple[int, ...] | int) -> tuple[int, ...]:
        """The shape of the grid of targets for a grid of sources of shape ``size``."""
        size = (size,) if isinstance(size, int) else tuple(size)
        if len(size) != self.axes:
            raise ValueError(f"expected a size of {self.axes} axes for {self}, got {size}")
        spans = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        return tuple(
            (n + a + b - w) // s + 1 for n, (a, b), w, s in zip(size, self.pads, spans, self.stride, strict=True)
        )

    def _check_size(self, size: tuple[int, ...]) -> None:
        for axis, n in enumerate(size):
            k, d, (before, after) = self.kernel_size[axis], self.dilation[axis], self.pads[axis]
            if self.border == "clamp" and n < k * d:
                raise ValueError(f"border='clamp' with kernel {k} and dilation {d} needs length ≥ {k * d}, got {n}")
            limit = {"reflect": n - 1, "circular": n}.get(self.border)
            if limit is not None and max(before, after) > limit:
                raise ValueError(
                    f"border={self.border!r} needs padding ≤ {limit} on axis {axis} of length {n}, "
                    f"got {max(before, after)}"
                )
            if n + before + after < d * (k - 1) + 1:
                raise ValueError(
                    f"expected axis {axis} of length ≥ {d * (k - 1) + 1 - before - after} for {self}, got {n}"
                )

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
        for a, (n, t) in enumerate(zip(size, self.target_size(size), strict=True)):
            middle = torch.arange(t, device=device) * self.stride[a] + self._middle(a)
            flat = flat[..., None] * n + middle.clamp(0, n - 1)
        return flat.reshape(-1)

    def _middle(self, axis: int) -> int:
        return (self.kernel_size[axis] - 1) // 2 * self.dilation[axis] - self.pads[axis][0]

    def _axis(self, a: int, n: int, t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """For target coordinates t on axis a: source cell, validity, offset and relation, each (len(t), kernel)."""
        k, d = self.kernel_size[a], self.dilation[a]
        slot = torch.arange(k, device=t.device)
        middle = t * self.stride[a] + self._middle(a)
        if self.border == "clamp":
            length = (n - t % d + d - 1) // d  # cells of the same remainder: dilated windows shift among these
            start = torch.minimum((t // d - k // 2).clamp(min=0), length - k)
            raw = (start[:, None] + slot) * d + (t % d)[:, None]
            offset = raw - t[:, None]
            return raw, torch.ones_like(raw, dtype=torch.bool), offset, offset // d + k - 1
        raw = (t * self.stride[a] - self.pads[a][0])[:, None] + slot * d
        inside = (raw >= 0) & (raw < n)
        offset = raw - middle[:, None]
        if self.border == "circular":
            cell = raw % n
        elif self.border == "reflect":
            cell = n - 1 - (n - 1 - raw.abs()).abs()
        else:
            cell = raw.clamp(0, n - 1)
        valid = inside if self.border == "zeros" else torch.ones_like(inside)
        return cell, valid, offset, slot.expand_as(raw)

    def edges(self, targets: int, sources: int, *, rows: slice | None = None, tokens: Any = None) -> Edges:
        size = self.size_of(tokens)
        out = self.target_size(size)
        i = row_numbers(rows, targets, device_of(tokens))
        shape = (i.shape[0], *self.kernel_size)
        cell = torch.zeros(shape, dtype=torch.int64, device=i.device)
        # collected axis by axis, then in the order of target and source, which wrapped and mirrored windows are not in
        relation, valid = cell, torch.ones(shape, dtype=torch.bool, device=i.device)
        offsets: list[Tensor] = []
        rest = i
        for a in reversed(range(self.axes)):
            view = [i.shape[0] if x == 0 else self.kernel_size[a] if x == a + 1 else 1 for x in range(self.axes + 1)]
            per_axis = [x.reshape(view) for x in self._axis(a, size[a], rest % out[a])]
            rest = rest // out[a]
            cell = cell + per_axis[0] * product(size[a + 1 :])
            valid = valid & per_axis[1]
            offsets.insert(0, per_axis[2].expand(shape))
            relation = relation + per_axis[3] * product(self.relation_shape[a + 1 :])
        kernel = product(self.kernel_size)
        target = i[:, None].expand(-1, kernel).reshape(-1)
        index = target * kernel + torch.arange(kernel, device=i.device).repeat(i.shape[0])
        offset = torch.stack(offsets, -1).reshape(-1, self.axes)
        edges = Edges(cell.reshape(-1), target, relation.reshape(-1), offset, index, valid=valid.reshape(-1))
        if self.border in ("circular", "reflect", "replicate"):
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
            spans = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel_size, strict=True)]
            return all(span <= n for span, n in zip(spans, self.size, strict=True))
        return self.border in ("zeros", "clamp")

    def holds(self, target: Tensor, source: Tensor, targets: int, sources: int, tokens: Any = None) -> Tensor:
        size = self.size_of(tokens)
        out = self.target_size(size)
        kept = torch.ones((), dtype=torch.bool, device=target.device)
        for a in reversed(range(self.axes)):
            cell, valid, _, _ = self._axis(a, size[a], torch.arange(out[a], device=target.device))
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
        for a in range(self.axes):
            cell, valid, _, _ = self._axis(a, size[a], torch.arange(out[a], device=device))
            step = self.dilation[a] if self.stride[a] == 1 else 1
            axes.append(axis_tiles(cell, valid, max(side, self.kernel_size[a]), step))
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
