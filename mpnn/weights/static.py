"""Static: one parameter per pair, whatever the tokens hold."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mpnn.checks import heads_or_groups, positive
from mpnn.pairs import Pairs
from mpnn.slots import product
from mpnn.weights.base import Weight, uniform_


class Static(Weight):
    """One learned weight per pair: y_i = Σ_j W_ij x_j + b_i.

    ``Full`` × ``Static`` is ``nn.Linear`` on units, ``Grid`` × ``Static`` a locally connected layer, a built ``Graph``
    a learned adjacency, ``AllTokens(max_tokens=m)`` with ``heads`` token mixing (MLP-Mixer, random Synthesizer with
    ``normalise="softmax"``).

    Shapes: ``weight`` (targets, out, sources, in/groups) on ``Full`` and ``AllTokens``, (cells, out, in/groups,
    \\*kernel) on
    a ``Grid``, (pairs, out, in/groups) by target, source on a built ``Graph``; with heads (heads, \\*the pair axes).
    ``bias`` (targets, out) on ``Full``, else (out,).

    Raises:
        ValueError: on a neighbourhood whose pairs are not fixed, and as :class:`~mpnn.weights.Weight`.

    Source: Tolstikhin et al. (2021), `arXiv:2105.01601 <https://arxiv.org/abs/2105.01601>`_; Tay et al. (2021),
    `arXiv:2005.00743 <https://arxiv.org/abs/2005.00743>`_; ``torch.nn.Linear``.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing
        >>> from mpnn.neighbours import Full
        >>> from mpnn.weights import Static
        >>> MessagePassing(Full(784, 256), Static())(torch.ones(8, 784, 1)).shape
        torch.Size([8, 256, 1])
    """

    def __init__(  # type: ignore[no-untyped-def]
        self, in_channels=1, out_channels=1, *, groups=1, heads=None, value=None, output=None, normalise=None,
        root=False, bias=True,
    ) -> None:  # fmt: skip
        positive("in_channels", in_channels)
        super().__init__(
            in_channels, out_channels, heads=heads, groups=heads_or_groups(heads, groups), value=value, output=output,
            normalise=normalise, root=root, bias=bias,
        )  # fmt: skip
        self.weight: nn.Parameter

    def numbers(self, neighbours) -> tuple:  # type: ignore[no-untyped-def]
        return neighbours.pair_layout(), getattr(neighbours, "max_tokens", None) is not None

    def build(self, neighbours) -> None:  # type: ignore[no-untyped-def]
        layout = neighbours.pair_layout()
        if layout is None:
            raise ValueError(
                f"expected a neighbourhood with fixed pairs for Static, got {neighbours}; give it its size: "
                "Full(n), Grid(size), AllTokens(max_tokens=m) or Graph(edge_index, num_nodes)"
            )
        lead, middle, trail = self.layout = layout
        pairs = product((*lead, *middle, *trail))
        sources = product((*middle, *trail)) if middle or trail else pairs / max(1, self._rows(neighbours))
        if self.heads is not None:
            shape: tuple[int, ...] = (self.heads, *lead, *middle, *trail)
            self.fan_in = max(sources, 1)
        else:
            assert self.groups is not None
            shape = (*lead, self.after, *middle, self.before // self.groups, *trail)
            self.fan_in = max(sources, 1) * self.before / self.groups
        self.weight = nn.Parameter(torch.empty(shape))
        if (
            self.bias is not None
            and middle
            and neighbours.pairs is not None
            and getattr(neighbours, "max_tokens", None) is None
        ):
            self.bias = nn.Parameter(torch.empty(*lead, self.out_channels))
        self.reset_parameters()

    @staticmethod
    def _rows(neighbours) -> int:  # type: ignore[no-untyped-def]
        return int(neighbours.sizes[1]) if getattr(neighbours, "sizes", None) else 1

    def reset_parameters(self) -> None:
        """Redraw as nn.Linear draws: U(-1/√fan_in, 1/√fan_in), fan_in = the sources of a target times in/groups."""
        self.reset_linears()
        uniform_(self.weight, self.fan_in)
        if self.bias is not None:
            uniform_(self.bias, self.fan_in)

    def matrices(self) -> Tensor:
        """The weights with their pair axes flattened in front: (pairs, out, in/groups) or (pairs, heads)."""
        lead, middle, _ = self.layout
        if self.heads is not None:
            return self.weight.flatten(1).t() if self.weight.ndim > 1 else self.weight
        out, inner = len(lead), len(lead) + 1 + len(middle)
        return self.weight.movedim((out, inner), (-2, -1)).flatten(0, -3)

    def per_edge(self, pairs: Pairs) -> Tensor:
        w = self.matrices().index_select(0, pairs.pair)
        if self.heads is not None:
            return w
        assert self.groups is not None
        return w.unflatten(-2, (self.groups, -1)).transpose(-2, -1).flatten(-3)
