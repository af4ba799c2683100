"""Layers and models that cannot be made, kernels that cannot run."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from door.layers import x
from door.wrong import T, V, Wrong, joined
from mpnn import attend, use_kernels
from mpnn.models import CNN, GNN, MLP, Network, Transformer
from mpnn.neighbours import AllTokens, Window
from mpnn.weights import QKSoftmax


def forced(*names: str) -> Any:
    with use_kernels(*names):
        return joined(AllTokens(), QKSoftmax(4, 2), x(3, 4))


MODELS: dict[str, Wrong] = {
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
        r"a kernel that can run AllTokens × QKSoftmax, got conv \(conv: needs Grid.*sdpa, tiles, .*reference can",
    ),
    "use cnv": (lambda: forced("cnv"), V, "kernel to be one of .*got 'cnv'; did you mean 'conv'?"),
    "use two": (
        lambda: forced("linear", "conv"),
        V,
        "a kernel that can run AllTokens × QKSoftmax, got linear or conv .*sdpa, tiles, pairwise, reference can",
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
