"""Wrong rules and models: what makes them, the error and what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from door.layers import KINDS, E, x
from mpnn import MessagePassing, attend, use_kernels
from mpnn.models import CNN, GNN, MLP, Network, Transformer
from mpnn.neighbours import KNN, AllTokens, Full, Graph, Grid, Radius, Random, Window
from mpnn.positions import ALiBi, RelativeBias, Rotary, Sinusoidal
from mpnn.weights import (
    AdditiveScore,
    AdditiveScoreV2,
    EdgeLearned,
    EdgeMLP,
    OffsetMLP,
    QKSoftmax,
    RadialFilter,
    SharedKernel,
    Static,
)

V, T, N = ValueError, TypeError, IndexError
Wrong = tuple[Callable[[], Any], type[Exception], str]


def joined(neighbours: Any, weight: Any, *call: Any, **options: Any) -> Any:
    layer = MessagePassing(neighbours, weight, **options)
    return layer(*call) if call else layer


def shared(weight: Any, *rules: Any) -> None:
    for rule in rules:
        MessagePassing(rule, weight)


def forced(*names: str) -> Any:
    with use_kernels(*names):
        return joined(AllTokens(), QKSoftmax(4, 2), x(3, 4))


NEIGHBOURS: dict[str, Wrong] = {
    "Window('a')": (lambda: Window("a"), T, r"left to be an int, got 'a' \(str\)"),
    "Window(-1)": (lambda: Window(-1), V, "left ≥ 0, got -1"),
    "Window(1, -1)": (lambda: Window(1, -1), V, "right ≥ 0, got -1"),
    "Window(1.0)": (lambda: Window(1.0), T, r"left to be an int, got 1.0 \(float\)"),
    "Window(True)": (lambda: Window(True), T, r"left to be an int, got True \(bool\)"),
    "Window dilation": (lambda: Window(1, dilation=0), V, "dilation ≥ 1, got 0"),
    "KNN(0)": (lambda: KNN(0), V, "k ≥ 1, got 0"),
    "KNN(2.0)": (lambda: KNN(2.0), T, r"k to be an int, got 2.0 \(float\)"),
    "Radius(-1)": (lambda: Radius(-1), V, "r ≥ 0, got -1"),
    "Radius(nan)": (lambda: Radius(float("nan")), V, "r ≥ 0, got nan"),
    "Radius('1')": (lambda: Radius("1"), T, r"r to be a number, got '1' \(str\)"),
    "Radius(True)": (lambda: Radius(True), T, r"r to be a number, got True \(bool\)"),
    "Random(0)": (lambda: Random(0, 1), V, "degree ≥ 1, got 0"),
    "Random(1.0)": (lambda: Random(1.0, 1), T, r"degree to be an int, got 1.0 \(float\)"),
    "Random seed": (lambda: Random(1, 1.5), T, r"seed to be an int, got 1.5 \(float\)"),
    "Random negative seed": (lambda: Random(1, -1), V, "seed ≥ 0, got -1"),
    "Random without seed": (lambda: Random(1), T, "positional argument"),
    "Full(0)": (lambda: Full(0), V, "sources ≥ 1, got 0"),
    "Full(3, -1)": (lambda: Full(3, -1), V, "targets ≥ 1, got -1"),
    "Full(3.0)": (lambda: Full(3.0), T, r"sources to be an int, got 3.0 \(float\)"),
    "Full((3, 4))": (lambda: Full((3, 4)), T, r"sources to be an int, got \(3, 4\) \(tuple\)"),
    "AllTokens of 0": (lambda: AllTokens(max_tokens=0), V, "max_tokens ≥ 1, got 0"),
    "AllTokens of 2.0": (lambda: AllTokens(max_tokens=2.0), T, r"max_tokens to be an int, got 2.0 \(float\)"),
    "AllTokens(True)": (lambda: AllTokens(True), T, "positional argument"),
    "Grid()": (lambda: Grid(), V, "size=, a tuple kernel_size= or axes="),
    "Grid kernel 0": (lambda: Grid(4, 0), V, "kernel_size ≥ 1, got 0"),
    "Grid kernel -3": (lambda: Grid(4, -3), V, "kernel_size ≥ 1, got -3"),
    "Grid kernel 3.0": (lambda: Grid(4, 3.0), T, r"kernel_size to be an int, got 3.0"),
    "Grid(0)": (lambda: Grid(0, 3), V, "size ≥ 1, got 0"),
    "Grid((4.0, 4))": (lambda: Grid((4.0, 4), 3), T, "size to be an int, got 4.0"),
    "Grid axes 2 and 3": (lambda: Grid((4, 4), (3, 3, 3)), V, r"one number of axes for size, .*got \[2, 3\]"),
    "Grid axes=3": (lambda: Grid((4, 4), 3, axes=3), V, r"one number of axes for size, .*got \[2, 3\]"),
    "Grid axes=0": (lambda: Grid(axes=0), V, "axes ≥ 1, got 0"),
    "Grid stride 0": (lambda: Grid(4, 3, stride=0, padding=1), V, "stride ≥ 1, got 0"),
    "Grid dilation 0": (lambda: Grid(4, 3, dilation=0), V, "dilation ≥ 1, got 0"),
    "Grid same stride": (lambda: Grid(4, 3, stride=2), V, r"padding='same' .*stride=\(2,\); pass padding="),
    "Grid padding -1": (lambda: Grid(4, 3, padding=-1), V, "padding ≥ 0, got -1"),
    "Grid padding 1.0": (lambda: Grid(4, 3, padding=1.0), T, "padding to be an int, got 1.0"),
    "Grid padding full": (lambda: Grid(4, 3, padding="full"), V, "padding to be one of 'same', 'valid', got 'full'"),
    "Grid padding smae": (lambda: Grid(4, 3, padding="smae"), V, "got 'smae'; did you mean 'same'?"),
    "Grid border wrap": (
        lambda: Grid(4, 3, border="wrap"),
        V,
        "border to be one of 'zeros', .*'replicate', got 'wrap'",
    ),
    "Grid border reflct": (lambda: Grid(4, 3, border="reflct"), V, "got 'reflct'; did you mean 'reflect'?"),
    "Grid too small": (lambda: Grid(4, 6, padding="valid"), V, "axis 0 of length ≥ 6 for Grid.*, got 4"),
    "Grid reflect": (lambda: Grid(3, 3, padding=3, border="reflect"), V, "padding ≤ 2 on axis 0 of length 3, got 3"),
    "Grid circular": (lambda: Grid(3, 3, padding=4, border="circular"), V, "padding ≤ 3 on axis 0 of length 3, got 4"),
    "Grid clamp even": (lambda: Grid(8, 2, border="clamp"), V, r"border='clamp' needs an odd kernel_size.*got \(2,\)"),
    "Grid clamp padding": (lambda: Grid(8, 3, border="clamp", padding=1), V, r"border='clamp' needs .*got .*\(1,\)"),
    "Grid clamp small": (lambda: Grid(5, 7, border="clamp"), V, "needs length ≥ 7, got 5"),
    "target_size": (lambda: Grid((4, 4), 3).target_size((4,)), V, r"size of 2 axes.*got \(4,\)"),
    "Graph loops": (
        lambda: Graph(self_loops="remove"),
        V,
        "self_loops to be one of None, 'add', 'replace', got 'remove'",
    ),
    "Graph loops True": (lambda: Graph(self_loops=True), V, "self_loops to be one of None, 'add', 'replace', got True"),
    "Graph loop_fill": (
        lambda: Graph(self_loops="add", loop_fill="max"),
        V,
        "loop_fill to be 'mean' or a number, got 'max'",
    ),
    "Graph loop_fill alone": (lambda: Graph(loop_fill=0.5), V, "loop_fill .*would be ignored without self_loops"),
    "Graph loop_weight alone": (lambda: Graph(loop_weight=2.0), V, "loop_weight would be ignored without self_loops"),
    "Graph relations 0": (lambda: Graph(relations=0), V, "relations ≥ 1, got 0"),
    "Graph relations loops": (
        lambda: Graph(self_loops="add", relations=2),
        V,
        "self_loops='add' is refused with several relations, got 2",
    ),
    "Graph num_nodes alone": (lambda: Graph(num_nodes=3), V, "edge_index= with num_nodes=.*got None"),
    "Graph attr alone": (lambda: Graph(attr=x(2, 3)), V, "edge_index= with num_nodes=, attr=.*got None"),
    "Graph list": (lambda: Graph([[0], [1]], 2), T, r"edge_index to be a tensor \(2, E\).*got list"),
    "Graph of a Graph": (lambda: Graph(Graph(E, 3)), T, r"edge_index to be a tensor .*got Graph"),
    "Graph float": (lambda: Graph(E.float(), 3), T, "edge_index of dtype int64 or int32, got torch.float32"),
    "Graph of 2": (lambda: Graph(E, 2), N, r"edge_index\[1\] \(target\) in 0 … 1, got 2"),
    "Graph of 3.0": (lambda: Graph(E, 3.0), T, "num_nodes to be an int.*got 3.0"),
    "Graph of -3": (lambda: Graph(E, -3), V, "num_nodes .*got -3"),
    "Graph of three sets": (lambda: Graph(E, (3, 3, 3)), V, r"num_nodes .*got \(3, 3, 3\)"),
    "Graph loops two sets": (
        lambda: Graph(E, (3, 4), self_loops="add"),
        V,
        r"between two node sets, got num_nodes=\(3, 4\)",
    ),
    "Graph attr rows": (
        lambda: Graph(E, 3, attr=x(3, 2)),
        V,
        r"attr with one row for each of 2 edges, got shape \(3, 2\)",
    ),
    "Graph attr list": (lambda: Graph(E, 3, attr=[1.0, 2.0]), T, "attr to be a tensor.*got list"),
    "Graph weight rows": (
        lambda: Graph(E, 3, weight=x(3)),
        V,
        r"weight with one row for each of 2 edges, got shape \(3,\)",
    ),
    "Graph weight list": (lambda: Graph(E, 3, weight=[1.0, 2.0]), T, "weight to be a tensor.*got list"),
    "Graph type": (lambda: Graph(E, 3, type=KINDS), (V, N), "type"),
    "Graph type float": (
        lambda: Graph(E, 3, type=x(2), relations=2),
        T,
        "type of dtype int64 or int32, got torch.float32",
    ),
    "Graph type 2": (lambda: Graph(E, 3, type=KINDS + 1, relations=2), N, "type in 0 … 1, got 2"),
    "Graph sparse weight": (
        lambda: Graph(torch.eye(3).to_sparse(), weight=x(3)),
        V,
        "one source of edge weights, got weight= and",
    ),
    "Graph sparse nodes": (lambda: Graph(torch.eye(3).to_sparse(), 4), V, "num_nodes|matrix"),
}

WEIGHTS: dict[str, Wrong] = {
    "Static on Window": (
        lambda: joined(Window(1), Static(2, 2)),
        V,
        "fixed pairs for Static, got Window.*; give it its size",
    ),
    "Static on AllTokens": (lambda: joined(AllTokens(), Static(2, 2)), V, r"fixed pairs for Static, got AllTokens\(\)"),
    "Static on Graph": (lambda: joined(Graph(), Static(2, 2)), V, r"fixed pairs for Static, got Graph\(\)"),
    "Static on Grid": (lambda: joined(Grid(axes=1), Static(2, 2)), V, r"fixed pairs for Static, got Grid\(axes=1"),
    "SharedKernel on AllTokens": (
        lambda: joined(AllTokens(), SharedKernel(2, 2)),
        V,
        r"AllTokens\(max_tokens=m\) .*got AllTokens\(\)",
    ),
    "in 0": (lambda: SharedKernel(0, 4), V, "in_channels ≥ 1, got 0"),
    "in -1": (lambda: Static(-1, 2), V, "in_channels ≥ 1, got -1"),
    "in 2.0": (lambda: SharedKernel(2.0, 4), T, "in_channels to be an int, got 2.0"),
    "in None": (lambda: SharedKernel(None, 4), T, "in_channels to be an int, got None"),
    "out None": (lambda: SharedKernel(4, None), T, "out_channels to be an int, got None"),
    "out -1": (lambda: EdgeLearned(4, -1, nn.Identity()), V, "out_channels ≥ 1, got -1"),
    "groups of in": (lambda: SharedKernel(3, 4, groups=2), V, "in_channels to be a multiple of groups=2, got 3"),
    "groups of out": (lambda: SharedKernel(4, 3, groups=2), V, "out_channels to be a multiple of groups=2, got 3"),
    "groups 0": (lambda: SharedKernel(4, 4, groups=0), V, "groups ≥ 1, got 0"),
    "groups 2.0": (lambda: SharedKernel(4, 4, groups=2.0), T, "groups to be an int, got 2.0"),
    "heads of out": (lambda: SharedKernel(4, 5, heads=2), V, "out_channels to be a multiple of heads=2, got 5"),
    "heads 0": (lambda: Static(4, 4, heads=0), V, "heads ≥ 1, got 0"),
    "heads and groups": (lambda: SharedKernel(4, 4, heads=2, groups=2), V, "one of heads= and groups="),
    "static heads and groups": (lambda: Static(4, 4, heads=2, groups=2), V, "one of heads= and groups="),
    "learned heads and groups": (
        lambda: EdgeLearned(4, 4, nn.Identity(), heads=2, groups=2),
        V,
        "one of heads= and groups=",
    ),
    "reduce min": (lambda: SharedKernel(4, 4, reduce="min"), V, "reduce to be one of 'sum', 'mean', 'max', got 'min'"),
    "reduce men": (lambda: SharedKernel(4, 4, reduce="men"), V, "got 'men'; did you mean 'mean'?"),
    "reduce add": (lambda: EdgeLearned(4, 4, nn.Identity(), reduce="add"), V, "reduce to be one of .*got 'add'"),
    "normalise gcn": (
        lambda: SharedKernel(4, 4, normalise="gcn"),
        V,
        "normalise to be one of None, 'relation', .*got 'gcn'",
    ),
    "normalise softmx": (lambda: Static(4, 4, heads=2, normalise="softmx"), V, "did you mean 'softmax'?"),
    "normalised mean": (
        lambda: SharedKernel(4, 4, reduce="mean", normalise="symmetric"),
        V,
        "goes with reduce='sum', got reduce='mean'",
    ),
    "softmax of matrices": (
        lambda: SharedKernel(4, 4, normalise="softmax"),
        V,
        "normalise='softmax' needs heads=.*got groups",
    ),
    "fixed bases": (
        lambda: SharedKernel(4, 4, fixed=True, bases=2),
        V,
        "fixed=True .*would be ignored; leave them out",
    ),
    "fixed groups": (lambda: SharedKernel(4, 4, fixed=True, groups=2), V, "fixed=True .*would be ignored"),
    "fixed heads": (lambda: SharedKernel(4, 4, fixed=True, heads=2), V, "fixed=True .*would be ignored"),
    "fixed widths": (
        lambda: SharedKernel(4, 5, fixed=True),
        V,
        "in_channels = out_channels .*got 4 and 5; pass value=True or",
    ),
    "bases 0": (lambda: SharedKernel(4, 4, bases=0), V, "bases ≥ 1, got 0"),
    "widths without value": (
        lambda: SharedKernel(4, 6, heads=2, value=False),
        V,
        "in_channels = out_channels .*got 4 and 6",
    ),
    "value yes": (
        lambda: SharedKernel(4, 6, heads=2, value="yes"),
        T,
        "value to be True, False or an nn.Linear, got str",
    ),
    "value widths": (
        lambda: SharedKernel(4, 6, value=nn.Linear(4, 5)),
        V,
        r"value to be a Linear\(4, 6\), got .*\(4, 5\)",
    ),
    "output widths": (
        lambda: SharedKernel(4, 6, output=nn.Linear(4, 6)),
        V,
        r"output to be a Linear\(6, 6\), got .*\(4, 6\)",
    ),
    "output conv": (
        lambda: SharedKernel(4, 6, output=nn.Conv1d(4, 6, 1)),
        T,
        "output to be True, False or an nn.Linear, got Conv1d",
    ),
    "root yes": (lambda: SharedKernel(4, 6, root="yes"), T, "root to be True, False or an nn.Linear, got str"),
    "root widths": (lambda: SharedKernel(4, 6, root=nn.Linear(4, 5)), V, r"root to be a Linear\(.*6\), got .*\(4, 5\)"),
    "Static reduce": (lambda: Static(2, 2, reduce="mean"), T, "unexpected keyword argument 'reduce'"),
    "no network": (lambda: EdgeLearned(4, 4, None), T, "network to be a module or a function of pairs, got NoneType"),
    "network name": (lambda: EdgeLearned(4, 4, "mlp"), T, "network to be a module or a function of pairs, got str"),
    "network class": (
        lambda: EdgeLearned(4, 4, AdditiveScore, heads=2),
        T,
        "network to be .*got the class AdditiveScore",
    ),
    "network heads": (lambda: EdgeLearned(4, 4, AdditiveScore(4, 1), heads=2), V, "heads.*2.*got 1|2.*1"),
    "network channels": (lambda: EdgeLearned(4, 8, AdditiveScore(4, 2), heads=2), V, "channels.*8.*4"),
    "network features": (
        lambda: joined(Graph(), EdgeLearned(4, 4, EdgeMLP(2, 15)), x(3, 4), E, x(2, 2)),
        V,
        "EdgeMLP with features=16 .*got 15",
    ),
    "module features": (
        lambda: joined(Graph(), EdgeLearned(4, 4, nn.Linear(2, 15)), x(3, 4), E, x(2, 2)),
        V,
        r"to return .*16\), got \(2, 15\)",
    ),
    "function shape": (
        lambda: joined(Graph(), EdgeLearned(4, 4, lambda p: x(len(p)), heads=1), x(3, 4), E),
        V,
        r"to return .*2, 1\), got \(2,\)",
    ),
    "function rows": (
        lambda: joined(Graph(), EdgeLearned(4, 4, lambda p: x(5, 1), heads=1), x(3, 4), E),
        V,
        r"to return .*2, 1\), got \(5, 1\)",
    ),
    "function list": (
        lambda: joined(Graph(), EdgeLearned(4, 4, lambda p: [1.0], heads=1), x(3, 4), E),
        V,
        "to return .*got list",
    ),
    "edge_channels": (
        lambda: EdgeLearned(4, 4, EdgeMLP(2, 16), edge_channels=3),
        V,
        "edge_channels=3 .*got 2",
    ),
    "edge_channels -1": (lambda: EdgeLearned(4, 4, nn.Identity(), edge_channels=-1), V, "edge_channels ≥ 0, got -1"),
    "dropout 2": (lambda: EdgeLearned(4, 4, AdditiveScore(4, 2), heads=2, dropout=2), V, r"dropout in \[0, 1\], got 2"),
    "additive heads": (lambda: AdditiveScore(5, 2), V, "channels to be a multiple of heads=2, got 5"),
    "additive 0": (lambda: AdditiveScore(4, 0), V, "heads ≥ 1, got 0"),
    "additive edges": (lambda: AdditiveScore(4, 2, edge_channels=-1), V, "edge_channels ≥ 0, got -1"),
    "v2 heads": (lambda: AdditiveScoreV2(5, 2), V, "channels to be a multiple of heads=2, got 5"),
    "v2 activation": (lambda: AdditiveScoreV2(4, 2, activation="tanh"), T, "activation to be a module.*got str"),
    "mlp 0": (lambda: EdgeMLP(0, 4), V, "edge_channels ≥ 1, got 0"),
    "mlp features": (lambda: EdgeMLP(2, 0), V, "features ≥ 1, got 0"),
    "cutoff 0": (lambda: RadialFilter(4, cutoff=0), V, "cutoff > 0, got 0"),
    "cutoff -1": (lambda: RadialFilter(4, cutoff=-1.0), V, "cutoff > 0, got -1.0"),
    "gaussians 1": (lambda: RadialFilter(4, cutoff=1.0, gaussians=1), V, "gaussians ≥ 2, got 1"),
    "offset 0": (lambda: OffsetMLP(0, 4), V, "axes ≥ 1, got 0"),
    "offset axes": (
        lambda: joined(Grid((3, 4), 3), EdgeLearned(2, 2, OffsetMLP(1, 4)), x(12, 2)),
        V,
        "offsets of 1 axes for OffsetMLP, got 2",
    ),
    "offset none": (
        lambda: joined(Graph(), EdgeLearned(2, 2, OffsetMLP(1, 4)), x(3, 2), E),
        V,
        "coordinates= for OffsetMLP.*got None",
    ),
    "QK heads": (lambda: QKSoftmax(5, 2), V, "channels to be a multiple of heads=2, got 5; change one of the two"),
    "QK heads 0": (lambda: QKSoftmax(4, 0), V, "heads ≥ 1, got 0"),
    "QK heads 2.0": (lambda: QKSoftmax(4, 2.0), T, "heads to be an int, got 2.0"),
    "QK channels 0": (lambda: QKSoftmax(0), V, "channels ≥ 1, got 0"),
    "QK kv_heads 3": (lambda: QKSoftmax(8, 4, kv_heads=3), V, "heads to be a multiple of kv_heads=3, got 4"),
    "QK kv_heads 8": (lambda: QKSoftmax(8, 4, kv_heads=8), V, "heads to be a multiple of kv_heads=8, got 4"),
    "QK head_channels": (lambda: QKSoftmax(4, 2, head_channels=0), V, "head_channels ≥ 1, got 0"),
    "QK bare output": (
        lambda: QKSoftmax(4, 2, out_channels=6, output=False),
        V,
        "out_channels = heads · head_channels = 4 .*got 6",
    ),
    "QK output widths": (
        lambda: QKSoftmax(4, 2, output=nn.Linear(3, 4)),
        V,
        r"output to be a Linear\(4, 4\), got .*\(3, 4\)",
    ),
    "QK output name": (lambda: QKSoftmax(4, 2, output="x"), T, "output to be True, False or an nn.Linear, got str"),
    "QK root widths": (
        lambda: QKSoftmax(4, 2, root=nn.Linear(3, 4)),
        V,
        r"root to be a Linear\(4, 4\), got .*\(3, 4\)",
    ),
    "QK sources of three": (
        lambda: QKSoftmax(4, 2, source_channels=(1, 2, 3)),
        (T, V),
        r"source_channels.*got \(1, 2, 3\)",
    ),
    "QK sources name": (lambda: QKSoftmax(4, 2, source_channels="a"), T, "source_channels to be an int.*got 'a'"),
    "QK sources -1": (lambda: QKSoftmax(4, 2, source_channels=-1), V, "source_channels ≥ 1, got -1"),
    "QK position name": (
        lambda: QKSoftmax(4, 2, position="rotary"),
        T,
        "position to be a module .*got str",
    ),
    "QK position class": (
        lambda: QKSoftmax(4, 2, position=Rotary),
        T,
        "position to be a module .*got the class Rotary; write",
    ),
    "QK position code": (lambda: QKSoftmax(4, 2, position=Sinusoidal(2)), (T, V), "position.*Sinusoidal"),
    "QK position bias": (lambda: QKSoftmax(4, 2, position=ALiBi(2)), (T, V), "position.*score_bias"),
    "QK position width": (
        lambda: QKSoftmax(4, 2, position=Rotary(4)),
        V,
        "position for head_channels=2, got Rotary",
    ),
    "QK bias heads": (lambda: QKSoftmax(4, 2, score_bias=ALiBi(4)), V, "score_bias for 2 heads, got 4"),
    "QK bias t5 heads": (lambda: QKSoftmax(4, 2, score_bias=RelativeBias.t5(4)), V, "score_bias for 2 heads, got 4"),
    "QK bias rotary": (
        lambda: QKSoftmax(4, 2, score_bias=Rotary(2)),
        (T, V),
        "score_bias to be a ScoreBias .*got Rotary",
    ),
    "QK bias tensor": (
        lambda: QKSoftmax(4, 2, score_bias=x(2, 3, 3)),
        T,
        "score_bias to be a ScoreBias .*got Tensor",
    ),
    "QK dropout": (lambda: QKSoftmax(4, 2, dropout=-1), V, r"dropout in \[0, 1\], got -1"),
    "QK edges": (lambda: QKSoftmax(4, 2, edge_channels=-1), V, "edge_channels ≥ 0, got -1"),
    "weighted loops and softmax": (
        lambda: joined(Graph(self_loops="add", loop_weight=2.0), QKSoftmax(4, 2)),
        V,
        "loop_weight would be ignored by a softmax",
    ),
    "other relations": (lambda: shared(SharedKernel(2, 2), Graph(relations=2), Graph(relations=3)), V, "2.*3|3.*2"),
    "other pairs": (lambda: shared(Static(2, 2), Full(4), Full(5)), V, "4.*5|16.*25|5.*4|25.*16"),
    "other layout": (lambda: shared(SharedKernel(2, 2), Grid(4, 3), Window(1)), V, "Grid|kernel|axes|layout|built"),
}

LAYERS: dict[str, Wrong] = {
    "neighbours name": (
        lambda: joined("all", QKSoftmax(4, 2)),
        T,
        "neighbours to be a rule of mpnn.neighbours, got str",
    ),
    "weight module": (
        lambda: joined(AllTokens(), nn.Linear(2, 2)),
        T,
        "weight to be a rule of mpnn.weights, got Linear",
    ),
    "swapped": (
        lambda: joined(QKSoftmax(4, 2), AllTokens()),
        T,
        "neighbours to be a rule of mpnn.neighbours, got QKSoftmax",
    ),
    "class": (
        lambda: joined(AllTokens, QKSoftmax(4, 2)),
        T,
        r"neighbours to be a rule .*got the class AllTokens.*AllTokens\(",
    ),
    "kernel flash": (
        lambda: joined(AllTokens(), QKSoftmax(4, 2), kernel="flash"),
        V,
        "kernel to be one of 'linear', .*got 'flash'",
    ),
    "kernel sdp": (lambda: joined(AllTokens(), QKSoftmax(4, 2), kernel="sdp"), V, "got 'sdp'; did you mean 'sdpa'?"),
    "kernel conv": (
        lambda: joined(AllTokens(), QKSoftmax(4, 2), x(3, 4), kernel="conv"),
        V,
        r"a kernel that can run AllTokens × QKSoftmax, got conv \(conv: needs Grid.*sdpa, tiles, reference can",
    ),
    "use cnv": (lambda: forced("cnv"), V, "kernel to be one of .*got 'cnv'; did you mean 'conv'?"),
    "use two": (
        lambda: forced("linear", "conv"),
        V,
        "a kernel that can run AllTokens × QKSoftmax, got linear or conv .*sdpa, tiles, reference can",
    ),
    "plan": (
        lambda: joined(AllTokens(), QKSoftmax(4, 2)).plan(x(3, 4), attn_mask=None),
        T,
        r"plan\(\) got an unexpected argument 'attn_mask'; pair_mask= takes a bool mask .*it takes .*pair_mask",
    ),
    "MLP of one": (lambda: MLP((4,)), V, r"sizes.*got \(4,\)"),
    "MLP of 0": (lambda: MLP((4, 0, 3)), V, "≥ 1, got 0"),
    "CNN strides": (
        lambda: CNN(1, (4, 4), 3, size=(8, 8), stride=(1, 2, 3)),
        V,
        r"one stride, or one for each of 2 layers, got \(1, 2, 3\)",
    ),
    "CNN readout": (
        lambda: CNN(1, (4,), 3, size=(8, 8), readout="avg"),
        V,
        "one of mean, sum, max, first, flatten, none, got 'avg'",
    ),
    "CNN too small": (
        lambda: CNN(1, (4, 4, 4), 3, size=(2, 2), stride=2, padding=0),
        V,
        "axis 0 of length ≥ 3 .*got 2",
    ),
    "CNN channels": (lambda: CNN(1, 8, 3, size=(8, 8)), T, "channels.*got 8"),
    "GNN readout": (lambda: GNN(2, (4,), 3, readout="mea"), V, "got 'mea'"),
    "Transformer heads": (lambda: Transformer(2, 6, 1, 3), V, "channels to be a multiple of heads=4, got 6"),
    "Transformer depth": (lambda: Transformer(2, 8, -1, 3), V, "depth .*got -1"),
    "Transformer readout": (lambda: Transformer(2, 8, 1, 3, readout="cls"), V, "got 'cls'"),
    "Transformer dropout": (lambda: Transformer(2, 8, 1, 3, dropout=2.0), V, r"dropout in \[0, 1\], got 2.0"),
    "Network argument": (
        lambda: Network([])(x(3, 4), key_padding_mask=None),
        T,
        "the network got an unexpected argument 'key_padding_mask'; mask= takes .*give its opposite; it takes x, ",
    ),
    "layer nested": (
        lambda: joined(Window(1), QKSoftmax(4, 2))(torch.nested.nested_tensor([x(3, 4), x(2, 4)], layout=torch.jagged)),
        T,
        r"x to be a dense tensor \(..., N, C\), got a nested tensor; pad it, .*mask=, or join .* batch=",
    ),
    "attend nested": (
        lambda: attend(
            *(torch.nested.nested_tensor([x(3, 2, 4), x(2, 2, 4)], layout=torch.jagged).transpose(1, 2),) * 3,
            AllTokens(),
        ),
        T,
        r"q to be a dense tensor \(..., heads, N, D\), got a nested tensor; pad it",
    ),
    "layer sparse": (
        lambda: joined(AllTokens(), QKSoftmax(4, 2))(x(3, 4).to_sparse()),
        T,
        r"x to be a dense tensor \(..., N, C\), got one of layout torch.sparse_coo",
    ),
    "layer is_causal": (
        lambda: joined(AllTokens(), QKSoftmax(4, 2))(x(3, 4), is_causal=True),
        T,
        r"the layer got an unexpected argument 'is_causal'; a causal .*AllTokens\(causal=True\).*; it takes x, ",
    ),
    "layer edge_weights": (
        lambda: joined(AllTokens(), QKSoftmax(4, 2))(x(3, 4), edge_weights=None),
        T,
        "the layer got an unexpected argument 'edge_weights'; did you mean 'edge_weight'",
    ),
    "attend attn_mask": (
        lambda: attend(x(2, 3, 4), x(2, 3, 4), x(2, 3, 4), AllTokens(), attn_mask=None),
        T,
        "attend got an unexpected argument 'attn_mask'; pair_mask= takes .*score_bias= floats; it takes q, k, v, ",
    ),
}

MADE = NEIGHBOURS | WEIGHTS | LAYERS
