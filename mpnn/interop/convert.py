"""convert and revert: whole models, in place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from mpnn.checks import instance, one_of
from mpnn.interop import drop_in
from mpnn.interop.attention import Attention
from mpnn.interop.bridges import BRIDGES, IN_PLACE, OUT_OF_SCOPE
from mpnn.interop.layer import find, reasons
from mpnn.interop.watch import hidden, taken
from mpnn.message_passing import MessagePassing
from mpnn.returned import trace_kernels

KINDS = ("attention", "convolution", "graph", "linear")


@dataclasses.dataclass(frozen=True)
class Row:
    """One layer of a converted model: where it stands, what it is, what computes it now or why it was left."""

    name: str
    layer: str
    kind: str | None
    kernel: str | None = None
    left: str | None = None


@dataclasses.dataclass(frozen=True)
class Report:
    """What ``convert`` did: the layers that became message passing, and those that were left, with the reason."""

    rows: tuple[Row, ...]

    @property
    def converted(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.left is None)

    @property
    def left(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.left is not None)

    def __str__(self) -> str:
        made, left = len(self.converted), len(self.left)
        layers, they_were = "layer" if made == 1 else "layers", "it was" if left == 1 else "they were"
        lines = [f"{made} {layers} converted, {left} left as {they_were}"]
        cells = [(r.name or "(the model)", r.layer, r.kind or "", r.kernel or "") for r in self.converted]
        widths = [max((len(c[i]) for c in cells), default=0) for i in range(4)]
        lines += ["  " + "  ".join(c.ljust(w) for c, w in zip(cell, widths, strict=True)).rstrip() for cell in cells]
        lines += [f"  {row.name or '(the model)'}  {row.layer} left: {row.left}" for row in self.left]
        return "\n".join(lines)


def convert(model: nn.Module, kinds: Iterable[str] = KINDS[:3], *, example: Any = None) -> Report:
    """Replace every convertible layer of a model by message passing, in place, with the same function and names.

    A converted layer keeps its class, signature, parameters and their names: checkpoints load both ways, optimisers
    and hooks stay. Parents come before children: a whole encoder layer is one layer. Where anything is refused on the
    way, the model is unchanged.

    Args:
        kinds: of "attention", "convolution", "graph", "linear".
        example: arguments of one forward (a tensor, a tuple, or a dict of keywords), which runs without gradients to
            name each layer's kernel in the report.

    Returns:
        A :class:`Report`: what, where, with which kernel; what was left and why.

    Example::

        >>> import torch
        >>> from mpnn.interop import convert
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten())
        >>> print(convert(model, example=torch.ones(1, 1, 5, 5)))
        1 layer converted, 0 left as they were
          0  Conv2d  convolution  conv
    """
    instance("model", model, nn.Module, "a model")
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    for kind in kinds:
        one_of("kinds", kind, KINDS)
    rows: list[Row] = []
    ready: list[Callable[[], None]] = []
    _walk(model, "", kinds, rows, ready, set())
    for become in ready:
        become()
    if example is None:
        return Report(tuple(rows))
    done = False
    try:
        found = _with_kernels(model, rows, example)
        done = True
    finally:
        if not done:  # an example that does not fit leaves the model as it was
            for row in rows:
                if row.left is None:
                    drop_in.revert(model.get_submodule(row.name))
    return Report(tuple(found))


def _walk(
    layer: nn.Module,
    name: str,
    kinds: tuple[str, ...],
    rows: list[Row],
    ready: list[Callable[[], None]],
    seen: set[int],
) -> None:
    """Prepare a layer, else look at its children; a shared layer is prepared once."""
    if id(layer) in seen or isinstance(layer, MessagePassing | Attention | drop_in.DropIn):
        return
    seen.add(id(layer))
    bridge = find(layer, BRIDGES + IN_PLACE)
    if bridge is not None and bridge.kind in kinds:
        why = reasons(layer, BRIDGES + IN_PLACE) or [*taken(layer), *hidden(layer, bridge)]
        rows.append(Row(name, type(layer).__name__, bridge.kind, left="; ".join(why) or None))
        if not why:
            ready.append(drop_in.prepare(layer, bridge))
            return
    elif bridge is None and type(layer).__name__ in OUT_OF_SCOPE:
        rows.append(Row(name, type(layer).__name__, None, left="; ".join(reasons(layer))))
    for child_name, child in layer.named_children():
        _walk(child, f"{name}.{child_name}" if name else child_name, kinds, rows, ready, seen)


def _with_kernels(model: nn.Module, rows: list[Row], example: Any) -> list[Row]:
    """The rows with the kernel that each converted layer ran in one forward."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), trace_kernels(model) as ran:
            if isinstance(example, dict):
                model(**example)
            else:
                model(*(example if isinstance(example, tuple) else (example,)))
    finally:
        for module, was in training.items():
            module.training = was

    def kernels(row: Row) -> str | None:
        below = f"{row.name}.core" if row.name else "core"
        found = [kernel for name, kernel in ran.items() if name in (row.name, below) or name.startswith(below + ".")]
        return ", ".join(dict.fromkeys(found)) or None

    return [row if row.left is not None else dataclasses.replace(row, kernel=kernels(row)) for row in rows]


def revert(model: nn.Module) -> list[str]:
    """Give every converted layer of a model its own class back, with the weights that it has now; returns the names."""
    names = [name for name, layer in model.named_modules() if isinstance(layer, drop_in.DropIn)]
    for name in names:
        drop_in.revert(model.get_submodule(name))
    return names
