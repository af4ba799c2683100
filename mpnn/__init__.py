"""mpnn: one message passing layer with two arguments, who sends and how much.

MLP, CNN, GNN and Transformer are its configurations.
"""

from typing import TYPE_CHECKING

from mpnn.lazy import lazy

if TYPE_CHECKING:
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

lazy(
    __name__,
    {
        "EdgeWeights": "returned",
        "MessagePassing": "message_passing",
        "Plan": "plan",
        "Tokens": "tokens.base",
        "attend": "attend",
        "capture_weights": "returned",
        "trace_kernels": "returned",
        "use_kernels": "plan",
    },
)
