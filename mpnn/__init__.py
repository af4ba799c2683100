"""mpnn: one message passing layer with two arguments, who sends and how much.

MLP, CNN, GNN and Transformer are its configurations.
"""

from mpnn.attend import attend
from mpnn.message_passing import MessagePassing
from mpnn.plan import Plan, use_kernels
from mpnn.returned import EdgeWeights, capture_weights, trace_kernels
from mpnn.tokens.base import Tokens

__version__ = "0.1.0"

__all__ = [
    "EdgeWeights",
    "MessagePassing",
    "Plan",
    "Tokens",
    "attend",
    "capture_weights",
    "trace_kernels",
    "use_kernels",
]
