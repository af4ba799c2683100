"""Images, signals and volumes as tokens: one for each patch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mpnn import checks
from mpnn.tokens.base import Tokens
from mpnn.tokens.places import grid_positions
from mpnn.tokens.prefix import prepend
from mpnn.tokens.windows import checked_windows, cut, join


class PatchTokens(nn.Module):
    """Cuts a grid of values into patches, one token each: ``x_n = W vec(patch_n) + b``, which is a strided convolution.

    Patches run in row-major order and the values of one as a convolution's kernel (channel, then the axes), so that
    ``projection.weight`` is ``nn.Conv2d(in_channels, channels, patch, stride).weight`` flattened. Class tokens, then
    register tokens, stand in front as rows of ``prefix``; there is no ``grid`` then, and they are at position 0.

    Args:
        in_channels: channels of the image.
        channels: channels of a token; None leaves the patches as they are, without a projection.
        patch: one int for each axis, (k,) to (k, k, k); (1, 1) makes every pixel a token.
        stride: one int for each axis, at most the patch; the patch when None. Smaller strides make patches overlap.
        pad: "refuse" raises where patches do not end with the image, "pad" fills the end with zeros.
        class_tokens, register_tokens: how many learned tokens to put in front; both need ``channels``.

    Shapes:
        image: ``(..., in_channels, *size)``, torch's layout
        mask: bool ``(..., *size)``, True for real pixels; a token takes part if any of its do, the others are 0
        returns: ``x`` ``(..., N, channels)``, ``positions`` ``(N, axes)`` (``(N,)`` for one axis), ``coordinates``
            ``(N, axes)`` (the patch's centre, in pixels), ``grid``

    Raises:
        ValueError: for a size that the patches do not cover exactly, unless ``pad="pad"``.

    Source: Dosovitskiy et al., "An image is worth 16x16 words", 2021; registers: Darcet et al., 2024.

    >>> PatchTokens(3, 16, (4, 4))(torch.rand(2, 3, 8, 12))
    Tokens(x=(2, 6, 16), positions=(6, 2), coordinates=(6, 2), grid=(2, 3))
    """

    def __init__(
        self,
        in_channels: int,
        channels: int | None,
        patch: Sequence[int],
        *,
        stride: Sequence[int] | None = None,
        pad: str = "refuse",
        class_tokens: int = 0,
        register_tokens: int = 0,
    ) -> None:
        super().__init__()
        self.in_channels, self.channels, self.pad = in_channels, channels, pad
        self.patch, self.stride = checked_windows(patch, stride, pad)
        self.class_tokens, self.register_tokens = class_tokens, register_tokens
        width = in_channels * torch.Size(self.patch).numel()
        self.projection = None if channels is None else nn.Linear(width, channels)
        self.prefix: nn.Parameter | None = None
        if class_tokens + register_tokens:
            if channels is None:
                raise ValueError("class and register tokens are learned: pass channels=, got None")
            self.prefix = nn.Parameter(torch.empty(class_tokens + register_tokens, channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the projection as ``nn.Linear`` and ``nn.Conv2d`` do, and the tokens in front from N(0, 0.02²)."""
        if self.projection is not None:
            self.projection.reset_parameters()
        if self.prefix is not None:
            nn.init.normal_(self.prefix, std=0.02)

    def forward(self, image: Tensor, mask: Tensor | None = None) -> Tokens:
        axes = len(self.patch)
        if image.ndim <= axes or image.shape[-axes - 1] != self.in_channels:
            raise ValueError(
                f"expected an image of shape (..., {self.in_channels}, {', '.join('*' * axes)}) for patches of "
                f"{self.patch}, got {tuple(image.shape)}"
            )
        if mask is not None:
            checks.bool_mask("mask", mask)
            if mask.shape[-axes:] != image.shape[-axes:]:
                raise ValueError(f"expected mask of shape (..., {image.shape[-axes:]}), got {tuple(mask.shape)}")
            image = image.masked_fill(~mask.unsqueeze(-axes - 1), 0)
            mask = cut(mask.unsqueeze(-axes - 1), self.patch, self.stride, self.pad)[0].any(-1)
        x, grid = cut(image, self.patch, self.stride, self.pad)
        if self.projection is not None:
            x = self.projection(x)
        positions = grid_positions(grid, image.device)
        centres = [positions[:, a].float() * self.stride[a] + (self.patch[a] - 1) / 2 for a in range(axes)]
        if axes == 1:
            positions = positions[:, 0]
        tokens = Tokens(x, mask=mask, positions=positions, coordinates=torch.stack(centres, dim=-1), grid=grid)
        return tokens if self.prefix is None else prepend(tokens, self.prefix)

    def inverse(self, patches: Tensor, size: Sequence[int]) -> Tensor:
        """The image of this size whose patches, as ``channels=None`` gives them, these are; overlaps are averaged.

        Shapes:
            patches: ``(..., N, in_channels * prod(patch))``, without tokens in front
            returns: ``(..., in_channels, *size)``
        """
        return join(patches, size, self.patch, self.stride, self.pad)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.channels}, patch={self.patch}, stride={self.stride}, pad={self.pad!r}"
