"""Time series as tokens: one for each run of steps."""

from __future__ import annotations

from torch import Tensor, nn

from mpnn.tokens.base import Tokens
from mpnn.tokens.patch import PatchTokens


class StepTokens(nn.Module):
    """Cuts a series into patches of steps, one token each: ``x_n = W vec(steps n·stride … n·stride + patch - 1) + b``.

    It is ``PatchTokens`` with one axis on the layout of series. With ``patch=1`` every step is a token.

    Args:
        in_channels: channels of the series.
        channels: channels of a token; None leaves the patches as they are, without a projection.
        patch, stride: steps in a token, and steps from one token to the next (the patch when None, and at most that).
        pad: "refuse" raises where patches do not end with the series, "pad" fills the end with zeros.
        class_tokens, register_tokens: as in ``PatchTokens``.

    Shapes:
        series: ``(..., L, in_channels)``
        mask: bool ``(..., L)``, True for real steps (see ``mask_from_lengths``)
        returns: ``x`` ``(..., N, channels)``, ``positions`` ``(N,)``, ``coordinates`` ``(N, 1)`` (the middle, in
            steps), ``grid`` ``(N,)``

    Raises:
        ValueError: for a length that the patches do not cover exactly, unless ``pad="pad"``.

    Source: Nie et al., "A time series is worth 64 words" (PatchTST), 2023.

    >>> import torch
    >>> StepTokens(2, 16, patch=4, stride=2)(torch.rand(3, 10, 2))
    Tokens(x=(3, 4, 16), positions=(4,), coordinates=(4, 1), grid=(4,))
    """

    def __init__(
        self,
        in_channels: int,
        channels: int | None,
        patch: int = 1,
        stride: int | None = None,
        *,
        pad: str = "refuse",
        class_tokens: int = 0,
        register_tokens: int = 0,
    ) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.patches = PatchTokens(
            in_channels,
            channels,
            (patch,),
            stride=None if stride is None else (stride,),
            pad=pad,
            class_tokens=class_tokens,
            register_tokens=register_tokens,
        )

    def reset_parameters(self) -> None:
        self.patches.reset_parameters()

    def forward(self, series: Tensor, mask: Tensor | None = None) -> Tokens:
        if series.ndim < 2 or series.shape[-1] != self.in_channels:
            raise ValueError(f"expected a series of shape (..., L, {self.in_channels}), got {tuple(series.shape)}")
        return self.patches(series.transpose(-1, -2), mask)

    def inverse(self, patches: Tensor, length: int) -> Tensor:
        """The series of this length whose patches, as ``channels=None`` gives them, these are; overlaps are averaged.

        Shapes:
            patches: ``(..., N, in_channels * patch)``, each with the steps of the first channel first
            returns: ``(..., length, in_channels)``
        """
        return self.patches.inverse(patches, (length,)).transpose(-1, -2)
