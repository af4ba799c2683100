"""Convolution, pooling and attention of torch, option by option: the layer equals each of them on every kernel."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernel_choice import on_each
from mpnn import MessagePassing
from mpnn.experiments.atlas_all_tokens import packed
from mpnn.experiments.atlas_case import TOLERANCE, Case, Names, build, copied, linears, measure
from mpnn.experiments.atlas_grid import as_image, as_tokens
from mpnn.neighbours import AllTokens, Grid
from mpnn.weights import QKSoftmax, SharedKernel
from reference_cases import Cases

CASES = Cases()
case = CASES.add

# Convolutions: torch pads by itself, through F.pad where the border is not zeros.


def conv(
    size: tuple[int, ...], kernel: Any, groups: int = 1, border: str = "zeros", bias: bool = True, **places: Any
) -> Case:
    layer = MessagePassing(Grid(size, kernel, border=border, **places), SharedKernel(4, 6, groups=groups, bias=bias))
    kind: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(size) - 1]
    theirs = kind(4, 6, kernel, groups=groups, bias=bias, padding_mode=border, **places)
    names: Names = {"weight.weight": "weight"} | ({"weight.bias": "bias"} if bias else {})
    x = torch.randn(2, *size, 4).flatten(1, -2)
    return Case(layer, layer, lambda x: as_tokens(theirs(as_image(x, size))), (x,), copied(layer, theirs, names))


for size in ((9,), (7, 8), (5, 4, 6)):
    d = len(size)
    case(conv, size=size, kernel=(3,) * d, stride=(2,) * d, padding=(1,) * d)
    case(conv, size=size, kernel=(4, 2, 3)[:d], padding="same", dilation=(1, 2, 1)[:d])
    case(conv, size=size, kernel=(2, 4, 2)[:d], padding="valid", groups=2)
    case(conv, size=size, kernel=(1,) * d, stride=(1, 2, 3)[:d], padding=0)
    case(conv, size=size, kernel=(3, 1, 5)[:d], stride=(2, 3, 1)[:d], padding=(3, 0, 4)[:d], dilation=(2, 1, 1)[:d])
    case(conv, size=size, kernel=(3,) * d, padding="same", groups=2, bias=False)
    for border in ("circular", "reflect", "replicate"):
        case(conv, size=size, kernel=(3, 2, 4)[:d], padding="same", border=border, dilation=(1, 2, 1)[:d])
        case(conv, size=size, kernel=(3,) * d, padding=(2, 1, 0)[:d], border=border, stride=(2, 1, 2)[:d], groups=2)


def depthwise(size: tuple[int, ...]) -> Case:
    layer = MessagePassing(Grid(size, 3), SharedKernel(6, 6, groups=6))
    theirs = nn.Conv2d(6, 6, 3, padding=1, groups=6)
    ties = copied(layer, theirs, {"weight.weight": "weight", "weight.bias": "bias"})
    return Case(layer, layer, lambda x: as_tokens(theirs(as_image(x, size))), (torch.randn(2, 20, 6),), ties)


case(depthwise, size=(4, 5))


def pooling(how: str) -> Case:
    """Pooling is a kernel of ones: the average over the cells that are there, the largest of them."""
    layer = MessagePassing(Grid((6, 5), 3, stride=2, padding=1), SharedKernel(3, 3, fixed=True, reduce=how, bias=False))
    theirs: Any = nn.MaxPool2d(3, 2, 1) if how == "max" else nn.AvgPool2d(3, 2, 1, count_include_pad=False)
    return Case(layer, layer, lambda x: as_tokens(theirs(as_image(x, (6, 5)))), (torch.randn(2, 30, 3),), ())


case(pooling, how="mean")
case(pooling, how="max")


# Attention over all tokens.


def separate(channels: int, heads: int, key: int, value: int) -> tuple[MessagePassing, nn.MultiheadAttention, Any]:
    """Other widths of keys and values: torch keeps the three matrices apart then."""
    layer = MessagePassing(AllTokens(), QKSoftmax(channels, heads, source_channels=(key, value)))
    theirs = nn.MultiheadAttention(channels, heads, kdim=key, vdim=value, batch_first=True)
    names: Names = linears({"weight.output": "out_proj"})
    for i, part in enumerate(("query", "key", "value")):
        names[f"weight.{part}.weight"] = f"{part[0]}_proj_weight"
        names[f"weight.{part}.bias"] = ("in_proj_bias", lambda p, i=i: p.chunk(3)[i])
    return layer, theirs, copied(layer, theirs, names)


def multihead(bias: bool = True, causal: bool = False, padding: bool = False, pairs: str = "") -> Case:
    """Masks of `nn.MultiheadAttention` mean the opposite of ours; its padded rows are compared where no mask is."""
    layer = MessagePassing(AllTokens(causal=causal), QKSoftmax(8, 2, bias=bias))
    theirs = nn.MultiheadAttention(8, 2, bias=bias, batch_first=True)
    names = {k: v for k, v in packed().items() if bias or k.endswith(".weight")}
    ties, x = copied(layer, theirs, names), torch.randn(3, 5, 8)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [False, True, True, True, True]]) if padding else None
    shape = {"": (5, 5), "all": (5, 5), "each": (3, 2, 5, 5)}[pairs]
    keep = (torch.rand(shape) < 0.6) | torch.eye(5, dtype=torch.bool) if pairs else None
    blocked = None if keep is None else ~keep if keep.ndim == 2 else ~keep.flatten(0, 1)
    if causal:
        future = torch.ones(5, 5).triu(1).bool()
        blocked = future if blocked is None else blocked | future
    rows = torch.ones(3, 5, dtype=torch.bool) if mask is None else mask
    rows = rows & torch.tensor([[True] * 5, [True] * 5, [False] + [True] * 4]) if causal else rows

    def reference(x: Tensor) -> Tensor:
        inverse = None if mask is None else ~mask
        return theirs(x, x, x, key_padding_mask=inverse, attn_mask=blocked, need_weights=False)[0][rows]

    return Case(layer, lambda x: layer(x, mask=mask, pair_mask=keep)[rows], reference, (x,), ties)


for bias, causal, padding in itertools.product((True, False), repeat=3):
    case(multihead, bias=bias, causal=causal, padding=padding)
case(multihead, pairs="all")
case(multihead, pairs="each")
case(multihead, pairs="each", causal=True)


def cross_attention(padding: bool) -> Case:
    layer = MessagePassing(AllTokens(), QKSoftmax(8, 2))
    theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    ties = copied(layer, theirs, packed())
    mask = torch.tensor([[True, True, True], [True, False, True]]) if padding else None

    def reference(x: Tensor, source: Tensor) -> Tensor:
        return theirs(x, source, source, key_padding_mask=None if mask is None else ~mask, need_weights=False)[0]

    inputs = (torch.randn(2, 5, 8), torch.randn(2, 3, 8))
    return Case(layer, lambda x, source: layer(x, source=source, mask=mask), reference, inputs, ties)


case(cross_attention, padding=False)
case(cross_attention, padding=True)


def other_widths(width: int, heads: int, key: int, value: int) -> Case:
    """The two parts of a source token are its key's channels, then its value's."""
    layer, theirs, ties = separate(width, heads, key, value)

    def call(x: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return layer(x, source=torch.cat([k, v], -1))

    def reference(x: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return theirs(x, k, v, need_weights=False)[0]

    return Case(
        layer, call, reference, (torch.randn(2, 4, width), torch.randn(2, 6, key), torch.randn(2, 6, value)), ties
    )


case(other_widths, width=24, heads=4, key=10, value=12)
case(other_widths, width=8, heads=1, key=8, value=3)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")  # torch's own layer
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_each_kernel_equals_the_reference(name: str, dtype: torch.dtype) -> None:
    made = build(CASES[name], dtype)
    for kernel, errors in on_each(lambda: measure(made)):
        assert kernel in errors.kernel
        assert max(errors.value, errors.gradient) <= TOLERANCE[dtype], (kernel, errors)
