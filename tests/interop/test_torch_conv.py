"""nn.Conv1d/2d/3d as message passing on a grid: every option, both ways, and the drop-in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.bridged import EXACT, assert_bits, assert_drop_in
from mpnn import MessagePassing
from mpnn.interop import convert, from_layer, swap, to_layer
from mpnn.neighbours import Grid, Window
from mpnn.weights import SharedKernel

CLASSES: list[Any] = [nn.Conv1d, nn.Conv2d, nn.Conv3d]
SIZES = {1: (9,), 2: (7, 6), 3: (5, 4, 6)}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "kernel 1": {"kernel_size": 1},
    "even kernel": {"kernel_size": 2, "padding": "same"},
    "kernel per axis": {"kernel_size": (3, 2, 4)},
    "stride": {"stride": 2},
    "stride per axis": {"stride": (1, 2, 3), "padding": (0, 1, 2)},
    "padding": {"padding": 2},
    "same": {"padding": "same"},
    "same, dilated": {"padding": "same", "dilation": 2},
    "valid": {"padding": "valid"},
    "dilation per axis": {"dilation": (2, 1, 1), "padding": 1},
    "groups": {"groups": 2},
    "depthwise": {"groups": 4, "padding": 1},
    "no bias": {"bias": False},
    "everything": {"kernel_size": 2, "stride": 2, "padding": 1, "dilation": 2, "groups": 2, "bias": False},
}
MODES = ("zeros", "reflect", "replicate", "circular")


def made(cls: Any, option: str, mode: str = "zeros") -> Any:
    axes = CLASSES.index(cls) + 1
    given = {"kernel_size": 3, "padding_mode": mode} | OPTIONS[option]
    given = {k: v[:axes] if isinstance(v, tuple) else v for k, v in given.items()}
    return cls(4, 6 if given.get("groups", 1) < 4 else 8, **given).double()


def image(cls: Any, *lead: int) -> Tensor:
    return torch.randn(*lead, 4, *SIZES[CLASSES.index(cls) + 1], dtype=torch.float64)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
def test_a_convolution(cls: Any, option: str, mode: str) -> None:
    layer = made(cls, option, mode)
    for lead in ((2,), ()):
        assert_drop_in(layer, lambda m, x: m(x), [image(cls, *lead)])
    size = SIZES[CLASSES.index(cls) + 1]
    for core in (from_layer(layer), from_layer(layer, size=size)):
        assert_bits(layer, to_layer(core))
        x = image(cls, 2)
        given = {} if core.neighbours.size else {"grid": size}
        y = core(x.flatten(2).transpose(1, 2), **given).transpose(1, 2)
        torch.testing.assert_close(y.reshape(2, -1), layer(x).reshape(2, -1), **EXACT)


def test_hand_built_grids_are_convolutions() -> None:
    core = MessagePassing(Grid((4, 5), (3, 2), stride=(1, 2), padding=1), SharedKernel(2, 3, bias=False)).double()
    layer, x = to_layer(core), torch.randn(2, 2, 4, 5, dtype=torch.float64)
    assert isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 2)
    y = core(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(layer(x).shape)
    torch.testing.assert_close(y, layer(x), **EXACT)


@pytest.mark.parametrize(
    ("grid", "weight", "words"),
    [
        (Grid(5, 3, border="clamp"), {}, "no border='clamp'"),
        (Grid(5, 3), {"heads": 2}, "not heads"),
        (Grid(5, 3), {"root": True}, "weight.root"),
        (Grid(5, 3), {"output": True}, "weight.output"),
        (Grid(5, 3), {"reduce": "mean"}, "reduce='sum' instead of 'mean'"),
        (Grid(5, 3), {"bases": 2}, "bases"),
        (Grid(axes=4, kernel_size=2), {}, "Grid in 1 to 3 axes"),
    ],
)
def test_what_no_convolution_computes(grid: Grid, weight: dict, words: str) -> None:
    with pytest.raises(ValueError, match=f"no layer computes this, got Grid.*{words}"):
        to_layer(MessagePassing(grid, SharedKernel(4, 4, **weight)))


@pytest.mark.parametrize("shape", [(4, 7), (4,), (2, 2, 4, 7, 6)])
def test_wrong_images(shape: tuple[int, ...]) -> None:
    layer = nn.Conv2d(4, 4, 3)
    convert(layer)
    with pytest.raises(ValueError, match=r"expected input of shape \(..., 4, H, W\) for Conv2d, got"):
        layer(torch.ones(shape))
    with pytest.raises(ValueError, match=r"expected x of shape \(..., N, 4\)"):
        layer(torch.ones(2, 3, 5, 5))


def test_another_grid_of_the_same_kernel() -> None:
    layer, other = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, stride=2, dilation=2, padding=1)
    other.load_state_dict(layer.state_dict())
    convert(layer)
    x = torch.randn(2, 4, 7, 7)
    assert swap(layer, neighbours=Grid(None, (3, 3), stride=2, dilation=2, padding=1), where=lambda *_: True) == [""]
    torch.testing.assert_close(layer(x), other(x))
    with pytest.raises(ValueError, match="the model cannot take Window"):
        swap(layer, neighbours=Window(1), where=lambda *_: True)


def test_channels_last_images() -> None:
    layer = nn.Conv2d(4, 4, 3, padding=1).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(2, 4, 7, 6).to(memory_format=torch.channels_last)
    y = layer(x)
    convert(layer)
    torch.testing.assert_close(layer(x), y)
    assert layer.weight.is_contiguous(memory_format=torch.channels_last)
