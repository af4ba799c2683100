"""Places as rotations: queries and keys turn with their position, and their product sees the distance only."""

from __future__ import annotations

import torch
from torch import Tensor

from mpnn import checks
from mpnn.positions.base import Constants, angles, check_positions, inverse_frequencies


class Rotary(Constants):
    """Turns the i-th pair of channels by the angle ``p ω_i``, with ``ω_i = base^(-2i / width)``.

        (a, b) → (a cos pω - b sin pω, b cos pω + a sin pω)

    ``layout="half"`` pairs channel i with i + width/2 (GPT-NeoX, Llama), ``"interleaved"`` 2i with 2i + 1 (RoFormer,
    GPT-J). With ``axes`` the pairs are split evenly, the first share turns with the first axis (axial rotary). Angles
    and products are float32 at least whatever q is, and the result is cast last.

    Args:
        head_channels: D, channels of a head.
        base: the longest wavelength is 2π · base.
        layout: "half" or "interleaved".
        partial: how many channels turn, the first ones: an int, or a float for a share of them; the others stay.
        axes: 0 for positions ``(..., N)``, else ``(..., N, axes)``.
        linear: divides the positions, to read longer sequences than in training (position interpolation).
        ntk: multiplies ``base`` by ``ntk^(width / (width - 2))``, which slows the long waves and keeps the short ones.

    Shapes:
        q: ``(..., N, D)``, queries or keys
        positions: integer ``(N,)``, or with as many dimensions as ``(..., N)`` (a head axis of 1 where q has heads);
            with ``axes`` one dimension more; 0 … N-1 when None
        returns: ``(..., N, D)``

    Raises:
        ValueError: for a width that cannot be paired, or positions that do not fit q.

    Source: Su et al. (RoFormer), 2021; linear: Chen et al., 2023; ntk: "NTK-aware scaled RoPE", 2023.

    >>> Rotary(4)(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([1]))
    tensor([[-1.9841,  1.9599,  2.4624,  4.0198]])
    """

    frequencies: Tensor

    def __init__(
        self,
        head_channels: int,
        *,
        base: float = 10000.0,
        layout: str = "half",
        partial: int | float = 1.0,
        axes: int = 0,
        linear: float = 1.0,
        ntk: float = 1.0,
    ) -> None:
        super().__init__()
        checks.one_of("layout", layout, ("half", "interleaved"))
        self.head_channels, self.layout, self.axes = checks.positive("head_channels", head_channels), layout, axes
        self.width = partial if isinstance(partial, int) else int(head_channels * partial)
        share = self.width // max(axes, 1)
        if not 0 < self.width <= head_channels or self.width % (2 * max(axes, 1)):
            raise ValueError(
                f"expected a width of whole pairs (an even number on each axis) up to head_channels={head_channels}, "
                f"got {self.width} channels to turn on {max(axes, 1)} axes"
            )
        if ntk != 1.0 and share == 2:
            raise ValueError("ntk= has no effect on a single pair of channels an axis; use linear=")
        self.base = base if ntk == 1.0 else base * ntk ** (share / (share - 2))
        self.linear = linear
        self.constant("frequencies", inverse_frequencies(share, self.base) / linear)

    def forward(self, q: Tensor, positions: Tensor | None = None) -> Tensor:
        if q.ndim < 2 or q.shape[-1] != self.head_channels:
            raise ValueError(f"expected q of shape (..., N, {self.head_channels}), got {tuple(q.shape)}")
        if positions is None:
            if self.axes:
                raise ValueError(f"expected positions of shape (..., N, {self.axes}), got none; pass positions=")
            positions = torch.arange(q.shape[-2], device=q.device)
        else:
            check_positions(positions, q.shape[:-1], self.axes)
            # (B, N) would broadcast over the heads of (B, H, N, D) without a word where B = H.
            if positions.ndim - bool(self.axes) not in (1, q.ndim - 1):
                raise ValueError(
                    f"expected positions (N,) or with the {q.ndim - 1} dimensions of q's (..., N), got "
                    f"{tuple(positions.shape)} for q {tuple(q.shape)}; add an axis for the heads: positions[:, None]"
                )
        turns = angles(positions, self.frequencies, self.axes)
        cos, sin = turns.cos(), turns.sin()
        turned, rest = q[..., : self.width], q[..., self.width :]
        if self.layout == "half":
            a, b = turned.chunk(2, dim=-1)
            turned = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
        else:
            a, b = turned.unflatten(-1, (-1, 2)).unbind(-1)
            turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
        turned = turned.to(q.dtype)
        return torch.cat([turned, rest], dim=-1) if self.width < self.head_channels else turned

    def extra_repr(self) -> str:
        return f"{self.head_channels}, base={self.base:g}, layout={self.layout!r}, width={self.width}, axes={self.axes}"
