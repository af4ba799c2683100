"""KNN and Radius: the tokens that are near, by coordinates or by features."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from mpnn.checks import compiling, positive, wide
from mpnn.edges import Edges
from mpnn.memo import outside
from mpnn.nearness import blocks, hidden, lowest, seen
from mpnn.neighbours.base import Neighbours
from mpnn.slots import SameSet, extent, row_numbers, two

_BY_DIFFERENCES = "donot_use_mm_for_euclid_dist"  # inner products would make equal distances unequal


class Near(Neighbours):
    """What KNN and Radius share: distances of tokens, made at each call, in blocks of targets.

    Distances are Euclidean, from differences in float64, so that equal distances are equal. No gradient flows through
    the choice, and a masked token is nobody's neighbour and has none.
    """

    enumerates = True
    listed = True
    reads_tokens = True

    @abstractmethod
    def _chosen(self, distance: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(row, column) of the pairs, by row and column; what can be no pair is at inf or NaN. ``dtype``: of places."""

    @abstractmethod
    def _traced(self, distance: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(column, whether it is a pair) for each row, as many for all rows."""

    def edges(self, targets: int, sources: int, *, rows: slice | None = None, tokens: Any = None) -> Edges:
        if tokens is None:
            raise ValueError(f"expected tokens= for the edges of {self}, which reads their places, got None")
        at_source, at_target = (seen(self, t) for t in two(tokens))
        dtype, same = at_source.dtype, not isinstance(tokens, tuple) or isinstance(tokens, SameSet)
        with outside(), torch.no_grad():
            i = row_numbers(rows, targets, at_source.device)
            low, high, _ = extent(tokens, targets, sources, i)
            at_source, at_target = (
                hidden(self, t, at) for t, at in zip(two(tokens), (at_source, at_target), strict=True)
            )

            def measured(block: slice, first: int, last: int, several: bool) -> Tensor:
                """Distances of a block of targets to the sources from first to last, inf where they cannot meet."""
                own = i[block]
                distance = torch.cdist(at_target[own], at_source[first:last], compute_mode=_BY_DIFFERENCES)
                if several:
                    j = torch.arange(first, last, device=i.device)
                    distance = distance.masked_fill((j < low[block, None]) | (j >= high[block, None]), math.inf)
                if same:
                    distance = distance.scatter(1, own[:, None] - first, math.inf)
                return distance

            if compiling():  # all targets at once, and as many edges for each
                column, valid = self._traced(measured(slice(None), 0, sources, True), dtype)
                target = i[:, None].expand_as(column)
                return Edges(column.reshape(-1), target.reshape(-1), valid=valid.reshape(-1))
            found = [(i[:0], i[:0])]
            for block, first, last, several in blocks(low, high):
                row, column = self._chosen(measured(block, first, last, several), dtype)
                found.append((i[block][row], column + first))
            made_target, made_source = (torch.cat(t) for t in zip(*found, strict=True))
            return Edges(made_source, made_target)

    def check(self, targets: int, sources: int, tokens: Any) -> None:
        source, target = two(tokens)
        assert source is not None and target is not None
        if max(source.x.ndim, target.x.ndim) > 2:
            raise ValueError(
                f"expected tokens of shape (N, C) for {self}, whose edges are others for each sample, got leading "
                f"dimensions {tuple(source.x.shape[:-2])}; join the samples to (N, C) and pass batch="
            )
        if (source.coordinates is None) != (target.coordinates is None):
            return  # refused by binding, in its own words
        kind = "features" if source.coordinates is None else "coordinates"
        ours, theirs = (seen(self, t).shape[-1] for t in (source, target))
        if ours != theirs:
            raise ValueError(
                f"expected {kind} of sources and targets of one width for {self}, which compares them, got {ours} and "
                f"{theirs}" + ("; pass coordinates= of both" if kind == "features" else "")
            )


class KNN(Near):
    """The k nearest others: N(i) = the k sources j ≠ i of i's graph with the smallest ‖p_i - p_j‖, p the coordinates.

    Without ``coordinates`` features are compared. With two sets of tokens there is no i itself to leave out. Ties go to
    the lower j; where there are fewer than k others, all of them are neighbours. Made anew at each call.

    Raises:
        TypeError, ValueError: where k is no int ≥ 1; at the call for leading dimensions (join the samples and pass
            ``batch``), places of two widths, ``torch.func.vmap`` over what is compared.

    Source: PointNet++ (Qi et al., 2017), `arXiv:1706.02413 <https://arxiv.org/abs/1706.02413>`_;
    ``torch_geometric.nn.knn_graph``.

    Example::

        >>> import torch
        >>> from mpnn import Tokens
        >>> from mpnn.neighbours import KNN
        >>> line = Tokens(torch.tensor([[0.0], [1.0], [2.0], [5.0]]))
        >>> KNN(1).edges(4, 4, tokens=line).source
        tensor([1, 0, 1, 2])
    """

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = positive("k", k)

    def _chosen(self, distance: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        width = distance.shape[1]
        k = min(self.k, width)
        nearest, column = distance.topk(min(k + 1, width), largest=False)  # one more shows where a tie is cut
        column = torch.where(nearest[:, :k] < math.inf, column[:, :k], width)
        if k < width:
            cut = ((nearest[:, k] == nearest[:, k - 1]) & (nearest[:, k] < math.inf)).nonzero().squeeze(-1)
            if cut.numel():
                column[cut] = lowest(distance[cut], nearest[cut, k - 1, None], k)
        column = column.sort(1).values
        row, place = (column < width).nonzero(as_tuple=True)
        return row, column[row, place]

    def _traced(self, distance: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        rows, width = distance.shape
        none = distance.new_full((rows, self.k), math.inf)  # k slots, however few sources there are
        nearest, column = torch.cat([distance.nan_to_num(math.inf, math.inf), none], 1).sort(dim=1, stable=True)
        column = torch.where(nearest < math.inf, column, width)[:, : self.k].sort(1).values
        return column.clamp(max=max(width - 1, 0)), column < width

    def degree(self, targets: int, sources: int) -> int:
        return min(self.k, sources)

    def key(self) -> tuple:
        return (self.k,)

    def extra_repr(self) -> str:
        return f"{self.k}"


class Radius(Near):
    """The others within a distance: N(i) = {j ≠ i of i's graph : ‖p_i - p_j‖ ≤ r}, p the coordinates.

    Without ``coordinates`` features are compared. With two sets of tokens there is no i itself to leave out. Nothing is
    truncated: every token within r is a neighbour. The distance is compared in the dtype of the coordinates (float32
    for half precision), correctly rounded. Made anew at each call.

    Raises:
        TypeError, ValueError: where r is no number ≥ 0; at the call as :class:`KNN`.

    Source: SchNet (Schütt et al., 2017), `arXiv:1706.08566 <https://arxiv.org/abs/1706.08566>`_;
    ``torch_geometric.nn.radius_graph``, which truncates to ``max_num_neighbors``.

    Example::

        >>> import torch
        >>> from mpnn import Tokens
        >>> from mpnn.neighbours import Radius
        >>> line = Tokens(torch.tensor([[0.0], [1.0], [2.0], [5.0]]))
        >>> Radius(1.5).edges(4, 4, tokens=line).source
        tensor([1, 0, 2, 1])
    """

    def __init__(self, r: float) -> None:
        super().__init__()
        if isinstance(r, bool) or not isinstance(r, int | float):
            raise TypeError(f"expected r to be a number, got {r!r} ({type(r).__name__})")
        if not r >= 0:
            raise ValueError(f"expected r ≥ 0, got {r}")
        self.r = float(r)

    def _within(self, distance: Tensor, dtype: torch.dtype) -> Tensor:
        return (distance.to(wide(dtype)) <= self.r) & (distance < math.inf)

    def _chosen(self, distance: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return self._within(distance, dtype).nonzero(as_tuple=True)  # type: ignore[return-value]

    def _traced(self, distance: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        column = torch.arange(distance.shape[1], device=distance.device).expand_as(distance)
        return column, self._within(distance, dtype)

    def key(self) -> tuple:
        return (self.r,)

    def extra_repr(self) -> str:
        return f"{self.r}"
