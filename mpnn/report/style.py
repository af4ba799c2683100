"""How every picture looks: one figure that needs no screen, and colours that colour-blind people tell apart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

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
INK, PALE = "#222222", "#DDDDDD"


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
