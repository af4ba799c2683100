"""GINConv, HypergraphConv, GPSConv: message passing joined with networks, and with itself."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from mpnn.interop.bridge import Refused, Unlike, lent
from mpnn.interop.compositions import Hyperedges, LocalGlobal
from mpnn.interop.pyg_base import Core, Pyg, biases, node_sets, parts, reduce_of
from mpnn.interop.pyg_filters import refused_network
from mpnn.interop.stacks import Stack
from mpnn.message_passing import MessagePassing
from mpnn.neighbours import AllTokens, Graph
from mpnn.weights import QKSoftmax, ScaledIdentity, SharedKernel


class GIN(Pyg):
    """``GINConv``: a sum, the node itself by 1 + ε, and then a network."""

    name = "GINConv"
    reduces = ("sum", "mean", "max")

    def refuse_more(self, layer: Any) -> list[str]:
        return refused_network("nn", layer.nn)

    def configure(self, layer: Any) -> Stack:
        root = ScaledIdentity(layer.initial_eps, trained=isinstance(layer.eps, nn.Parameter))
        weight = SharedKernel(None, None, fixed=True, reduce=reduce_of(layer), root=root, bias=False)
        return Stack(MessagePassing(Graph(), weight), after=copy.deepcopy(layer.nn))

    def tensors(self, layer: Any, core: nn.Module) -> dict[str, Tensor]:
        return {"layer.weight.root.eps": layer.eps} | lent("after", layer.nn)

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        if not isinstance(core, Stack) or core.after is None:
            raise Unlike("GINConv is a Stack with a network after it")
        _, weight = parts(self.name, core.layer, SharedKernel)
        root = weight.root
        if not isinstance(root, ScaledIdentity) or not weight.fixed:
            raise Refused("GINConv has no parameter but its network's and root=ScaledIdentity()")
        network = copy.deepcopy(core.after)
        trained = isinstance(root.eps, nn.Parameter)
        return self.original(network, root.initial, trained, aggr=options.get("aggr", weight.reduce)), {}

    def run(self, layer: Any, core: Core, x: Any, edge_index: Any, size: Any = None) -> Tensor:
        return core(node_sets(x, size), edge_index)


class Hypergraph(Pyg):
    """``HypergraphConv``: nodes to hyperedges and back."""

    name = "HypergraphConv"

    def refuse_more(self, layer: Any) -> list[str]:
        if layer.use_attention:
            return ["use_attention=True): one softmax serves both steps and is divided by the number of edges again"]
        return []

    def configure(self, layer: Any) -> Hyperedges:
        out, width = layer.lin.weight.shape
        to_edges = MessagePassing(Graph(), SharedKernel(width, out, reduce="mean", bias=False))
        to_nodes = MessagePassing(Graph(), SharedKernel(out, out, fixed=True, bias=layer.bias is not None))
        return Hyperedges(to_edges, to_nodes)

    def tensors(self, layer: Any, core: nn.Module) -> dict[str, Tensor]:
        return {"to_edges.weight.weight": layer.lin.weight[None]} | biases("to_nodes.weight.bias", layer.bias)

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        if not isinstance(core, Hyperedges):
            raise Unlike("HypergraphConv is Hyperedges")
        _, weight = parts(self.name, core.to_edges, SharedKernel)
        _, back = parts(self.name, core.to_nodes, SharedKernel)
        return self.original(weight.in_channels, weight.out_channels, bias=back.bias is not None), {}

    def run(  # type: ignore[no-untyped-def]
        self, layer: Any, core: Core, x, hyperedge_index, hyperedge_weight=None, hyperedge_attr=None, num_edges=None
    ) -> Tensor:
        return core(x, hyperedge_index, hyperedge_weight, num_edges=num_edges)


class GPS(Pyg):
    """``GPSConv``: any convolution that has a bridge beside attention over all tokens of a graph."""

    name = "GPSConv"

    def refuse(self, layer: Any) -> list[str]:
        from mpnn.interop.layer import reasons

        attention = layer.attn
        if type(attention) is not nn.MultiheadAttention:
            return [f"GPSConv(attn_type={layer.attn_type!r}): attention that is no softmax of all pairs"]
        why = [] if layer.conv is None else [f"GPSConv(conv=...): {each}" for each in reasons(layer.conv)]
        if attention.bias_k is not None or attention.add_zero_attn or not attention._qkv_same_embed_dim:
            why.append("GPSConv(attn_kwargs=...): bias_k, add_zero_attn, kdim and vdim add tokens or widths")
        return why

    def configure(self, layer: Any) -> LocalGlobal:
        mha = layer.attn
        conv = None
        if layer.conv is not None:
            bridge = _bridge(layer.conv)
            conv = bridge.configure(layer.conv)
            conv.origin = (type(layer.conv), bridge.options(layer.conv))
        bias = mha.in_proj_bias is not None
        attention = MessagePassing(AllTokens(), QKSoftmax(mha.embed_dim, mha.num_heads, dropout=mha.dropout, bias=bias))
        norms = (layer.norm1, layer.norm2, layer.norm3)
        return LocalGlobal(conv, attention, norms, layer.mlp, dropout=layer.dropout)

    def tensors(self, layer: Any, core: Any) -> dict[str, Tensor]:
        mha, found = layer.attn, lent("mlp", layer.mlp)
        for name in ("norm1", "norm2", "norm3"):
            norm = getattr(layer, name)
            found |= {} if norm is None else lent(name, norm)
        for part, matrix in zip(("query", "key", "value"), mha.in_proj_weight.chunk(3), strict=True):
            found[f"attention.weight.{part}.weight"] = matrix
        found["attention.weight.output.weight"] = mha.out_proj.weight
        if mha.in_proj_bias is not None:
            for part, bias in zip(("query", "key", "value"), mha.in_proj_bias.chunk(3), strict=True):
                found[f"attention.weight.{part}.bias"] = bias
            found["attention.weight.output.bias"] = mha.out_proj.bias
        if layer.conv is not None:
            inner = _bridge(layer.conv).tensors(layer.conv, core.conv)
            found |= {f"conv.{name}": view for name, view in inner.items()}
        return found

    def options(self, layer: Any) -> dict[str, Any]:
        return {}

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        from mpnn.interop.layer import to_layer

        if not isinstance(core, LocalGlobal):
            raise Unlike("GPSConv is LocalGlobal")
        weight: Any = core.attention.weight
        conv = None if core.conv is None else to_layer(core.conv)
        given = {"bias": weight.query.bias is not None, "dropout": weight.dropout}
        layer = self.original(weight.in_channels, conv, weight.heads, core.dropout, norm=None, attn_kwargs=given)
        layer.mlp = copy.deepcopy(core.mlp)
        layer.norm1, layer.norm2, layer.norm3 = (copy.deepcopy(n) for n in (core.norm1, core.norm2, core.norm3))
        from mpnn.interop.compositions import reads_batch

        layer.norm_with_batch = layer.norm1 is not None and reads_batch(layer.norm1)
        return layer, {}

    def call(  # type: ignore[no-untyped-def]
        self, layer: Any, core: Core, x, edge_index, batch=None, **kwargs: Any
    ) -> Tensor:
        return self.run(layer, core, x, edge_index, batch, **kwargs)

    def run(  # type: ignore[no-untyped-def]
        self, layer: Any, core: Core, x, edge_index, batch=None, **kwargs: Any
    ) -> Tensor:
        def local(conv: Core, x: Tensor, *args: Any, **given: Any) -> Any:
            return _bridge(layer.conv).call(layer.conv, conv, x, *args, **given)

        return core(x, edge_index, batch=batch, local=local, **kwargs)


def _bridge(conv: Any) -> Any:
    from mpnn.interop.layer import find

    found = find(conv)
    assert found is not None
    return found
