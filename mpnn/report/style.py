"""How every picture looks: one figure that needs no screen, and colours that colour-blind people tell apart."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpnn.data.errors import require
from mpnn.data.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The palette of Okabe and Ito, "Color Universal Design" (2008), in an order that also differs in lightness.
COLOURS = {
    "logistic": "#7F7F7F",
    "mlp": "#E69F00",
    "cnn": "#0072B2",
    "gnn": "#009E73",
    "transformer": "#D55E00",
}
# A second sign beside the colour, for print without colours.
DASHES = {"logistic": ":", "mlp": "--", "cnn": "-", "gnn": "-.", "transformer": (0, (6, 1.5))}
NAMES = {"logistic": "logistic", "mlp": "MLP", "cnn": "CNN", "gnn": "GNN", "transformer": "Transformer"}

INK, PALE, GREY = "#222222", "#DDDDDD", "#BBBBBB"
# Of what stands on a coloured cell, whose lightness does not follow the page's.
ON_COLOUR = "#111111"
# For what has no name of its own, such as heads: the same palette.
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")


def called(model: str) -> str:
    """A model in a sentence.

    >>> called("cnn"), called("logistic")
    ('the CNN', 'logistic regression')
    """
    return "logistic regression" if model == "logistic" else f"the {NAMES[model]}"


def figure(width: float, height: float) -> Figure:
    """A figure of a size in inches, without pyplot's global state."""
    require("matplotlib", purpose="drawing pictures")
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), dpi=150)
    made.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    return made


def tidy(axes: Axes) -> None:
    """Only the lines that carry something."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(PALE)
    axes.tick_params(color=PALE, labelcolor=INK, labelsize=9)
    axes.grid(True, color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)


def save(drawn: Figure, path: str | Path) -> None:
    """Write a picture, atomically."""
    with replacing(path) as new:
        drawn.savefig(new, facecolor="white")


def scale(values: Iterable[float]) -> Any:
    """One range of colours for all panels: from 0 where nothing is negative, else symmetric about 0.

    >>> both = scale([-1.0, 2.0])
    >>> both.vmin, both.vmax
    (-2.0, 2.0)
    """
    from matplotlib.colors import Normalize

    found = [value for value in values if not math.isnan(value)]
    top = max((abs(value) for value in found), default=0.0) or 1.0
    return Normalize(-top if min(found, default=0.0) < 0 else 0.0, top)


def colours(norm: Any, *, empty: str = GREY) -> Any:
    """The colours of a range, even in lightness: cividis from 0, purple to orange about 0; grey where no number is."""
    from matplotlib import colormaps

    return colormaps["PuOr_r" if norm.vmin < 0 else "cividis"].with_extremes(bad=empty)


def colour_bar(drawn: Figure, axes: Any, norm: Any, says: str) -> None:
    """The bar that says what the colours mean."""
    from matplotlib.cm import ScalarMappable

    bar = drawn.colorbar(ScalarMappable(norm, colours(norm)), ax=axes, shrink=0.85, aspect=28, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_label(says, color=INK, fontsize=8)
    bar.ax.tick_params(color=PALE, labelcolor=INK, labelsize=8)
