"""The linear maps around a weight, and where they meet: value before it, output after it, root beside it."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn


class Linears(NamedTuple):
    """value, output and root, and the channels that the weight between them meets and leaves."""

    value: nn.Module | None
    output: nn.Module | None
    root: nn.Module | None
    before: int
    after: int


def linears_around(
    in_channels: int, out_channels: int, value: Any, output: Any, root: Any, *, mixes: bool, bias: bool
) -> Linears:
    """The maps around a weight between these widths. ``mixes``: it is a matrix, from one width to another."""
    # between value and output is out_channels, or a width of their own where both are there to meet at it
    both = isinstance(value, nn.Module) and isinstance(output, nn.Module)
    leaves = out_channels if mixes and not both else _width(output, "in_features", out_channels)
    own = both if mixes else output is not False
    meets = _width(value, "out_features", leaves) if own else out_channels
    first = linear_or_none("value", value, in_channels, meets, bias=False)
    before = meets if first is not None else in_channels
    after = leaves if mixes else before
    last = linear_or_none("output", output, after, out_channels, bias=bias)
    if last is None and after != out_channels:
        raise ValueError(
            f"expected in_channels = out_channels without value and output, got {in_channels} and {out_channels}; "
            "pass value=True or output=True"
        )
    # of targets of another width where it brings its own
    beside = linear_or_none("root", root, _width(root, "in_features", in_channels), out_channels, bias=False)
    return Linears(first, last, beside, before, after)


def linear_or_none(name: str, given: bool | nn.Module, channels: int, out: int, bias: bool) -> nn.Module | None:
    """The map that ``given`` means, between these widths; a module whose widths are None takes any."""
    if isinstance(given, bool):
        return nn.Linear(channels, out, bias=bias) if given else None
    if not isinstance(given, nn.Module):
        raise TypeError(f"expected {name} to be True, False or an nn.Linear, got {type(given).__name__}")
    if not (hasattr(given, "in_features") and hasattr(given, "out_features")):
        raise TypeError(
            f"expected {name} to be True, False or an nn.Linear, got {type(given).__name__}; a module in its place has "
            "in_features and out_features"
        )
    widths = (given.in_features, given.out_features)
    if any(width not in (None, wanted) for width, wanted in zip(widths, (channels, out), strict=True)):
        raise ValueError(f"expected {name} to be a Linear({channels}, {out}), got {widths}")
    return given


def _width(given: Any, side: str, otherwise: Any) -> Any:
    """The width of one side of a module that the caller brought, else another."""
    width = getattr(given, side, None) if isinstance(given, nn.Module) else None
    return otherwise if width is None else width
