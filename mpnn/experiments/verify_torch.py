"""The layers of torch that ``mpnn verify`` checks, with their options."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mpnn.experiments.verify_case import Arguments, LayerCase


def _case(make: Callable[..., nn.Module], *args: Any, inputs: Callable[[], Arguments], **options: Any) -> LayerCase:
    says = ", ".join([", ".join(map(str, args)), *(f"{k}={v!r}" for k, v in options.items())])
    return LayerCase(says, partial(make, *args, **options), inputs)


def _tokens(*shapes: tuple[int, ...], masks: tuple[Any, ...] = ()) -> Callable[[], Arguments]:
    return lambda: ((*(torch.randn(shape) for shape in shapes), *masks), {})


def _padding() -> Tensor:
    """torch's own convention: True is left out. The last of the second sample's five tokens is padding."""
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[1, 4] = True
    return mask


def _linear() -> tuple[LayerCase, ...]:
    given = _tokens((2, 3, 4))
    return tuple(_case(nn.Linear, 4, 5, bias=bias, inputs=given) for bias in (True, False))


def _conv(cls: type[nn.Module], axes: int) -> tuple[LayerCase, ...]:
    given = _tokens((2, 4, 7, 6, 5)[: axes + 2])
    options: tuple[dict[str, Any], ...] = (
        {},
        {"padding": 1, "bias": False},
        {"padding": "same", "dilation": 2},
        {"padding": "valid", "stride": 2},
        {"padding": 1, "stride": 2, "groups": 2},
        {"padding": 1, "padding_mode": "circular"},
        {"padding": 1, "padding_mode": "reflect"},
        {"padding": 2, "padding_mode": "replicate", "stride": 2},
    )
    depthwise = _case(cls, 4, 4, 3, padding=1, groups=4, inputs=given)
    return (*(_case(cls, 4, 6, 3, **option, inputs=given) for option in options), depthwise)


def _attention() -> tuple[LayerCase, ...]:
    make = partial(_case, nn.MultiheadAttention, 8, 2)
    same, cross = _tokens((2, 5, 8), (2, 5, 8), (2, 5, 8)), _tokens((2, 3, 8), (2, 5, 8), (2, 5, 8))
    padded = _tokens((2, 5, 8), (2, 5, 8), (2, 5, 8), masks=(_padding(),))
    return (
        make(batch_first=True, inputs=same),
        make(batch_first=True, inputs=padded),
        make(batch_first=True, bias=False, inputs=cross),
        make(batch_first=True, kdim=6, vdim=4, inputs=_tokens((2, 3, 8), (2, 5, 6), (2, 5, 4))),
        make(inputs=_tokens((5, 2, 8), (4, 2, 8), (4, 2, 8))),
        make(inputs=_tokens((5, 8), (4, 8), (4, 8))),
    )


def _blocks(cls: type[nn.Module], given: Callable[[], Arguments], turned: Callable[[], Arguments]) -> Any:
    make = partial(_case, cls, 8, 2, 12, dropout=0.0)
    return (
        make(batch_first=True, inputs=given),
        make(batch_first=True, norm_first=True, activation="gelu", inputs=given),
        make(batch_first=True, bias=False, inputs=given),
        make(norm_first=True, inputs=turned),
    )


TORCH: dict[str, tuple[LayerCase, ...]] = {
    "Linear": _linear(),
    "Conv1d": _conv(nn.Conv1d, 1),
    "Conv2d": _conv(nn.Conv2d, 2),
    "Conv3d": _conv(nn.Conv3d, 3),
    "MultiheadAttention": _attention(),
    "TransformerEncoderLayer": _blocks(nn.TransformerEncoderLayer, _tokens((2, 5, 8)), _tokens((5, 2, 8))),
    "TransformerDecoderLayer": _blocks(
        nn.TransformerDecoderLayer, _tokens((2, 3, 8), (2, 5, 8)), _tokens((3, 2, 8), (5, 2, 8))
    ),
}
