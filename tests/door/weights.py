"""Wrong weights, alone and on a neighbourhood that they do not fit."""

from __future__ import annotations

from typing import Any

from torch import nn

from door.layers import E, x
from door.wrong import T, V, Wrong, joined
from mpnn import MessagePassing
from mpnn.neighbours import AllTokens, Full, Graph, Grid, Window
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


def shared(weight: Any, *rules: Any) -> None:
    for rule in rules:
        MessagePassing(rule, weight)


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
