"""What one target hears: the weights of its neighbours over an image, a sequence or a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from mpnn import EdgeWeights
from mpnn.report.captured import index, of_target, part
from mpnn.report.places import Over, count, draw
from mpnn.report.style import INK, colour_bar, figure, scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 8  # panels of one picture


def weights_of_target(
    edges: EdgeWeights,
    target: int,
    *,
    over: Over,
    sample: int = 0,
    parts: tuple[int, ...] | None = None,
    x: Tensor | None = None,
    title: str | None = None,
) -> Figure:
    """Draw w_ij for one target i and every source j, a panel for each head (or group of channels).

    The target is marked where targets and sources are the same tokens; grey is no neighbour, which is not weight 0. A
    weight that is a matrix counts as its Frobenius norm.

    Args:
        edges: one call's weights, ``weights[name][call]`` of :func:`~mpnn.capture_weights`.
        over: where the sources stand: (length,), (height, width), or the places of a graph's nodes (N, 2), which
            :func:`places` makes.
        sample: counted over all leading dimensions. parts: the heads to draw, by default the first eight.
        x: what the sources hold, (M,), drawn in a panel of its own.

    Raises:
        TypeError, ValueError, IndexError: at the door, naming the argument.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing, capture_weights
        >>> from mpnn.neighbours import Grid
        >>> from mpnn.report import weights_of_target
        >>> from mpnn.weights import QKSoftmax
        >>> model = torch.nn.Sequential(MessagePassing(Grid((8, 8), 3), QKSoftmax(8, heads=2)))
        >>> with capture_weights(model) as weights:
        ...     _ = model(torch.randn(64, 8))
        >>> len(weights_of_target(weights["0"][0], 27, over=(8, 8)).axes)  # two heads and the bar of colours
        3
    """
    sources, values = count(over), of_target(edges, target, sample)
    if sources != edges.size[1]:
        raise ValueError(f"expected over to hold the {edges.size[1]} sources of the call, got {sources}")
    shown = range(min(MOST, len(values))) if parts is None else parts
    for number in shown:
        index("parts", number, len(values))
    if x is not None and x.shape != (sources,):
        raise ValueError(f"expected x of shape ({sources},), one number per source, got {tuple(x.shape)}")
    panels = len(shown) + (x is not None)
    line = isinstance(over, tuple) and len(over) == 1
    columns = 1 if line else min(panels, 4)
    rows = -(-panels // columns)
    size = (7.5, 0.9 + 1.25 * rows) if line else (2.3 * columns + 1.1, 2.4 * rows + 0.6)
    drawn = figure(*size)
    drawn.suptitle(title or f"what target {target} hears", fontsize=11, color=INK, x=0.01, ha="left")
    axes = list(drawn.subplots(rows, columns, squeeze=False).flat)
    mark = target if edges.size[0] == edges.size[1] else None
    # Of two sets of nodes only the sources have places: there are no lines to draw.
    pairs = (edges.source.cpu(), edges.target.cpu()) if isinstance(over, Tensor) and mark is not None else None
    if x is not None:
        one = axes.pop(0)
        held = x.detach().float().cpu()
        draw(one, held, over, scale(held.tolist()), edges=pairs)
        one.set_title("the input", fontsize=9, color=INK)
    norm = scale(values[list(shown)].flatten().tolist())
    for one, number in zip(axes, shown, strict=False):
        draw(one, values[number], over, norm, target=mark, edges=pairs)
        one.set_title(part(edges, number), fontsize=9, color=INK)
    for one in axes[len(shown) :]:
        one.set_axis_off()
    if line:
        axes[-1].set_xlabel("source", color=INK)
        for one in axes[: len(shown)]:
            one.set_ylabel("weight", color=INK, fontsize=9)
    else:
        colour_bar(drawn, axes, norm, "weight (grey: no neighbour)")
    return drawn
