"""The bridges, in the order in which to_layer tries them."""

from mpnn.interop import (
    pyg_attention,
    pyg_differences,
    pyg_filters,
    pyg_gat,
    pyg_hops,
    pyg_kernels,
    pyg_relations,
    pyg_stacks,
)
from mpnn.interop.bridge import Bridge
from mpnn.interop.torch_attention import Attention
from mpnn.interop.torch_conv import Conv
from mpnn.interop.torch_linear import Linear
from mpnn.interop.torch_transformer import DecoderLayer, EncoderLayer
from mpnn.interop.transformers.layer import HuggingFaceAttention

PYG: tuple[Bridge, ...] = (
    pyg_kernels.GCN(),
    pyg_kernels.GraphSum(),
    pyg_kernels.SAGE(),
    pyg_kernels.ClusterGCN(),
    pyg_relations.RGCN(),
    pyg_gat.GAT(),
    pyg_gat.GATv2(),
    pyg_attention.SuperGAT(),
    pyg_attention.Transformer(),
    pyg_attention.AGNN(),
    pyg_filters.NN(),
    pyg_filters.CF(),
    pyg_filters.GMM(),
    pyg_differences.FeaSt(),
    pyg_differences.LE(),
    pyg_differences.PointTransformer(),
    pyg_hops.SG(),
    pyg_hops.TAG(),
    pyg_hops.Cheb(),
    pyg_stacks.GIN(),
    pyg_stacks.Hypergraph(),
    pyg_stacks.GPS(),
)
BRIDGES: tuple[Bridge, ...] = (Linear(), Conv(), Attention(), EncoderLayer(), DecoderLayer(), *PYG)

# Layers that convert() turns into drop-ins and that are no MessagePassing alone: from_layer does not know them.
IN_PLACE: tuple[Bridge, ...] = (HuggingFaceAttention(),)

# Layers that are no message passing with a weight on x_j, and why. They are refused by name.
OUT_OF_SCOPE = {
    "EdgeConv": "its message is a network of x_i and x_j - x_i, which is not linear in x_j",
    "DynamicEdgeConv": "its message is a network of x_i and x_j - x_i, which is not linear in x_j",
    "FiLMConv": "an activation stands between the message and its sum: it is not linear in x_j",
    "RGATConv": "its value has a matrix per relation and its softmax a number per head: two families in one weight",
    "SplineConv": "its basis is computed by pyg_lib, without which PyG does not build the layer either",
    "ConvTranspose1d": "a transposed convolution is out of scope",
    "ConvTranspose2d": "a transposed convolution is out of scope",
    "ConvTranspose3d": "a transposed convolution is out of scope",
}
