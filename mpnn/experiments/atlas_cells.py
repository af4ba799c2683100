"""The sixteen cells: a neighbourhood, a weight, what the two are called, and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mpnn.experiments import atlas_all_tokens, atlas_full, atlas_graph, atlas_grid
from mpnn.experiments.atlas_case import Case

PYG = "torch_geometric"


@dataclass(frozen=True)
class Reference:
    """An implementation that is not ours, the case that compares with it, and the library that it needs."""

    name: str
    case: Callable[[], Case]
    needs: str = "torch"


@dataclass(frozen=True)
class Cell:
    """A neighbourhood, a weight, what the two are called in the literature, and what they are compared with."""

    neighbours: str
    weight: str
    name: str
    references: tuple[Reference, ...]


_full, _grid, _graph, _all = atlas_full, atlas_grid, atlas_graph, atlas_all_tokens
CELLS = (
    Cell("Full", "Static", "dense layer", (Reference("nn.Linear", _full.dense),)),
    Cell("Full", "SharedKernel", "Toeplitz layer", (Reference("dense Toeplitz matrix", _full.toeplitz),)),
    Cell(
        "Full", "EdgeLearned", "relation network", (Reference("NNConv, complete graph", _full.relation_network, PYG),)
    ),
    Cell(
        "Full",
        "QKSoftmax",
        "self-attention on a fixed set",
        (Reference("F.scaled_dot_product_attention", _full.self_attention),),
    ),
    Cell("Grid", "Static", "locally connected layer", (Reference("F.unfold and einsum", _grid.locally_connected),)),
    Cell(
        "Grid", "SharedKernel", "convolution", tuple(Reference(f"nn.Conv{d}d", _grid.convolution(d)) for d in (1, 2, 3))
    ),
    Cell(
        "Grid",
        "EdgeLearned",
        "continuous-kernel convolution",
        (Reference("NNConv, the grid's edges", _grid.continuous_kernel, PYG),),
    ),
    Cell("Grid", "QKSoftmax", "neighbourhood attention", (Reference("masked SDPA", _grid.neighbourhood_attention),)),
    Cell("Graph", "Static", "learned adjacency", (Reference("dense A @ X", _graph.learned_adjacency),)),
    Cell(
        "Graph",
        "SharedKernel",
        "graph convolution",
        (
            Reference("GCNConv", _graph.gcn, PYG),
            Reference("GraphConv", _graph.graph_conv, PYG),
            Reference("SAGEConv", _graph.sage, PYG),
            Reference("RGCNConv", _graph.rgcn, PYG),
        ),
    ),
    Cell(
        "Graph",
        "EdgeLearned",
        "edge network, graph attention",
        (
            Reference("NNConv", _graph.nnconv, PYG),
            Reference("CFConv", _graph.cfconv, PYG),
            Reference("GATConv", _graph.gat, PYG),
            Reference("GATv2Conv", _graph.gatv2, PYG),
        ),
    ),
    Cell("Graph", "QKSoftmax", "graph transformer", (Reference("TransformerConv", _graph.transformer_conv, PYG),)),
    Cell(
        "AllTokens",
        "Static",
        "token mixing: MLP-Mixer, random Synthesizer",
        (Reference("einsum", _all.token_mixing), Reference("softmax and einsum", _all.synthesizer)),
    ),
    Cell(
        "AllTokens",
        "SharedKernel",
        "relative-position mixing, long convolution",
        (Reference("F.conv1d", _all.relative_mixing), Reference("torch.fft", _all.long_convolution)),
    ),
    Cell("AllTokens", "EdgeLearned", "additive (Bahdanau) attention", (Reference("a loop", _all.additive_attention),)),
    Cell(
        "AllTokens",
        "QKSoftmax",
        "attention, Transformer",
        (
            Reference("nn.MultiheadAttention", _all.multihead_attention),
            Reference("nn.TransformerEncoderLayer", _all.encoder_layer),
        ),
    ),
)
