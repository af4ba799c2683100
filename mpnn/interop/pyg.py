"""as_conv: a layer of ours as a convolution of PyG, with its hooks and edge masks.

Of this package this module alone imports PyG when it is imported: a subclass needs its base.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing as Base

from mpnn.binding import bind
from mpnn.call import Call
from mpnn.checks import instance
from mpnn.edge_index import read
from mpnn.interop.pyg_base import column, looked_into, node_sets
from mpnn.kernels.reference import edge_weights
from mpnn.message_passing import MessagePassing
from mpnn.neighbours import Graph
from mpnn.normalise import weigh
from mpnn.segments import segment_max, segment_maximum, segment_sum


class Conv(Base):
    """A MessagePassing of ours under PyG's interface: y = layer(x, edge_index, …).

    It runs by the layer's kernels. While an explainer sets an edge mask, or a hook of PyG's propagate is registered,
    it computes the same edge by edge, through PyG's propagate: ``message`` gets the source's value and the weight.

    Shapes: x (..., N, C) or (x_source, x_target), edge_index (2, E), ``EdgeIndex`` or a sparse matrix
    A[target, source], edge_attr (E, k), edge_weight (E,), edge_type (E,), batch (N,).
    ``return_attention_weights`` gives also (edge_index with added loops, weights before dropout), where the weight is a
    number per head.
    """

    def __init__(self, layer: MessagePassing) -> None:
        reduce = getattr(getattr(layer, "weight", None), "reduce", "sum")
        super().__init__(aggr=reduce, node_dim=-2)
        instance("layer", layer, MessagePassing, "a MessagePassing of ours")
        if not isinstance(layer.neighbours, Graph) or layer.neighbours.built:
            raise ValueError(
                f"expected a layer over Graph(), which takes the call's edge_index as PyG does, got {layer.neighbours}"
            )
        self.layer = layer
        self.in_channels, self.out_channels = layer.weight.width(), layer.weight.out_channels
        self._alpha: Tensor | None = None  # where PyG's explainers look for attention

    def reset_parameters(self) -> None:
        """Draw the layer's parameters again."""
        super().reset_parameters()
        self.layer.reset_parameters()

    def forward(  # type: ignore[no-untyped-def]
        self, x, edge_index, edge_attr=None, edge_weight=None, *, edge_type=None, batch=None, coordinates=None,
        mask=None, size=None, return_attention_weights=None,
    ) -> Any:  # fmt: skip
        """The layer's output, (N, out_channels)."""
        x = node_sets(x, size, self.layer.weight.target_width())
        edges = {"edge_type": edge_type, "edge_weight": edge_weight}
        given = {"batch": batch, "coordinates": coordinates, "mask": mask}
        edge_attr = column(edge_attr)
        for step in ("edge_update", "message_and_aggregate"):
            if getattr(self, f"_{step}_forward_hooks") or getattr(self, f"_{step}_forward_pre_hooks"):
                raise ValueError(
                    f"a hook of {step} would never run: as_conv has message and aggregate; register it for one of these"
                )
        if looked_into(self) or return_attention_weights:
            call = bind(
                self.layer.neighbours, self.layer.weight, self.training, x,
                edges | {"edge_index": edge_index, "edge_attr": edge_attr}, given,
            )  # fmt: skip
            return self._by_edges(call, edge_index, bool(return_attention_weights))
        return self.layer(x, edge_index, edge_attr, **edges, **given)

    def _by_edges(self, call: Call, edge_index: Any, wanted: bool) -> Any:
        """The same through PyG's propagate."""
        rule = call.weight
        if wanted and rule.groups is not None:
            raise ValueError(f"expected heads for return_attention_weights, got {type(rule).__name__} with matrices")
        edges, weight = edge_weights(call)
        index, rows = torch.stack([edges.source, edges.target]), edges.index
        assert rows is not None  # a graph's edges have their rows
        self._alpha = _in_rows(edge_index, weight, rows) if rule.normalise == "softmax" else None
        used = torch.nn.functional.dropout(weight, call.dropout) if call.dropout else weight
        keep = call.keep(edges)
        aggregate = self.propagate(
            index, size=(call.sources, call.targets), value=call.value, weight=used, rows=rows,
            added=rule.edge_value(call.pairs(edges, None)), keep=keep,
        )  # fmt: skip
        self._alpha = None
        y = rule.finish(aggregate.to(call.value.dtype), call.nodes.get("x_target"))
        return (y, (index, weight)) if wanted else y

    def edge_update(self):
        """PyG's step before propagate, which a layer of ours has none of."""
        raise NotImplementedError(
            "as_conv has no edge_update, since no layer here changes what stands at its edges; message and aggregate "
            "are what hooks and explainers see"
        )

    def message(self, value_j, weight, added):
        """w_ij · value_j: (..., heads, E, D), or (..., E, C) with groups."""
        return weigh(self.layer.weight, value_j, weight, added)

    def explain_message(self, inputs, rows):
        """Messages times the mask of their edge; added loops are not masked."""
        mask = self._edge_mask
        if mask is None:
            raise ValueError("expected an edge mask while explain=True, got None; PyG's explainers set it")
        mask = mask.sigmoid() if self._apply_sigmoid else mask
        mask = torch.cat([mask, mask.new_ones(1)])  # the row -1 of an added loop is the last
        return inputs * mask[rows][:, None]

    def aggregate(self, inputs, index, keep, dim_size):
        """The sum, mean or largest message of each target: (..., N, C)."""
        heads = self.layer.weight.heads is not None
        if keep is not None and heads:
            keep = keep.transpose(-2, -1)[..., None]
        if self.layer.weight.reduce == "max":
            y = segment_maximum(
                inputs,
                keep,
                index,
                lambda t: segment_sum(t, index, dim_size),
                lambda t: segment_max(t, index, dim_size),
            )
        else:
            y = segment_sum(inputs, index, dim_size)
        if self.layer.weight.reduce == "mean":
            one = inputs.new_ones(len(index), 1) if keep is None else keep.to(inputs.dtype)
            y = y / segment_sum(one, index, dim_size).clamp(min=1)
        return y.transpose(-3, -2).flatten(-2) if heads else y


def _in_rows(edge_index: Any, weight: Tensor, rows: Tensor) -> Tensor:
    """Weights in the caller's order of edges, 0 for a loop that was replaced, then those of added loops: an explainer
    takes the first E for the caller's edges.
    """
    index = edge_index.edge_index if isinstance(edge_index, Graph) else read(edge_index)[0]
    given = rows >= 0
    own = weight.new_zeros(*weight.shape[:-2], index.shape[1], weight.shape[-1])
    own = own.index_copy(-2, rows[given], weight[..., given, :])
    return torch.cat([own, weight[..., ~given, :]], -2)


def as_conv(layer: MessagePassing) -> Conv:
    """A layer over ``Graph()`` as a convolution of PyG: a subclass of its ``MessagePassing``.

    It stands in ``torch_geometric.nn.Sequential``, ``HeteroConv``, ``to_hetero``, ``GPSConv(conv=...)`` and PyG's
    explainers (GNNExplainer, AttentionExplainer), takes ``EdgeIndex`` and sparse matrices, and shares the layer's
    parameters.

    Raises:
        TypeError, ValueError: for what is no MessagePassing of ours over edges that the call brings.

    Source: ``torch_geometric.nn.MessagePassing``.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing
        >>> from mpnn.interop.pyg import as_conv
        >>> from mpnn.neighbours import Graph
        >>> from mpnn.weights import SharedKernel
        >>> conv = as_conv(MessagePassing(Graph(self_loops="add"), SharedKernel(4, 8, normalise="symmetric")))
        >>> conv
        Conv(4, 8)
        >>> conv(torch.ones(3, 4), torch.tensor([[0, 1], [1, 2]])).shape
        torch.Size([3, 8])
    """
    return Conv(layer)
