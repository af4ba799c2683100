"""Where the tokens of a picture stand: the cells of a line or an image, or the nodes of a graph."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mpnn import EdgeWeights
from mpnn.data.errors import require
from mpnn.report.style import GREY, INK, ON_COLOUR, PALE, colours, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Over = tuple[int, ...] | Tensor


def places(graph: Any, nodes: int | None = None, *, seed: int = 0) -> Tensor:
    """Places in the plane for the nodes of a graph, (N, 2): networkx's spring layout, the same for the same seed.

    Args:
        graph: captured weights, an ``edge_index`` (2, E), a PyG ``Data``, whose ``pos`` is taken where it has one, or a
            networkx graph, whose nodes are taken in their own order.
        nodes: how many, for an ``edge_index`` whose last nodes have no edge.

    Raises:
        TypeError: for anything else.

    >>> places(torch.tensor([[0, 1], [1, 2]])).shape
    torch.Size([3, 2])
    """
    networkx = require("networkx", purpose="laying out a graph", install="networkx")
    made = networkx.Graph()
    if isinstance(graph, networkx.Graph):
        made = networkx.convert_node_labels_to_integers(graph)
    elif getattr(graph, "pos", None) is not None:
        return torch.as_tensor(graph.pos)[:, :2].detach().float().cpu()
    else:
        if isinstance(graph, EdgeWeights):
            ends, nodes = torch.stack([graph.source, graph.target]), max(graph.size)
        else:
            ends, nodes = getattr(graph, "edge_index", graph), nodes or getattr(graph, "num_nodes", None)
        if not isinstance(ends, Tensor) or ends.ndim != 2 or ends.shape[0] != 2:
            raise TypeError(
                f"expected graph to be captured weights, an edge_index (2, E), a PyG Data or a networkx graph, "
                f"got {type(graph).__name__}"
            )
        made.add_nodes_from(range(nodes or (int(ends.max()) + 1 if ends.numel() else 0)))
        made.add_edges_from((a, b) for a, b in ends.t().tolist() if a != b)
    found = networkx.spring_layout(made, seed=seed, iterations=100)
    return torch.tensor([[*map(float, found[node])] for node in range(len(made))]).reshape(-1, 2)


def count(over: Over) -> int:
    """The number of tokens, and the check that ``over`` is one of the three things that it may be.

    Raises:
        TypeError, ValueError: naming ``over``.

    >>> count((8, 8))
    64
    """
    if isinstance(over, Tensor):
        if over.ndim != 2 or over.shape[1] != 2:
            raise ValueError(f"expected over to be places (N, 2), got {tuple(over.shape)}; places(graph) makes them")
        return len(over)
    if isinstance(over, tuple) and over and all(isinstance(n, int) and n > 0 for n in over):
        if len(over) > 2:
            raise ValueError(f"expected over of one axis or two, got {over}; draw one slice of the grid at a time")
        return math.prod(over)
    raise TypeError(
        f"expected over to be (length,) for a sequence, (height, width) for an image, or places (N, 2) for a graph, "
        f"got {over!r}"
    )


def draw(axes: Axes, values: Tensor, over: Over, scale: Any, *, target: int | None = None, edges: Any = None) -> None:
    """Draw a number per token: an image's cells, a sequence's bars, a graph's nodes; NaN is grey, the target marked.

    Args:
        values: (N,). scale: a matplotlib ``Normalize``, one for all panels that are compared.
        edges: of a graph, the pairs (source, target) to draw as lines.
    """
    if isinstance(over, Tensor):
        _graph(axes, values, over, scale, target, edges)
    elif len(over) == 2:
        _image(axes, values.reshape(over), scale, target)
    else:
        _line(axes, values, scale, target)


def _image(axes: Axes, values: Tensor, scale: Any, target: int | None) -> None:
    axes.imshow(values.numpy(), cmap=colours(scale), norm=scale, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_color(PALE)
    if target is not None:
        row, column = divmod(target, values.shape[1])
        for colour, width in (("#FFFFFF", 3.2), (ON_COLOUR, 1.4)):  # seen on dark cells and on light ones
            axes.plot(
                column, row, marker="s", markersize=7, markerfacecolor="none", color=colour, markeredgewidth=width
            )


def _line(axes: Axes, values: Tensor, scale: Any, target: int | None) -> None:
    tidy(axes)
    axes.grid(False, axis="x")
    slots = range(len(values))
    axes.bar(slots, values.nan_to_num(0).numpy(), width=0.9, color=colours(scale)(scale(values.nan_to_num(0).numpy())))
    for slot in slots:
        if math.isnan(float(values[slot])):
            axes.axvspan(slot - 0.5, slot + 0.5, color=GREY, alpha=0.35, linewidth=0)
    axes.set_xlim(-0.5, len(values) - 0.5)
    axes.set_ylim(min(0.0, scale.vmin), scale.vmax * 1.05)
    if target is not None:
        axes.axvline(target, color=INK, linewidth=0.8, linestyle=":")


def _graph(axes: Axes, values: Tensor, over: Tensor, scale: Any, target: int | None, edges: Any) -> None:
    from matplotlib.collections import LineCollection

    if edges is not None:
        ends = over[torch.stack(tuple(edges), -1)]
        axes.add_collection(LineCollection(list(ends.numpy()), colors=PALE, linewidths=0.8, zorder=1))
    seen = ~values.isnan()
    x, y = over.t().numpy()
    axes.scatter(x[~seen], y[~seen], s=28, color=GREY, linewidths=0, zorder=2)
    axes.scatter(x[seen], y[seen], s=46, c=values[seen].numpy(), cmap=colours(scale), norm=scale, zorder=3,
                 edgecolors=INK, linewidths=0.4)  # fmt: skip
    if target is not None:
        axes.scatter(x[target], y[target], s=150, facecolors="none", edgecolors=INK, linewidths=1.4, zorder=4)
    axes.set_aspect("equal")
    axes.set_axis_off()
