"""The kernels, best first: the first that gives no reason against a call runs it."""

from mpnn.kernels import conv, edge_softmax, flex, linear, reference, sdpa, segment, spmm, triton_attention
from mpnn.kernels.base import Call, Kernel
from mpnn.spec import Spec

KERNELS: tuple[Kernel, ...] = (linear, conv, sdpa, flex, spmm, triton_attention, edge_softmax, segment, reference)

__all__ = ["KERNELS", "Call", "Kernel", "Spec"]
