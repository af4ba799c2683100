"""The kernels, best first: the first that gives no reason against a call runs it."""

from mpnn.kernels import conv, edge_softmax, linear, native, reference, sdpa, segment, spmm
from mpnn.kernels.base import Call, Kernel
from mpnn.spec import Spec

KERNELS: tuple[Kernel, ...] = (linear, conv, sdpa, spmm, native, edge_softmax, segment, reference)

__all__ = ["KERNELS", "Call", "Kernel", "Spec"]
