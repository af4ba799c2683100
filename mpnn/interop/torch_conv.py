"""``nn.Conv1d/2d/3d``: a grid with one weight per offset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from mpnn.interop.bridge import Bridge, Refused, Unlike
from mpnn.message_passing import MessagePassing
from mpnn.neighbours import Grid
from mpnn.weights import SharedKernel


class Conv(Bridge):
    """``nn.Conv1d/2d/3d`` is ``Grid`` × ``SharedKernel``: every stride, padding, dilation, group and padding mode.

    Structure: ``size``, the grid's shape, where it is fixed; without it the call gives ``grid=``.
    """

    kind = "convolution"
    structure = ("size",)
    _CLASSES = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

    def layers(self) -> tuple[type[nn.Module], ...]:
        return self._CLASSES

    def configure(self, layer: Any, size: Any = None) -> MessagePassing:
        grid = Grid(
            size, layer.kernel_size, stride=layer.stride, dilation=layer.dilation, padding=layer.padding,
            border=layer.padding_mode,
        )  # fmt: skip
        weight = SharedKernel(layer.in_channels, layer.out_channels, groups=layer.groups, bias=layer.bias is not None)
        return MessagePassing(grid, weight)

    def tensors(self, layer: Any, core: nn.Module) -> dict[str, Tensor]:
        bias = {} if layer.bias is None else {"weight.bias": layer.bias}
        return {"weight.weight": layer.weight} | bias

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        grid, weight = getattr(core, "neighbours", None), getattr(core, "weight", None)
        if not (isinstance(grid, Grid) and isinstance(weight, SharedKernel)) or not 1 <= grid.axes <= 3:
            raise Unlike("a convolution needs Grid in 1 to 3 axes × SharedKernel")
        if grid.border == "clamp" or weight.groups is None:
            raise Refused("a convolution has no border='clamp', and a matrix for each offset, not heads")
        make: Any = self._CLASSES[grid.axes - 1]
        layer = make(
            weight.in_channels, weight.out_channels, grid.kernel_size, grid.stride, grid.padding, grid.dilation,
            weight.groups, weight.bias is not None, grid.border,
        )  # fmt: skip
        return layer, {"size": grid.size}

    def call(self, layer: Any, core: Callable[..., Any], input: Tensor) -> Tensor:
        axes = len(layer.kernel_size)
        batched = input.ndim == axes + 2
        if input.ndim not in (axes + 1, axes + 2):
            raise ValueError(
                f"expected input of shape (..., {layer.in_channels}, {', '.join('DHW'[-axes:])}) for "
                f"{type(layer).__name__}, got {tuple(input.shape)}"
            )
        x = input if batched else input[None]
        size = tuple(x.shape[2:])
        y = core(x.flatten(2).transpose(1, 2), grid=size)
        y = y.transpose(1, 2).unflatten(2, layer.core.neighbours.target_size(size))  # of the rule that it has now
        return y if batched else y[0]
