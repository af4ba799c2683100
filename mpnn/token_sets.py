"""Token sets: who sends and who hears in a call, joined from its arguments and checked at the door."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from mpnn.checks import autocasting, bool_mask, compiling, readable, same_device, same_dtype, values
from mpnn.memo import derived
from mpnn.neighbours import Neighbours
from mpnn.tokens.base import Tokens
from mpnn.weights import QKSoftmax, Static, Weight


def as_tokens(name: str, x: Any, **given: Any) -> Tokens:
    """Tokens of a tensor and keywords; a field that the tokens have already may not be given again."""
    given = {k: v for k, v in given.items() if v is not None}
    bool_mask("mask", given.get("mask"))
    if isinstance(x, Tokens):
        for field in given:
            if getattr(x, field) is not None:
                raise ValueError(
                    f"expected {field} once, got it in {name}'s Tokens and as {field}=; leave one of them out"
                )
        return x.replace(**given) if given else x
    if not isinstance(x, Tensor):
        raise TypeError(f"expected {name} to be a tensor (..., N, C), Tokens or a pair of them, got {type(x).__name__}")
    return Tokens(x, **given)


def token_sets(rule: Neighbours, x: Any, source: Any, fields: dict[str, Any]) -> tuple[Tokens, Tokens | None]:
    """(source, target) tokens of a call; target is None where the neighbourhood fixes targets and the call has none."""
    others = {k: v for k, v in fields.items() if k != "mask"}
    mask = fields.get("mask")
    if isinstance(x, tuple | list):
        if source is not None:
            raise ValueError("expected the sources once, got (x_source, x_target) and source=; leave one of them out")
        if len(x) != 2:
            raise ValueError(f"expected a pair (x_source, x_target), got {len(x)} entries")
        return as_tokens("x_source", x[0], mask=mask), as_tokens("x_target", x[1], **others)
    if source is not None:
        beside = others if source is x else {}  # one set of tokens: as sources with a mask, as targets without one
        return as_tokens("source", source, mask=mask, **beside), as_tokens("x", x, **others)
    tokens = as_tokens("x", x, **fields)
    return tokens, (tokens if rule.target_count(tokens.x.shape[-2], tokens) is None else None)


def key_and_value(weight: Any, source: Any) -> tuple[Any, Tensor | None]:
    """(source, values) of a call: attention takes ``source=(keys, values)``, the parts of its source tokens apart."""
    if not isinstance(source, tuple | list):
        return source, None
    got = f"{type(source).__name__} of {', '.join(type(s).__name__ for s in source)}"
    if not isinstance(weight, QKSoftmax):
        kind = getattr(weight, "spec_name", type(weight).__name__)
        raise TypeError(f"expected source to be a tensor (..., M, C) or Tokens for {kind}, got {got}")
    if len(source) != 2 or not isinstance(source[1], Tensor):
        raise TypeError(f"expected source to be a tensor (..., M, C), Tokens or (keys, values), got {got}")
    return source[0], source[1]


def check_values(weight: Any, keys: Tokens, value: Tensor) -> int:
    """Refuse values that do not stand beside their keys; returns the width that keys have."""
    width, beside = weight.part_widths()
    wanted = (*keys.x.shape[:-1], beside)
    if tuple(value.shape) != wanted:
        raise ValueError(f"expected values of shape {wanted}, beside their keys, got {tuple(value.shape)}")
    same_device("values", value, keys.x.device)
    same_dtype("values", value.dtype, keys.x.dtype)
    return width


def check_tokens(weight: Weight, source: Tokens, target: Tokens | None, width: int | None) -> None:
    """Refuse tokens of a wrong width, dtype, device, or with other leading dimensions than the sources."""
    parameter = next((p for p in weight.parameters() if p.is_floating_point()), None)
    sets = [("x", source, width)]
    if target is not None and target is not source:
        sets = [("x_source", source, width), ("x_target", target, weight.target_width())]
    for name, tokens, width in sets:
        x = tokens.x
        if width is not None and x.shape[-1] != width:
            raise ValueError(
                f"expected {name} of shape (..., N, {width}) for {type(weight).__name__}, got {tuple(x.shape)}"
            )
        if x.shape[:-2] != source.x.shape[:-2]:
            raise ValueError(
                f"expected sources and targets of the same leading dimensions, got {tuple(source.x.shape)} "
                f"and {tuple(x.shape)}"
            )
        same_device(name, x, source.x.device)
        if parameter is not None:
            if parameter.device != x.device:
                raise ValueError(f"expected {name} on {parameter.device}, as the layer's parameters, got {x.device}")
            if not autocasting(x.device.type):
                same_dtype(name, x.dtype, parameter.dtype)


def check_batches(rule: Neighbours, weight: Any, source: Tokens, target: Tokens | None) -> None:
    """Refuse a batch that is not sorted, on one side only, or where units have fixed places."""
    batches = [t.batch for t in (source, target) if t is not None]
    if all(b is None for b in batches):
        return
    if any(b is None for b in batches):
        raise ValueError("expected batch for targets and sources, got one; pass source=Tokens(..., batch=) and batch=")
    if isinstance(weight, Static) or rule.fixed_places:
        raise ValueError(f"batch= is refused where units have fixed places, got {rule}; use leading dimensions")
    for b in batches:
        assert b is not None
        if compiling():
            _check_order(b)
        elif readable(b):
            derived(partial(_check_order, b), "sorted", b)


def _check_order(batch: Tensor) -> None:
    text = "expected batch sorted ascending, got a smaller number after a larger one; sort the tokens by graph"
    values(batch[1:] >= batch[:-1], ValueError, text)
    values(batch[:1] >= 0, ValueError, "expected batch ≥ 0", batch[:1])
