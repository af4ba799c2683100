"""PyG's layers, option by option: the layer equals each of them on every kernel."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import (
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    NNConv,
    RGCNConv,
    SAGEConv,
    TransformerConv,
)

from kernel_choice import on_each
from mpnn import MessagePassing
from mpnn.experiments.atlas_case import TOLERANCE, Case, Names, build, copied, linears, measure
from mpnn.experiments.atlas_graph import EDGES, NODES, edges, features, nodes
from mpnn.neighbours import Graph
from mpnn.weights import AdditiveScore, AdditiveScoreV2, EdgeLearned, QKSoftmax, SharedKernel
from reference_cases import Cases

CASES = Cases()
case = CASES.add


def matrix(w: Tensor) -> Tensor:
    """A Linear's weight as that of the one relation."""
    return w[None]


def first(v: Tensor) -> Tensor:
    """PyG's vectors have a leading 1."""
    return v[0]


INDEX = edges()
BIPARTITE = torch.tensor([[0, 1, 1, 2, 3, 0, 3], [1, 0, 2, 2, 4, 1, 4]])  # 4 sources, 6 targets; 3 and 5 get nothing


def transformer_conv(
    heads: int = 2,
    edge_dim: int | None = None,
    root: bool = True,
    concat: bool = True,
    bias: bool = True,
    two: bool = False,
) -> Case:
    """Without `concat` the heads are averaged, a fixed matrix on them."""
    output: Any = False
    if not concat:
        output = nn.Linear(4 * heads, 4, bias=False)
        output.weight = nn.Parameter(torch.eye(4).repeat(1, heads) / heads, requires_grad=False)
    weight = QKSoftmax(
        3, heads, head_channels=4, out_channels=4 if not concat else 4 * heads, source_channels=5 if two else None,
        edge_channels=edge_dim or 0, output=output, root=root, qkv_bias=bias, bias=bias,
    )  # fmt: skip
    if root and not bias:
        weight.root = nn.Linear(3, weight.out_channels, bias=False)
    layer = MessagePassing(Graph(), weight)
    theirs = TransformerConv((5, 3) if two else 3, 4, heads, concat, edge_dim=edge_dim, bias=bias, root_weight=root)
    names = linears({f"weight.{part}": f"lin_{part}" for part in ("query", "key", "value")}, bias)
    names |= linears({"weight.root": "lin_skip"}, bias) if root else {}
    names |= {"weight.edge.weight": "lin_edge.weight"} if edge_dim else {}
    ties = copied(layer, theirs, names, unread="nothing" if root else "lin_skip")
    return on_graph(layer, theirs, ties, edge_dim, two, 3)


def on_graph(layer: nn.Module, theirs: nn.Module, ties: Any, edge_dim: int | None, two: bool, width: int) -> Case:
    """One graph for both, of one or of two node sets, with edge features or without."""
    index = BIPARTITE if two else INDEX
    attr = (torch.randn(index.shape[1], edge_dim),) if edge_dim else ()
    if two:
        inputs = (torch.randn(4, 5), torch.randn(6, width), *attr)
        return Case(
            layer, lambda s, t, *e: layer((s, t), index, *e), lambda s, t, *e: theirs((s, t), index, *e), inputs, ties
        )
    return Case(
        layer, lambda x, *e: layer(x, index, *e), lambda x, *e: theirs(x, index, *e), (nodes(width), *attr), ties
    )


for heads, edge_dim, root in itertools.product((1, 3), (None, 2), (True, False)):
    case(transformer_conv, heads=heads, edge_dim=edge_dim, root=root)
case(transformer_conv, concat=False, root=True)
case(transformer_conv, concat=False, root=False, edge_dim=2)
case(transformer_conv, bias=False)
case(transformer_conv, two=True)
case(transformer_conv, two=True, edge_dim=2)


def gat(
    heads: int = 2, edge_dim: int | None = None, loops: bool = True, fill: Any = "mean", bias: bool = True,
    slope: float = 0.2, concat: bool = True, two: bool = False,
) -> Case:  # fmt: skip
    score = AdditiveScore(4 * heads, heads, edge_channels=edge_dim or 0, negative_slope=slope)
    weight = EdgeLearned(5 if two else 3, 4 * heads, score, heads=heads, normalise="softmax", bias=bias)
    layer = MessagePassing(Graph(self_loops="replace" if loops else None, loop_fill=fill), weight)
    theirs = GATConv(
        5 if two else 3, 4, heads, concat, slope, add_self_loops=loops, edge_dim=edge_dim, fill_value=fill, bias=bias
    )
    names: Names = {f"weight.network.{a}": (f"att_{b}", first) for a, b in (("source", "src"), ("target", "dst"))}
    names |= {"weight.value.weight": "lin.weight"} | ({"weight.bias": "bias"} if bias else {})
    if edge_dim:
        names |= {"weight.network.edge.weight": "lin_edge.weight", "weight.network.edge_vector": ("att_edge", first)}
    made = on_graph(layer, theirs, copied(layer, theirs, names), edge_dim, two, 5 if two else 3)
    if concat:
        return made
    return Case(
        layer, lambda *x: made.call(*x).unflatten(-1, (heads, 4)).mean(-2), made.reference, made.inputs, made.ties
    )


for edge_dim, loops in itertools.product((None, 2), (True, False)):
    case(gat, edge_dim=edge_dim, loops=loops)
case(gat, heads=1, bias=False)
case(gat, edge_dim=2, fill=0.5, slope=0.01)
case(gat, bias=False, concat=False)
case(gat, two=True, loops=False)


def gatv2(
    heads: int = 2,
    edge_dim: int | None = None,
    loops: bool = True,
    share: bool = False,
    bias: bool = True,
    two: bool = False,
) -> Case:
    score = AdditiveScoreV2(
        4 * heads, heads, target_channels=None if share else 3, edge_channels=edge_dim or 0, bias=bias
    )
    width = 5 if two else 3
    weight = EdgeLearned(
        width,
        4 * heads,
        score,
        heads=heads,
        value=nn.Linear(width, 4 * heads, bias=bias),
        normalise="softmax",
        bias=bias,
    )
    layer = MessagePassing(Graph(self_loops="replace" if loops else None), weight)
    widths = (5, 3) if two else 3
    theirs = GATv2Conv(widths, 4, heads, add_self_loops=loops, edge_dim=edge_dim, share_weights=share, bias=bias)
    names = linears({"weight.value": "lin_l"} | ({} if share else {"weight.network.target": "lin_r"}), bias)
    names |= {"weight.network.vector": ("att", first)} | ({"weight.bias": "bias"} if bias else {})
    names |= {"weight.network.edge.weight": "lin_edge.weight"} if edge_dim else {}
    return on_graph(layer, theirs, copied(layer, theirs, names), edge_dim, two, 3)


for edge_dim, loops, share in itertools.product((None, 2), (True, False), (True, False)):
    case(gatv2, edge_dim=edge_dim, loops=loops, share=share)
case(gatv2, heads=1, bias=False)
case(gatv2, two=True, loops=False)
case(gatv2, two=True, loops=False, edge_dim=2)


def gcn(
    weights: bool = False, loops: bool = True, bias: bool = True, improved: bool = False, normalise: bool = True
) -> Case:
    rule = Graph(self_loops="add" if loops else None, loop_weight=2.0 if improved else 1.0)
    layer = MessagePassing(rule, SharedKernel(3, 4, normalise="symmetric" if normalise else None, bias=bias))
    theirs = GCNConv(3, 4, improved, add_self_loops=loops, normalize=normalise, bias=bias)
    names: Names = {"weight.weight": ("lin.weight", matrix)} | ({"weight.bias": "bias"} if bias else {})
    inputs = (nodes(3), torch.rand(len(EDGES)) + 0.1) if weights else (nodes(3),)
    call = (lambda x, w: layer(x, INDEX, edge_weight=w)) if weights else (lambda x: layer(x, INDEX))
    return Case(layer, call, lambda x, *w: theirs(x, INDEX, *w), inputs, copied(layer, theirs, names))


for weights, loops in itertools.product((True, False), repeat=2):
    case(gcn, weights=weights, loops=loops)
case(gcn, improved=True, weights=True, bias=False)  # without edge weights PyG forgets the loops' weight of 2
case(gcn, improved=True, weights=True)
case(gcn, normalise=False, loops=False, weights=True)


def summed(
    conv: Any, aggr: str, weights: bool = False, bias: bool = True, two: bool = False, root: bool = True
) -> Case:
    """GraphConv and SAGEConv: a matrix commutes with sums and means; after a maximum it is the output's."""
    neighbour, own = ("lin_rel", "lin_root") if conv is GraphConv else ("lin_l", "lin_r")
    width, reduce = 5 if two else 3, {"add": "sum"}.get(aggr, aggr)
    linear: Any = nn.Linear(3, 4, bias=False) if root else False
    if aggr == "max":
        weight = SharedKernel(width, 4, fixed=True, output=True, reduce="max", root=linear, bias=bias)
        names: Names = linears({"weight.output": neighbour}, bias)
    else:
        weight = SharedKernel(width, 4, reduce=reduce, root=linear, bias=bias)
        names = {"weight.weight": (f"{neighbour}.weight", matrix)} | (
            {"weight.bias": f"{neighbour}.bias"} if bias else {}
        )
    layer = MessagePassing(Graph(), weight)
    given = {} if conv is GraphConv else {"root_weight": root}
    theirs = conv((5, 3) if two else 3, 4, aggr=aggr, bias=bias, **given)
    names |= {"weight.root.weight": f"{own}.weight"} if root else {}
    made = on_graph(layer, theirs, copied(layer, theirs, names), None, two, 3)
    if not weights:
        return made
    inputs = (*made.inputs, torch.randn((BIPARTITE if two else INDEX).shape[1]))

    def call(*given: Tensor) -> Tensor:
        x = given[:-1] if two else given[0]
        return layer(x, BIPARTITE if two else INDEX, edge_weight=given[-1])

    def reference(*given: Tensor) -> Tensor:
        return made.reference(*given)

    return Case(layer, call, reference, inputs, made.ties)


for aggr, weights in itertools.product(("add", "mean", "max"), (True, False)):
    case(summed, conv=GraphConv, aggr=aggr, weights=weights)
for aggr, root in itertools.product(("add", "mean", "max"), (True, False)):
    case(summed, conv=SAGEConv, aggr=aggr, root=root)
for aggr in ("add", "mean", "max"):
    case(summed, conv=SAGEConv, aggr=aggr, two=True, bias=False)
    case(summed, conv=GraphConv, aggr=aggr, two=True, weights=True)


def gin(eps: float) -> Case:
    mlp, theirs = nn.Linear(3, 4), GINConv(nn.Linear(3, 4), eps=eps)
    layer = MessagePassing(Graph(), SharedKernel(3, 3, fixed=True, bias=False))
    both = nn.ModuleList([layer, mlp])
    ties = copied(both, theirs, linears({"1": "nn"}))
    return Case(both, lambda x: mlp(layer(x, INDEX) + (1 + eps) * x), lambda x: theirs(x, INDEX), (nodes(3),), ties)


case(gin, eps=0.0)
case(gin, eps=0.3)


def rgcn(
    bases: int | None = None, blocks: int | None = None, aggr: str = "mean", root: bool = True, bias: bool = True
) -> Case:
    kind = torch.tensor([0, 2, 1, 0, 2, 2, 0, 2, 0, 2])
    weight = SharedKernel(
        4, 6, bases=bases, groups=blocks or 1, normalise="relation" if aggr == "mean" else None, root=root, bias=bias
    )
    layer = MessagePassing(Graph(relations=4), weight)
    theirs = RGCNConv(4, 6, 4, num_bases=bases, num_blocks=blocks, aggr=aggr, root_weight=root, bias=bias)
    names: Names = {"weight.weight": ("weight", (lambda w: w.mT.flatten(1, 2)) if blocks else (lambda w: w.mT))}
    names |= {"weight.coefficients": "comp"} if bases else {}
    names |= {"weight.root.weight": ("root", lambda w: w.mT)} if root else {}
    names |= {"weight.bias": "bias"} if bias else {}
    ties = copied(layer, theirs, names)
    return Case(layer, lambda x: layer(x, INDEX, edge_type=kind), lambda x: theirs(x, INDEX, kind), (nodes(4),), ties)


for bases, blocks in ((None, None), (2, None), (None, 2)):
    for aggr in ("mean", "add"):
        case(rgcn, bases=bases, blocks=blocks, aggr=aggr)
case(rgcn, root=False, bias=False)


def nnconv(aggr: str = "add", root: bool = True, bias: bool = True, two: bool = False) -> Case:
    width, features_ = 5 if two else 3, 2

    def network() -> nn.Sequential:
        return nn.Sequential(nn.Linear(features_, 6), nn.ReLU(), nn.Linear(6, width * 4))

    linear: Any = nn.Linear(3, 4, bias=False) if root else False
    weight = EdgeLearned(width, 4, network(), reduce={"add": "sum"}.get(aggr, aggr), root=linear, bias=bias)
    layer = MessagePassing(Graph(), weight)
    theirs = NNConv((5, 3) if two else 3, 4, network(), aggr=aggr, root_weight=root, bias=bias)
    names = linears({"weight.network.0": "nn.0", "weight.network.2": "nn.2"})
    names |= ({"weight.root.weight": "lin.weight"} if root else {}) | ({"weight.bias": "bias"} if bias else {})
    return on_graph(layer, theirs, copied(layer, theirs, names), features_, two, 3)


for aggr, root in itertools.product(("add", "mean", "max"), (True, False)):
    case(nnconv, aggr=aggr, root=root)
case(nnconv, bias=False)
case(nnconv, two=True)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_each_kernel_equals_the_reference(name: str, dtype: torch.dtype) -> None:
    made = build(CASES[name], dtype)
    for kernel, errors in on_each(lambda: measure(made)):
        assert kernel in errors.kernel
        assert max(errors.value, errors.gradient) <= TOLERANCE[dtype], (kernel, errors)


def test_the_graph_has_a_duplicate_a_loop_and_an_isolated_node() -> None:
    """What the graphs above hold, lest a change of theirs take the hard parts out."""
    ends = set(EDGES)
    assert len(ends) < len(EDGES), "a duplicate"
    assert any(s == t for s, t in ends), "a loop"
    assert set(range(NODES)) - {n for edge in ends for n in edge} == {6}, "an isolated node"
    assert features(2).shape == (len(EDGES), 2)
