"""The atlas's row of `Graph`: edges, among them a duplicate and a loop; a node without any."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from mpnn import MessagePassing
from mpnn.experiments.atlas_case import Case, Names, copied, linears, shared
from mpnn.neighbours import Graph
from mpnn.weights import AdditiveScore, AdditiveScoreV2, EdgeLearned, QKSoftmax, RadialFilter, SharedKernel, Static

NODES, EDGES = 7, ((0, 1), (1, 2), (0, 1), (3, 3), (4, 3), (2, 0), (5, 3), (1, 4), (0, 4), (3, 5))


def edges() -> Tensor:
    """`edge_index` (2, E)."""
    return torch.tensor(EDGES).t().contiguous()


def nodes(channels: int) -> Tensor:
    """Features of the nodes."""
    return torch.randn(NODES, channels)


def features(channels: int) -> Tensor:
    """Features of the edges."""
    return torch.randn(len(EDGES), channels)


def learned_adjacency() -> Case:
    """`Graph` × `Static`: a parameter for each distinct pair, in a dense A[target, source]."""
    layer = MessagePassing(Graph(edges(), NODES), Static(3, 3, heads=1, value=False))
    rule: Any = layer.weight
    weight, bias = rule.weight, rule.bias
    count = Counter((t, s) for s, t in EDGES)
    target, source = torch.tensor(sorted(count)).t()
    times = torch.tensor([float(count[pair]) for pair in sorted(count)])

    def reference(x: Tensor) -> Tensor:
        return x.new_zeros(NODES, NODES).index_put((target, source), weight[0] * times) @ x + bias

    return Case(layer, layer, reference, (nodes(3),), shared(layer))


def _matrix(w: Tensor) -> Tensor:
    return w[None]


def beside(layer: MessagePassing, conv: nn.Module, names: Names, *inputs: Tensor, **data: Any) -> Case:
    """Ours and PyG's layer on the same graph; the third input, if any, is what the call names ``data["third"]``."""
    index, third = edges(), data.get("third")

    def call(x: Tensor, *more: Tensor) -> Tensor:
        return layer(x, index, **({third: more[0]} if third else {}))

    def reference(x: Tensor, *more: Tensor) -> Tensor:
        return conv(x, index, *more)

    return Case(layer, call, reference, inputs, copied(layer, conv, names))


def gcn() -> Case:
    from torch_geometric.nn import GCNConv

    layer = MessagePassing(Graph(self_loops="add"), SharedKernel(3, 4, normalise="symmetric"))
    names: Names = {"weight.weight": ("lin.weight", _matrix), "weight.bias": "bias"}
    return beside(layer, GCNConv(3, 4), names, nodes(3), torch.rand(len(EDGES)) + 0.5, third="edge_weight")


def graph_conv() -> Case:
    from torch_geometric.nn import GraphConv

    layer = MessagePassing(Graph(), SharedKernel(3, 4, root=True))
    names: Names = {
        "weight.weight": ("lin_rel.weight", _matrix),
        "weight.bias": "lin_rel.bias",
        "weight.root.weight": "lin_root.weight",
    }
    return beside(layer, GraphConv(3, 4), names, nodes(3), torch.randn(len(EDGES)), third="edge_weight")


def sage() -> Case:
    from torch_geometric.nn import SAGEConv

    layer = MessagePassing(Graph(), SharedKernel(3, 4, reduce="mean", root=True))
    names: Names = {
        "weight.weight": ("lin_l.weight", _matrix),
        "weight.bias": "lin_l.bias",
        "weight.root.weight": "lin_r.weight",
    }
    return beside(layer, SAGEConv(3, 4), names, nodes(3))


def rgcn() -> Case:
    from torch_geometric.nn import RGCNConv

    layer = MessagePassing(Graph(relations=3), SharedKernel(3, 4, normalise="relation", root=True))
    conv = RGCNConv(3, 4, num_relations=3)
    index, kind = edges(), torch.arange(len(EDGES)) % 3
    names: Names = {
        "weight.weight": ("weight", lambda w: w.mT),
        "weight.root.weight": ("root", lambda w: w.mT),
        "weight.bias": "bias",
    }
    ties = copied(layer, conv, names)
    return Case(layer, lambda x: layer(x, index, edge_type=kind), lambda x: conv(x, index, kind), (nodes(3),), ties)


def nnconv() -> Case:
    from torch_geometric.nn import NNConv

    def network() -> nn.Sequential:
        return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3 * 4))

    layer = MessagePassing(Graph(), EdgeLearned(3, 4, network(), root=True))
    names = linears({"weight.network.0": "nn.0", "weight.network.2": "nn.2"})
    names |= {"weight.root.weight": "lin.weight", "weight.bias": "bias"}
    return beside(layer, NNConv(3, 4, network()), names, nodes(3), features(2), third="edge_attr")


def cfconv() -> Case:
    from torch_geometric.nn.models.schnet import CFConv, GaussianSmearing, ShiftedSoftplus

    cutoff, gaussians = 9.0, 10
    filters = RadialFilter(4, cutoff=cutoff, gaussians=gaussians)
    layer = MessagePassing(Graph(), EdgeLearned(3, 4, filters, groups=4, value=True, output=True))
    network = nn.Sequential(nn.Linear(gaussians, 4), ShiftedSoftplus(), nn.Linear(4, 4))
    conv, smear = CFConv(3, 4, 4, network, cutoff), GaussianSmearing(0.0, cutoff, gaussians)
    names = linears({"weight.network.layers.0": "nn.0", "weight.network.layers.2": "nn.2", "weight.output": "lin2"})
    ties = copied(layer, conv, names | {"weight.value.weight": "lin1.weight"})
    index = edges()[:, [i for i, (s, t) in enumerate(EDGES) if s != t]]  # the length of a loop has no derivative

    def reference(x: Tensor, place: Tensor) -> Tensor:
        length = (place[index[0]] - place[index[1]]).norm(dim=-1)
        return conv(x, index, length, smear(length))

    inputs = (nodes(3), torch.randn(NODES, 3))
    return Case(layer, lambda x, place: layer(x, index, coordinates=place), reference, inputs, ties)


def gat() -> Case:
    from torch_geometric.nn import GATConv

    score = AdditiveScore(8, heads=2, edge_channels=2)
    layer = MessagePassing(Graph(self_loops="replace"), EdgeLearned(3, 8, score, heads=2, normalise="softmax"))
    vectors = {"source": "att_src", "target": "att_dst", "edge_vector": "att_edge"}
    names: Names = {f"weight.network.{a}": (b, lambda v: v[0]) for a, b in vectors.items()}
    names |= {
        "weight.value.weight": "lin.weight",
        "weight.network.edge.weight": "lin_edge.weight",
        "weight.bias": "bias",
    }
    return beside(layer, GATConv(3, 4, heads=2, edge_dim=2), names, nodes(3), features(2), third="edge_attr")


def gatv2() -> Case:
    from torch_geometric.nn import GATv2Conv

    score = AdditiveScoreV2(8, heads=2, target_channels=3, edge_channels=2)
    weight = EdgeLearned(3, 8, score, heads=2, value=nn.Linear(3, 8), normalise="softmax")
    layer = MessagePassing(Graph(self_loops="replace"), weight)
    names = linears({"weight.value": "lin_l", "weight.network.target": "lin_r"})
    names |= {
        "weight.network.vector": ("att", lambda v: v[0]),
        "weight.network.edge.weight": "lin_edge.weight",
        "weight.bias": "bias",
    }
    return beside(layer, GATv2Conv(3, 4, heads=2, edge_dim=2), names, nodes(3), features(2), third="edge_attr")


def transformer_conv() -> Case:
    from torch_geometric.nn import TransformerConv

    weight = QKSoftmax(3, heads=2, head_channels=4, out_channels=8, edge_channels=2, output=False, root=True)
    names = linears(
        {
            f"weight.{a}": f"lin_{b}"
            for a, b in (("query", "query"), ("key", "key"), ("value", "value"), ("root", "skip"))
        }
    )
    names |= {"weight.edge.weight": "lin_edge.weight"}
    conv = TransformerConv(3, 4, heads=2, edge_dim=2)
    return beside(MessagePassing(Graph(), weight), conv, names, nodes(3), features(2), third="edge_attr")
