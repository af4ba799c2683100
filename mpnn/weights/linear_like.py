"""Maps without a matrix that stand where a weight takes an ``nn.Linear``: heads joined in one, a scaled identity."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mpnn.checks import positive


class HeadMean(nn.Module):
    """The mean of the heads, as ``output``: y = 1/heads · Σ_h x_h (``concat=False`` of GATConv, TransformerConv).

    Shapes: x (..., heads · channels), head-major → (..., channels). Beside it ``value`` has heads · channels.

    Raises:
        ValueError: for numbers below 1.

    Source: Veličković et al. (2018), equation 6, `arXiv:1710.10903 <https://arxiv.org/abs/1710.10903>`_.

    Example::

        >>> from torch import nn
        >>> from mpnn.weights import AdditiveScore, EdgeLearned, HeadMean
        >>> rule = EdgeLearned(4, 8, AdditiveScore(16, heads=2), heads=2, normalise="softmax", value=nn.Linear(4, 16),
        ...                    output=HeadMean(2, 8))
        >>> rule.before, rule.out_channels
        (16, 8)
    """

    def __init__(self, heads: int, channels: int) -> None:
        super().__init__()
        self.heads, self.out_features = positive("heads", heads), positive("channels", channels)
        self.in_features = heads * channels

    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, self.out_features)).mean(-2)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, channels={self.out_features}"


class HeadSum(HeadMean):
    """The sum of the heads, as ``output``: y = Σ_h x_h (GMMConv's kernels, FeaStConv's heads).

    Shapes, errors: as :class:`HeadMean`.

    Source: Monti et al. (2017), `arXiv:1611.08402 <https://arxiv.org/abs/1611.08402>`_.

    Example::

        >>> import torch
        >>> from mpnn.weights import HeadSum
        >>> HeadSum(2, 3)(torch.tensor([1.0, 2.0, 3.0, 10.0, 20.0, 30.0]))
        tensor([11., 22., 33.])
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, self.out_features)).sum(-2)


class ScaledIdentity(nn.Module):
    """A target's own token, scaled, as ``root``: y = (1 + ε) x (GINConv).

    Args:
        eps: ε at first. trained: ε is a parameter, else a constant of the state dict.

    Shapes: x (..., C) of any width; ``eps`` (1,).

    Source: Xu et al. (2019), `arXiv:1810.00826 <https://arxiv.org/abs/1810.00826>`_; ``torch_geometric.nn.GINConv``.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing
        >>> from mpnn.neighbours import Graph
        >>> from mpnn.weights import ScaledIdentity, SharedKernel
        >>> sums = MessagePassing(Graph(), SharedKernel(None, None, fixed=True, root=ScaledIdentity(0.5), bias=False))
        >>> sums(torch.tensor([[1.0], [2.0]]), torch.tensor([[0], [1]]))
        tensor([[1.5000],
                [4.0000]], grad_fn=<AddBackward0>)
    """

    in_features = out_features = None  # any width

    def __init__(self, eps: float = 0.0, *, trained: bool = True) -> None:
        super().__init__()
        self.initial = float(eps)
        start = torch.full((1,), self.initial)
        if trained:
            self.eps = nn.Parameter(start)
        else:
            self.register_buffer("eps", start)

    def reset_parameters(self) -> None:
        """ε as at first."""
        with torch.no_grad():
            self.eps.fill_(self.initial)

    def forward(self, x: Tensor) -> Tensor:
        return (1 + self.eps) * x

    def extra_repr(self) -> str:
        return f"eps={self.initial}, trained={isinstance(self.eps, nn.Parameter)}"
