"""EdgeLearned: the weight is what a network says about the edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from mpnn.checks import heads_or_groups, positive
from mpnn.pairs import Pairs
from mpnn.weights.base import EdgeNetwork, Weight


class EdgeLearned(Weight):
    """The weight of an edge is a network of what stands at it: y_i = Σ_j f(x_i, x_j, e_ij, offset_ij) · value(x_j) + b.

    NNConv (``network`` an ``nn.Module`` of the edge attributes), CFConv (:class:`RadialFilter`, ``groups=channels``),
    GATConv and GATv2Conv (:class:`AdditiveScore`, :class:`AdditiveScoreV2`, ``heads=h``, ``normalise="softmax"``),
    continuous-kernel convolution (:class:`OffsetMLP` on a ``Grid``), additive (Bahdanau) attention, relation networks.

    Args:
        network: an :class:`EdgeNetwork` or a plain function, which gets ``pairs``; any other ``nn.Module`` gets
            ``pairs.attr``. It returns (..., E, heads) or (..., E, in·out/groups), read as (groups, in/groups,
            out/groups).
        in_channels, out_channels: widths; with heads, None and ``bias=False`` take any (AGNNConv).
        edge_channels: the width of ``edge_attr``; an ``EdgeNetwork`` tells its own.
        dropout: on the weights, in training.

    Raises:
        TypeError: where ``network`` cannot be called. ValueError: as :class:`~mpnn.weights.Weight`; at the call for
            edge attributes that are missing, unwanted or of another width.

    Source: Gilmer et al. (2017), `arXiv:1704.01212 <https://arxiv.org/abs/1704.01212>`_; Veličković et al. (2018),
    `arXiv:1710.10903 <https://arxiv.org/abs/1710.10903>`_; ``torch_geometric.nn.NNConv``, ``GATConv``.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing
        >>> from mpnn.neighbours import Graph
        >>> from mpnn.weights import AdditiveScore, EdgeLearned
        >>> weight = EdgeLearned(4, 8, AdditiveScore(8, heads=2), heads=2, normalise="softmax")
        >>> gat = MessagePassing(Graph(self_loops="replace"), weight)
        >>> gat(torch.ones(3, 4), torch.tensor([[0, 1], [1, 2]])).shape
        torch.Size([3, 8])
    """

    def __init__(  # type: ignore[no-untyped-def]
        self, in_channels, out_channels, network: nn.Module | Callable[[Pairs], Tensor], *, edge_channels=0, groups=1,
        heads=None, value=None, output=None, reduce="sum", normalise=None, root=False, bias=True, dropout=0.0,
    ) -> None:  # fmt: skip
        if isinstance(network, type):
            raise TypeError(f"expected network to be a module or a function, got the class {network.__name__}")
        if not callable(network):
            raise TypeError(f"expected network to be a module or a function of pairs, got {type(network).__name__}")
        if in_channels is not None or heads is None:
            positive("in_channels", in_channels)
        elif bias:
            raise ValueError("a bias has no width with in_channels=None; pass bias=False")
        super().__init__(
            in_channels, out_channels, heads=heads, groups=heads_or_groups(heads, groups), value=value, output=output,
            reduce=reduce, normalise=normalise, root=root, bias=bias, dropout=dropout, edge_channels=edge_channels,
        )  # fmt: skip
        self.network = network
        self._given += ("network",)
        self.takes_pairs = isinstance(network, EdgeNetwork) or not isinstance(network, nn.Module)
        if isinstance(network, EdgeNetwork):
            self._fit(network, edge_channels)
            self.edge_channels = network.edge_channels
        elif edge_channels == 0:
            self.edge_channels = None  # type: ignore[assignment]  # the network alone knows its width
        self.needs_attr = not self.takes_pairs or bool(self.edge_channels)
        self.reads_target = isinstance(network, EdgeNetwork) and network.reads_target

    def _fit(self, network: EdgeNetwork, edge_channels: int) -> None:
        """Refuse a ready network of other widths than this weight's."""
        name = type(network).__name__
        before = None if self.in_channels is None else self.before
        wanted = self.heads if self.heads is not None else self.before * self.after // (self.groups or 1)
        legend = "heads" if self.heads is not None else "in·out/groups"
        for field, ours, theirs, meaning in (
            ("edge_channels", edge_channels or network.edge_channels, network.edge_channels, "the network's"),
            ("features", wanted, network.features, legend),
            ("channels", before, getattr(network, "value_channels", None), "those of value(x)"),
        ):
            if theirs is not None and theirs != ours:
                raise ValueError(f"expected {name} with {field}={ours} ({meaning}), got {theirs}")

    def numbers(self, neighbours: Any) -> tuple:
        return ()

    def build(self, neighbours: Any) -> None:
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Redraw as GATConv, CFConv and NNConv do: value and output by glorot, bias 0, the network by its rule."""
        self.reset_linears("value", "output")
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        if isinstance(self.network, nn.Module) and "network" not in self._kept:
            _reset(self.network)

    def target_width(self) -> int | None:
        """The network's own, where it projects the target by itself."""
        own = getattr(self.network, "target_channels", None)
        return own if own is not None and self.root is None else super().target_width()

    def edge_value(self, pairs: Pairs) -> Tensor | None:
        return self.network.edge_value(pairs) if isinstance(self.network, EdgeNetwork) else None

    def adds_value(self) -> bool:
        return isinstance(self.network, EdgeNetwork) and type(self.network).edge_value is not EdgeNetwork.edge_value

    def per_edge(self, pairs: Pairs) -> Tensor:
        network: Callable[..., Tensor] = self.network
        return network(pairs) if self.takes_pairs else network(pairs.attr)


def _reset(module: nn.Module) -> None:
    """A module's own reset, else that of its children: a parent has drawn them already."""
    reset = getattr(module, "reset_parameters", None)
    if callable(reset):
        reset()
    else:
        for child in module.children():
            _reset(child)
