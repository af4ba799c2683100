"""The kernels, best first: the first that gives no reason against a call runs it."""

from mpnn.kernels import (
    conv,
    edge_softmax,
    fft,
    flex,
    linear,
    merge,
    native,
    native_fft,
    padded,
    pairwise,
    reference,
    sdpa,
    segment,
    spmm,
    tiles,
)
from mpnn.kernels import triton_attention as triton
from mpnn.kernels.base import Call, Kernel
from mpnn.spec import Spec

KERNELS: tuple[Kernel, ...] = (
    linear,
    conv,
    native_fft,
    fft,
    sdpa,
    flex,
    tiles,
    merge,
    spmm,
    padded,
    triton,
    native,
    edge_softmax,
    segment,
    pairwise,
    reference,
)
merge.PARTS[:] = [flex, tiles, triton, native, edge_softmax]

__all__ = ["KERNELS", "Call", "Kernel", "Spec"]
