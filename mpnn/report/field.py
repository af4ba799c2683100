"""Receptive fields: which inputs reach a target after one layer, two layers, …"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mpnn.checks import instance
from mpnn.report.places import Over, count, draw
from mpnn.report.style import INK, colour_bar, figure, scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Field:
    """What reaches a target: ``values`` (layers, N) over the input's tokens, 0 where nothing does.

    ``targets`` the target in each layer's output · ``sizes`` how many tokens that output has · ``layers`` their names ·
    ``way`` how it was found, for the picture.
    """

    values: Tensor
    targets: tuple[int, ...]
    sizes: tuple[int, ...]
    layers: tuple[str, ...]
    way: str


def targets_of(target: int | Sequence[int], names: Sequence[str], sizes: Sequence[int]) -> tuple[int, ...]:
    """A target in the output of each layer, checked."""
    if not names:
        raise ValueError("expected a model with a message passing layer that is called, got none")
    each = (target,) * len(names) if isinstance(target, int) else tuple(target)
    if len(each) != len(names):
        raise ValueError(f"expected one target, or one for each of {len(names)} layers, got {len(each)}")
    for one, name, size in zip(each, names, sizes, strict=True):
        if not isinstance(one, int) or not 0 <= one < size:
            raise IndexError(
                f"expected a target in 0 … {size - 1} for layer {name!r}, got {one}; give one target for each layer"
            )
    return each


def receptive_field(field: Field, *, over: Over, edges: Any = None, title: str | None = None) -> Figure:
    """Draw a :class:`Field`: a panel after each layer, over the input's tokens; the title says how it was found.

    Args:
        field: of :func:`field_by_gradients` or :func:`field_by_edges`.
        over: (length,), (height, width), or the places of a graph's nodes (N, 2). edges: (source, target) of a graph,
            to draw as lines.

    Raises:
        TypeError, ValueError: at the door, naming the argument.

    Example::

        >>> import torch
        >>> from mpnn.models import CNN
        >>> from mpnn.report import field_by_gradients, receptive_field
        >>> field = field_by_gradients(CNN(1, (4, 4), 10, size=(8, 8)), torch.randn(64, 1), 27, over=(8, 8))
        >>> len(receptive_field(field, over=(8, 8)).axes)  # two layers and the bar of colours
        3
    """
    instance("field", field, Field, "a Field of field_by_gradients or field_by_edges")
    tokens = count(over)
    depth, inputs = field.values.shape
    if tokens != inputs:
        raise ValueError(f"expected over to hold the {inputs} tokens of the input, got {tokens}")
    line = isinstance(over, tuple) and len(over) == 1
    columns = 1 if line else min(depth, 4)
    rows = -(-depth // columns)
    drawn = figure(*((7.5, 0.9 + 1.2 * rows) if line else (2.3 * columns + 1.1, 2.4 * rows + 0.7)))
    drawn.suptitle(title or f"what reaches a target, {field.way}", fontsize=11, color=INK, x=0.01, ha="left")
    axes = list(drawn.subplots(rows, columns, squeeze=False).flat)
    # Of each layer its own largest value: a gradient fades or grows with depth, and the reach is what is asked for.
    shares = field.values / field.values.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    norm = scale([0.0, 1.0])
    for number, one in enumerate(axes):
        if number >= depth:
            one.set_axis_off()
            continue
        values = shares[number].masked_fill(shares[number] == 0, torch.nan)
        mark = field.targets[number] if field.sizes[number] == inputs else None  # else it stands elsewhere
        draw(one, values, over, norm, target=mark, edges=edges)
        reached = int((shares[number] > 0).sum())
        one.set_title(f"after layer {number + 1}: {reached} of {inputs}", fontsize=9, color=INK)
    if line:
        axes[-1].set_xlabel("input token", color=INK)
    else:
        colour_bar(drawn, axes, norm, "share of the layer's largest (grey: 0)")
    return drawn
