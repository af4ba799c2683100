"""QKSoftmax: multi-head scaled dot-product attention."""

from __future__ import annotations

import math

from torch import Tensor, nn

from mpnn.checks import divides, instance, positive
from mpnn.functions import linear
from mpnn.pairs import Pairs
from mpnn.positions.base import PositionCode, ScoreBias
from mpnn.scores import edge_scores
from mpnn.weights.base import Weight, linear_or_none


class QKSoftmax(Weight):
    """Attention: y_i = output(Σ_j softmax_j(scale · q_i·k_j + bias_ij) v_j), of q = query(x), k = key(x), v = value(x).

    On ``AllTokens`` it is ``nn.MultiheadAttention``, on a ``Graph`` TransformerConv, on a ``Grid`` attention among
    neighbouring cells.

    Args:
        channels: of the target tokens. heads, kv_heads: of queries; of keys and values (grouped-query attention).
        out_channels: by default ``channels``. head_channels: by default channels / heads.
        source_channels: of the source tokens where these differ: an int, or (key, value), the widths of the two parts
            of a source token, keys first. Either way a call may give them apart, ``source=(keys, values)``.
        position: a module called on q and k, as ``Rotary(head_channels)``. score_bias: a module, as ``ALiBi(heads)``.
        edge_channels: edge attributes are projected and added to key and value (TransformerConv).
        qkv_bias: of query, key and value; None follows ``bias``, which is the output's.
        output: True, False or an ``nn.Linear``. root: adds a ``Linear`` of the target's token.
        scale: by default 1/√head_channels. dropout: on the weights, in training.

    Shapes: ``query`` channels → heads·head_channels, ``key`` and ``value`` → kv_heads·head_channels, ``edge`` without
    bias, ``output`` heads·head_channels → out_channels.

    Raises:
        ValueError: for heads that do not divide; for ``output=False`` with another width than heads·head_channels.

    Source: Vaswani et al. (2017), `arXiv:1706.03762 <https://arxiv.org/abs/1706.03762>`_; Ainslie et al. (2023),
    `arXiv:2305.13245 <https://arxiv.org/abs/2305.13245>`_; ``nn.MultiheadAttention``,
    ``torch_geometric.nn.TransformerConv``.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing
        >>> from mpnn.neighbours import AllTokens
        >>> from mpnn.weights import QKSoftmax
        >>> MessagePassing(AllTokens(causal=True), QKSoftmax(64, heads=4))(torch.ones(2, 10, 64)).shape
        torch.Size([2, 10, 64])
    """

    reads_target = True

    def __init__(  # type: ignore[no-untyped-def]
        self, channels, heads=8, *, out_channels=None, kv_heads=None, head_channels=None, source_channels=None,
        position=None,
        score_bias=None, edge_channels=0, dropout=0.0, qkv_bias=None, output=True, bias=True, root=False, scale=None,
    ) -> None:  # fmt: skip
        super().__init__(
            heads=positive("heads", heads), normalise="softmax", dropout=dropout, edge_channels=edge_channels
        )
        positive("channels", channels)
        self.kv_heads = heads if kv_heads is None else positive("kv_heads", kv_heads)
        divides("kv_heads", self.kv_heads, "heads", heads)
        if head_channels is None:
            divides("heads", heads, "channels", channels)
        width = channels // heads if head_channels is None else positive("head_channels", head_channels)
        self.head_channels, inner = width, heads * width
        self.in_channels, self.scale = channels, 1 / math.sqrt(width) if scale is None else float(scale)
        if out_channels is None:
            out_channels = channels if output is not False else inner
        self.out_channels = positive("out_channels", out_channels)
        self.split: tuple[int, int] | None = None
        key_channels = value_channels = channels if source_channels is None else source_channels
        if isinstance(source_channels, tuple):
            if len(source_channels) != 2:
                raise ValueError(f"expected source_channels to be an int or (key, value), got {source_channels}")
            self.split = key_channels, value_channels = source_channels
        positive("source_channels", key_channels)
        positive("source_channels", value_channels)
        self.source_channels = sum(self.split) if self.split else key_channels
        qkv = bias if qkv_bias is None else qkv_bias
        self.query = nn.Linear(channels, inner, bias=qkv)
        self.key = nn.Linear(key_channels, self.kv_heads * width, bias=qkv)
        self.value = nn.Linear(value_channels, self.kv_heads * width, bias=qkv)
        self.edge = nn.Linear(edge_channels, inner, bias=False) if edge_channels else None
        self.position, self.score_bias = position, score_bias
        self.output = linear_or_none("output", output, inner, out_channels, bias=bias)
        if self.output is None and out_channels != inner:
            raise ValueError(
                f"expected out_channels = heads · head_channels = {inner} with output=False, got {out_channels}"
            )
        self.root = linear_or_none("root", root, channels, out_channels, bias=bias)
        self._given = tuple(n for n, m in (("output", output), ("root", root)) if isinstance(m, nn.Module))
        if position is not None:
            instance("position", position, nn.Module, "a module of queries and keys, as Rotary(head_channels)")
            if isinstance(position, ScoreBias | PositionCode):
                place = "score_bias=" if isinstance(position, ScoreBias) else "the model, before its layers"
                raise TypeError(f"expected position to turn queries and keys, got {position}; it belongs to {place}")
            if getattr(position, "head_channels", width) != width:
                raise ValueError(f"expected position for head_channels={width}, got {position}")
        if score_bias is not None:
            instance("score_bias", score_bias, ScoreBias, "a ScoreBias module, as ALiBi(heads)")
            if score_bias.heads != heads:
                raise ValueError(f"expected score_bias for {heads} heads, got {score_bias.heads}")
        self.on_graph = False

    def numbers(self, neighbours) -> tuple:  # type: ignore[no-untyped-def]
        return ()

    def build(self, neighbours) -> None:  # type: ignore[no-untyped-def]
        self.on_graph = hasattr(neighbours, "self_loops")
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Redraw as nn.MultiheadAttention does (packed where the widths agree), on a graph as TransformerConv."""
        for name in ("query", "key", "value", "edge", "output", "root"):
            layer = None if name in self._kept else getattr(self, name)
            if layer is not None:
                layer.reset_parameters()
        if self.on_graph:
            return
        assert self.value is not None
        projections = (self.query, self.key, self.value)
        packed = len({layer.weight.shape for layer in projections}) == 1
        for layer in projections:  # one matrix of three times the rows has a smaller bound
            rows, columns = layer.weight.shape
            bound = math.sqrt(6.0 / ((3 * rows if packed else rows) + columns))
            nn.init.uniform_(layer.weight, -bound, bound)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        if self.output is not None and self.output.bias is not None and "output" not in self._kept:
            nn.init.zeros_(self.output.bias)

    def nodes(self, x_source: Tensor, x_target: Tensor | None, values: Tensor | None = None) -> dict[str, Tensor]:
        if x_target is None:
            raise ValueError(
                "expected (x_source, x_target) as first argument, since QKSoftmax reads the target, got x alone"
            )
        at_key = at_value = x_source
        if values is not None:
            at_value = values
        elif self.split is not None:
            at_key, at_value = x_source.split(self.split, -1)
        assert self.value is not None
        return {
            "query": self._by_head(linear(self.query, x_target), self.heads),
            "key": self._by_head(linear(self.key, at_key), self.kv_heads),
            "value": self._by_head(linear(self.value, at_value), self.kv_heads),
        }

    @staticmethod
    def _by_head(x: Tensor, heads: int | None) -> Tensor:
        return x.unflatten(-1, (heads, -1)).transpose(-3, -2)

    def _edge(self, pairs: Pairs) -> Tensor | None:
        if self.edge is None:
            return None
        if pairs.edge_projection is None:
            pairs.edge_projection = self.edge(pairs.attr).unflatten(-1, (self.heads, -1))
        return pairs.edge_projection

    def per_edge(self, pairs: Pairs) -> Tensor:
        return edge_scores(pairs, self.scale, self.score_bias, edge_key=self._edge(pairs))

    def edge_value(self, pairs: Pairs) -> Tensor | None:
        return self._edge(pairs)

    def adds_value(self) -> bool:
        return self.edge is not None

    def width(self) -> int:
        return self.source_channels

    def part_widths(self) -> tuple[int, int]:
        """Channels of keys and of values, where a call gives them apart."""
        return (self.source_channels, self.source_channels) if self.split is None else self.split

    def extra_repr(self) -> str:
        grouped = f", kv_heads={self.kv_heads}" if self.kv_heads != self.heads else ""
        return f"{self.in_channels}, heads={self.heads}{grouped}"
