"""What a network of the edge is."""

from __future__ import annotations

from torch import Tensor, nn

from mpnn.functions import heard
from mpnn.pairs import Pairs


class EdgeNetwork(nn.Module):
    """A network of the edge: a module whose ``forward(pairs)`` returns (..., E, heads) or (..., E, in·out/groups).

    A subclass names ``edge_channels``, the width of ``pairs.attr`` that it reads (0 for none), ``reads_target``,
    ``reads_offset`` (None where it is not told), and ``features``, the width of what it returns (None for any).
    """

    edge_channels: int = 0
    reads_target = False
    reads_offset: bool | None = None
    features: int | None = None

    def forward(self, pairs: Pairs) -> Tensor:
        raise TypeError(f"expected {type(self).__name__} to define forward(pairs)")

    def edge_value(self, pairs: Pairs) -> Tensor | None:
        """What the edge adds to its source's value, (..., E, heads, D), with groups (..., E, C); nothing by default."""
        return None

    def factor(self, value: Tensor, x_source: Tensor, x_target: Tensor) -> tuple[Tensor, Tensor] | None:
        """For scores act(s_j + t_i + edge): the per-token terms ((..., M, heads), (..., N, heads)); None for others."""
        return None

    def factors(self) -> bool:
        """Whether :meth:`factor` tells what a call of the network would: one class defines it and ``forward``, and
        nobody listens to the network or has put a function in the place of either."""
        if heard(self) or "factor" in self.__dict__:
            return False
        definer = next(c for c in type(self).__mro__ if "forward" in c.__dict__)
        return next(c for c in type(self).__mro__ if "factor" in c.__dict__) is definer
