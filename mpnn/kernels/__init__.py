"""The kernels, best first: the first that gives no reason against a call runs it."""

from mpnn.kernels import conv, edge_softmax, fft, linear, reference, sdpa, segment, spmm
from mpnn.kernels.base import Call, Kernel
from mpnn.spec import Spec

KERNELS: tuple[Kernel, ...] = (linear, conv, fft, sdpa, spmm, edge_softmax, segment, reference)

__all__ = ["KERNELS", "Call", "Kernel", "Spec"]
