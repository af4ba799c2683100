"""The kernels, best first: the first that gives no reason against a call runs it."""

from mpnn.kernels import conv, edge_softmax, fft, linear, merge, reference, sdpa, segment, spmm, tiles
from mpnn.kernels.base import Call, Kernel
from mpnn.spec import Spec

KERNELS: tuple[Kernel, ...] = (linear, conv, fft, sdpa, tiles, merge, spmm, edge_softmax, segment, reference)
merge.PARTS[:] = [tiles, edge_softmax]

__all__ = ["KERNELS", "Call", "Kernel", "Spec"]
