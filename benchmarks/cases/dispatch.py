"""dispatch: what a call of the layer costs above the bare torch calls, at N = 8 and E = 16, where that is all."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.case import FORWARD, TRAIN, Case, Entry, LeftOut, Side, Work
from benchmarks.cases import bare
from benchmarks.tensors import normal, seeded
from mpnn import MessagePassing
from mpnn.kernels import native as compiled
from mpnn.neighbours import AllTokens, Full, Graph, Grid
from mpnn.weights import QKSoftmax, SharedKernel, Static

N, E, C, HEADS = 8, 16, 16, 2
MICRO = 1e-6


def case(
    layer: MessagePassing,
    x: Tensor,
    call: Callable[[], Tensor],
    direct: Callable[[], Tensor],
    kernel: str,
    inputs: tuple = (),
) -> Case:
    """A layer beside a function of the same parameters: they share every leaf."""
    found = layer.plan(x, *inputs).kernel
    if found != kernel:
        raise ValueError(f"expected the kernel {kernel} for this call, got {found}")
    leaves = {"x": x, **dict(layer.named_parameters())}
    return Case(Side("mpnn", call, leaves), [Side("bare torch", direct, leaves)], Work(), Work(), kernel)


def linear() -> Case:
    layer, x = MessagePassing(Full(N, N), Static()), normal(N, N, 1)
    weight, bias = layer.weight.weight, layer.weight.bias
    return case(
        layer,
        x,
        lambda: layer(x),
        lambda: F.linear(x.view(N, N), weight.view(N, N), bias.view(N)).view(N, N, 1),
        "linear",
    )


def conv() -> Case:
    layer, x = MessagePassing(Grid((2, 4), 3), SharedKernel(C, C)), normal(1, N, C)
    weight, bias = layer.weight.weight, layer.weight.bias

    def direct() -> Tensor:
        image = x.view(1, 2, 4, C).permute(0, 3, 1, 2)
        return F.conv2d(image, weight, bias, padding=1).permute(0, 2, 3, 1).view(1, N, C)

    return case(layer, x, lambda: layer(x), direct, "conv")


def _project(w: QKSoftmax, x: Tensor) -> list[Tensor]:
    parts = (w.query, w.key, w.value)
    return [bare.heads(F.linear(x, p.weight, p.bias), HEADS) for p in parts]  # type: ignore[union-attr,arg-type]


def sdpa() -> Case:
    layer, x = MessagePassing(AllTokens(), QKSoftmax(C, HEADS)), normal(1, N, C)
    w, out = layer.weight, layer.weight.output

    def direct() -> Tensor:
        y = F.scaled_dot_product_attention(*_project(w, x))
        return F.linear(bare.join(y), out.weight, out.bias)

    return case(layer, x, lambda: layer(x), direct, "sdpa")


def edges() -> Tensor:
    """Every node has two sources."""
    source = (torch.arange(E) * 3 + 1) % N
    return torch.stack([source, torch.arange(E) // 2])


def spmm() -> Case:
    layer, x, index = MessagePassing(Graph(), SharedKernel(C, C)), normal(N, C), edges()
    weight, bias = layer.weight.weight, layer.weight.bias
    rows = bare.Rows(index, N)
    a, back = bare.matrix(rows, rows.ones), rows.transposed(rows.ones)

    def direct() -> Tensor:
        return F.linear(bare.Product.apply(a, back, x), weight[0], bias)

    return case(layer, x, lambda: layer(x, index), direct, "spmm", (index,))


def edge_softmax() -> Case:
    return attention("edge_softmax")


def native() -> Case:
    if not compiled.INSTALLED:
        raise LeftOut("numba is not installed: pip install 'mpnn[native]'")
    return attention("native")


def attention(kernel: str) -> Case:
    """Attention over edges by one of its kernels, beside sparse products of torch."""
    layer, x, index = MessagePassing(Graph(), QKSoftmax(C, HEADS), kernel=kernel), normal(N, C), edges()
    w, out = layer.weight, layer.weight.output
    rows = bare.Rows(index, N)
    bare.matrix(rows, rows.ones)

    def direct() -> Tensor:
        y = bare.Attention.apply(rows, *_project(w, x))
        return F.linear(bare.join(y), out.weight, out.bias)

    return case(layer, x, lambda: layer(x, index), direct, kernel, (index,))


# the most seconds above the bare calls: forward, and forward + backward
MAKERS: dict[str, tuple[Callable[[], Case], float, float]] = {
    "linear": (linear, 12 * MICRO, 12 * MICRO),
    "conv": (conv, 12 * MICRO, 12 * MICRO),
    "sdpa": (sdpa, 15 * MICRO, 30 * MICRO),
    "spmm": (spmm, 60 * MICRO, 60 * MICRO),
    "edge_softmax": (edge_softmax, 60 * MICRO, 60 * MICRO),
    "native": (native, 60 * MICRO, 60 * MICRO),
}


def make(name: str) -> Case:
    """The case of one kernel."""
    seeded()
    return MAKERS[name][0]()


def entries() -> list[Entry]:
    made = []
    for name, (_, forward, train) in MAKERS.items():
        floors = {(FORWARD, "overhead"): forward, (TRAIN, "overhead"): train}
        title = f"one call of {name} above the bare torch calls, one thread"
        made.append(
            Entry(f"dispatch/{name}", title, lambda n=name: make(n), {"N": N, "E": E}, floors, "smoke", threads=1)
        )
    return made
