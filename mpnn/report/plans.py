"""How the layers of a model run: their plans as a table, and one plan as a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mpnn import MessagePassing, Plan
from mpnn.checks import instance
from mpnn.plan import NAMES
from mpnn.report.style import INK, PALE, SERIES, figure
from mpnn.report.table import amount

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

COLUMNS = ("layer", "rule", "edges", "kernel", "FLOPs", "bytes")


def plans_of(model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, Plan]:
    """The plan of each message passing layer in one call of a model: its name → the plan of its last call.

    The model runs, without gradient and as it is, in training or not.

    Example::

        >>> import torch
        >>> from mpnn.models import MLP
        >>> from mpnn.report import plans_of
        >>> {name: plan.kernel for name, plan in plans_of(MLP((4, 8, 3)), torch.ones(2, 4)).items()}
        {'blocks.0.layer': 'linear', 'blocks.1.layer': 'linear'}
    """
    instance("model", model, nn.Module, "a module that holds message passing layers")
    found: dict[str, Plan] = {}

    def noting(name: str) -> Callable[..., None]:
        def note(layer: MessagePassing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            found[name] = layer.plan(*args, **kwargs)

        return note

    hooks = [
        module.register_forward_pre_hook(noting(name), with_kwargs=True)
        for name, module in model.named_modules()
        if isinstance(module, MessagePassing)
    ]
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def plan_rows(plans: Mapping[str, Plan]) -> list[tuple[str, ...]]:
    """A row of texts for each layer, in the order of :data:`COLUMNS`."""
    return [
        (
            name or "the layer",
            f"{plan.spec.neighbours} × {plan.spec.weight}",
            f"{plan.edges:,}",
            plan.kernel,
            amount(plan.flops),
            amount(plan.bytes),
        )
        for name, plan in plans.items()
    ]


def plan_table(plans: Mapping[str, Plan]) -> Table:
    """The plans of a model's layers as a table for the terminal: rule, edges, kernel, and what a forward costs.

    Args:
        plans: name → plan, as :func:`plans_of` finds them; of one layer, ``{"": layer.plan(x)}``.

    Example::

        >>> import torch
        >>> from mpnn.models import MLP
        >>> from mpnn.report import plan_table, plans_of
        >>> plan_table(plans_of(MLP((4, 8, 3)), torch.ones(2, 4))).row_count
        2
    """
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, caption="FLOPs and bytes of one forward of the whole batch, estimated")
    made.caption_justify = "left"
    for column in COLUMNS:
        made.add_column(column, justify="right" if column in ("edges", "FLOPs", "bytes") else "left")
    for row in plan_rows(plans):
        made.add_row(*row)
    return made


def plan_picture(plan: Plan, *, title: str | None = None) -> Figure:
    """Draw how a call was planned: the kernels in the order in which they are asked, the one that runs, why no other.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing
        >>> from mpnn.neighbours import Window
        >>> from mpnn.report import plan_picture
        >>> from mpnn.weights import QKSoftmax
        >>> layer = MessagePassing(Window(2), QKSoftmax(8, heads=2))
        >>> [text.get_text() for text in plan_picture(layer.plan(torch.ones(64, 8))).axes[0].texts][:1]
        ['tiles']
    """
    instance("plan", plan, Plan, "a plan, as layer.plan(x) gives it")
    rows = _rows(plan)
    lines = [textwrap.wrap(text, 92) or [""] for _, text in rows]
    height = sum(len(found) for found in lines)
    drawn = figure(9.0, 0.75 + 0.2 * (height + 0.45 * len(rows)))
    spec = plan.spec
    head = title or f"{spec.neighbours} × {spec.weight}: {spec.targets} targets, {spec.sources} sources"
    drawn.suptitle(f"{head}, {plan.edges:,} edges", fontsize=11, color=INK, x=0.01, ha="left")
    axes = drawn.subplots()
    top = 0.0
    for (name, _), wrapped in zip(rows, lines, strict=True):
        top = _row(axes, top, name, wrapped, chosen=name == plan.kernel)
    axes.set_xlim(0, 10)
    axes.set_ylim(top, 0)
    axes.set_axis_off()
    return drawn


def _rows(plan: Plan) -> list[tuple[str, str]]:
    """The kernel that runs with what it costs, then the others in the order in which they are asked."""
    says = f"runs: {plan.flops:,} FLOPs, {plan.bytes:,} bytes; {', '.join(plan.supports)}"
    parts = [(f"· {p.kernel}", f"for {p.spec.neighbours}: {p.edges:,} edges, {p.flops:,} FLOPs") for p in plan.parts]
    others = [(name, "; ".join(plan.reasons.get(name, ["could run it; it is asked later"]))) for name in NAMES]
    return [(plan.kernel, says), *parts, *(row for row in others if row[0] != plan.kernel)]


def _row(axes: Axes, top: float, name: str, lines: list[str], *, chosen: bool) -> float:
    """Write one kernel and return where the next one begins."""
    if chosen:
        axes.axhspan(top, top + len(lines) + 0.45, color=SERIES[2], alpha=0.25, linewidth=0)
    style: dict[str, Any] = {"fontsize": 9, "color": INK, "va": "top"}
    axes.text(0.1, top + 0.2, name, fontweight="bold" if chosen else "normal", **style)
    axes.text(1.9, top + 0.2, "\n".join(lines), linespacing=1.25, **style)
    bottom = top + len(lines) + 0.45
    axes.axhline(bottom, color=PALE, linewidth=0.6)
    return bottom
