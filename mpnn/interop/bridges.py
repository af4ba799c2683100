"""The bridges, in the order in which to_layer tries them."""

from mpnn.interop.bridge import Bridge
from mpnn.interop.torch_conv import Conv
from mpnn.interop.torch_linear import Linear
from mpnn.interop.transformers.layer import HuggingFaceAttention

BRIDGES: tuple[Bridge, ...] = (Linear(), Conv())

# Layers that convert() turns into drop-ins and that are no MessagePassing alone: from_layer does not know them.
IN_PLACE: tuple[Bridge, ...] = (HuggingFaceAttention(),)

# Layers that are no message passing with a weight on x_j, and why. They are refused by name.
OUT_OF_SCOPE = {
    "EdgeConv": "its message is a network of x_i and x_j - x_i, which is not linear in x_j",
    "DynamicEdgeConv": "its message is a network of x_i and x_j - x_i, which is not linear in x_j",
    "FiLMConv": "an activation stands between the message and its sum: it is not linear in x_j",
    "ConvTranspose1d": "a transposed convolution is out of scope",
    "ConvTranspose2d": "a transposed convolution is out of scope",
    "ConvTranspose3d": "a transposed convolution is out of scope",
}
