"""The Transformer's first code of places: sines and cosines of many wavelengths."""

from __future__ import annotations

import torch
from torch import Tensor

from mpnn import checks
from mpnn.positions.base import PositionCode, angles, inverse_frequencies


class Sinusoidal(PositionCode):
    """Adds ``sin(p ω_i)`` to channel 2i and ``cos(p ω_i)`` to channel 2i + 1, with ``ω_i = base^(-2i / channels)``.

    With ``axes`` each axis has an equal share of the channels, the first axis the first share. Angles are float32
    whatever the tokens are, and the code is cast last.

    Args:
        channels: channels of the tokens; odd ones end with a sine.
        base: the longest wavelength is 2π · base.
        axes: 0 for positions ``(..., N)``, else ``(..., N, axes)``.

    Shapes:
        x: ``(..., N, channels)``
        positions: integer ``(N,)`` or ``(..., N)``, with ``axes`` one dimension more; 0 … N-1 when None
        returns: ``(..., N, channels)``

    Raises:
        ValueError: where the axes do not split the channels.

    Source: Vaswani et al., "Attention is all you need", 2017; on two axes: He et al. (MAE), 2022.

    >>> Sinusoidal(4)(torch.zeros(2, 4))[1]
    tensor([0.8415, 0.5403, 0.0100, 0.9999])
    """

    frequencies: Tensor

    def __init__(self, channels: int, *, base: float = 10000.0, axes: int = 0) -> None:
        super().__init__()
        self.channels, self.base, self.axes = checks.positive("channels", channels), base, axes
        checks.divides("axes", max(axes, 1), "channels", channels)
        self.width = channels // max(axes, 1)
        self.constant("frequencies", inverse_frequencies(self.width, base))

    def code(self, positions: Tensor) -> Tensor:
        turns = angles(positions, self.frequencies, self.axes)
        waves = torch.stack([turns.sin(), turns.cos()], dim=-1).flatten(-2)
        if self.width % 2 == 0:
            return waves
        # An odd width has a sine without its cosine at the end, on every axis.
        return waves.unflatten(-1, (max(self.axes, 1), self.width + 1))[..., :-1].flatten(-2)

    def extra_repr(self) -> str:
        return f"{self.channels}, base={self.base}, axes={self.axes}"
