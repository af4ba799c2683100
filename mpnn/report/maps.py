"""Attention maps: the weights of all pairs, a matrix for each head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpnn import EdgeWeights
from mpnn.report.captured import dense, index, part
from mpnn.report.style import INK, PALE, colour_bar, colours, figure, scale
from mpnn.report.target import MOST

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST = 1024  # tokens on a side: more are more than the points of a panel


def attention_maps(
    edges: EdgeWeights, *, sample: int = 0, parts: tuple[int, ...] | None = None, title: str | None = None
) -> Figure:
    """Draw w_ij of all pairs, targets i downwards and sources j to the right, a panel for each head.

    Of attention, each row sums to 1: it is the matrix softmax(QKᵀ/√d) of the formula. Grey is no neighbour, which is
    not weight 0. Any other weight is drawn likewise; one that is a matrix counts as its Frobenius norm.

    Args:
        edges: one call's weights, ``weights[name][call]`` of :func:`~mpnn.capture_weights`.
        sample: counted over all leading dimensions. parts: the heads to draw, by default the first eight.

    Raises:
        TypeError, IndexError: at the door, naming the argument.
        ValueError: more than 1,024 targets or sources.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing, capture_weights
        >>> from mpnn.neighbours import AllTokens
        >>> from mpnn.report import attention_maps
        >>> from mpnn.weights import QKSoftmax
        >>> model = torch.nn.Sequential(MessagePassing(AllTokens(), QKSoftmax(8, heads=2)))
        >>> with capture_weights(model) as weights:
        ...     _ = model(torch.randn(12, 8))
        >>> attention_maps(weights["0"][0]).axes[0].images[0].get_array().shape
        (12, 12)
    """
    if isinstance(edges, EdgeWeights) and max(edges.size) > LARGEST:
        raise ValueError(
            f"expected at most {LARGEST} targets and sources, got {edges.size}; weights_of_target draws one target"
        )
    values = dense(edges, sample)
    shown = range(min(MOST, len(values))) if parts is None else parts
    for number in shown:
        index("parts", number, len(values))
    columns = min(len(shown), 4)
    rows = -(-len(shown) // columns)
    drawn = figure(2.4 * columns + 1.3, 2.5 * rows + 0.7)
    drawn.suptitle(title or "who hears whom", fontsize=11, color=INK, x=0.01, ha="left")
    axes = drawn.subplots(rows, columns, squeeze=False)
    norm = scale(values[list(shown)].flatten().tolist())
    for one, number in zip(axes.flat, shown, strict=False):
        one.imshow(values[number].numpy(), cmap=colours(norm), norm=norm, interpolation="nearest", aspect="auto")
        one.set_title(part(edges, number), fontsize=9, color=INK)
        one.tick_params(color=PALE, labelcolor=INK, labelsize=8)
        for side in one.spines.values():
            side.set_color(PALE)
    for one in list(axes.flat)[len(shown) :]:
        one.set_axis_off()
    for one in axes[-1]:
        one.set_xlabel("source", color=INK, fontsize=9)
    for one in axes[:, 0]:
        one.set_ylabel("target", color=INK, fontsize=9)
    colour_bar(drawn, list(axes.flat), norm, "weight (grey: no neighbour)")
    return drawn
