"""Linear, Conv2d, GCNConv and MultiheadAttention are one layer with two arguments.

Each stands beside the original with the original's weights, run by the kernel that the plan chooses and by the
reference kernel, which is the definition. In float64 all agree to rounding: what they return, and every gradient.

    python examples/four_layers.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from mpnn import MessagePassing, trace_kernels, use_kernels
from mpnn.neighbours import AllTokens, Full, Graph, Grid
from mpnn.weights import QKSoftmax, SharedKernel, Static


@dataclass
class Case:
    """A layer, the original, how each is called on x, and the original's parameters beside ours (or its parts)."""

    layer: MessagePassing
    original: nn.Module
    x: Tensor
    ours: Callable[[Tensor], Tensor]
    theirs: Callable[[Tensor], Tensor]
    same: list[tuple[Tensor, list[Tensor]]]


def linear(batch: int) -> Case:
    """`Full` × `Static`: a fixed number of units, a parameter for each pair of them."""
    layer, original = MessagePassing(Full(784, 256), Static()), nn.Linear(784, 256)
    same = [(original.weight, [layer.weight.weight]), (original.bias, [layer.weight.bias])]
    return Case(layer, original, torch.randn(batch, 784), lambda x: layer(x[..., None])[..., 0], original, same)


def convolution(batch: int) -> Case:
    """`Grid` × `SharedKernel`: the cells around, a parameter for each offset. Tokens are the cells, row by row."""
    layer, original = MessagePassing(Grid((28, 28), 3), SharedKernel(4, 8)), nn.Conv2d(4, 8, 3, padding="same")
    same = [(original.weight, [layer.weight.weight]), (original.bias, [layer.weight.bias])]

    def on_images(x: Tensor) -> Tensor:
        return original(x.mT.unflatten(-1, (28, 28))).flatten(2).mT

    return Case(layer, original, torch.randn(batch, 28 * 28, 4), layer, on_images, same)


def graph_convolution(batch: int) -> Case:
    """`Graph` × `SharedKernel`: the sources of the edges, one matrix, scaled by the degrees of both ends."""
    layer = MessagePassing(Graph(self_loops="add"), SharedKernel(16, 32, normalise="symmetric"))
    original = GCNConv(16, 32)
    same = [(original.lin.weight, [layer.weight.weight]), (original.bias, [layer.weight.bias])]
    x, edge_index = torch.randn(100 * batch, 16), torch.randint(100 * batch, (2, 500 * batch))
    return Case(layer, original, x, lambda x: layer(x, edge_index), lambda x: original(x, edge_index), same)


def attention(batch: int) -> Case:
    """`AllTokens` × `QKSoftmax`: every token, weighed by how well query and key agree."""
    layer = MessagePassing(AllTokens(), QKSoftmax(64, heads=4))
    original = nn.MultiheadAttention(64, 4, batch_first=True)
    w = layer.weight
    same = [
        (original.in_proj_weight, [w.query.weight, w.key.weight, w.value.weight]),
        (original.in_proj_bias, [w.query.bias, w.key.bias, w.value.bias]),
        (original.out_proj.weight, [w.output.weight]),
        (original.out_proj.bias, [w.output.bias]),
    ]
    x = torch.randn(batch, 100, 64)
    return Case(layer, original, x, layer, lambda x: original(x, x, x, need_weights=False)[0], same)


def run(module: nn.Module, function: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """The output, and the gradient of the input."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    y = function(x)
    y.square().sum().backward()
    return [y.detach().flatten(), x.grad.flatten()]


def compare(name: str, case: Case) -> None:
    case.layer.double(), case.original.double()
    with torch.no_grad():
        for theirs, ours in case.same:
            for parameter, part in zip(ours, theirs.chunk(len(ours)), strict=True):
                parameter.copy_(part.view_as(parameter))
    expected = run(case.original, case.theirs, case.x.double())
    expected += [theirs.grad.flatten() for theirs, _ in case.same]
    rule = f"{type(case.layer.neighbours).__name__} × {type(case.layer.weight).__name__}"
    for kernels in ((), ("reference",)):
        with use_kernels(*kernels), trace_kernels(case.layer) as used:
            got = run(case.layer, case.ours, case.x.double())
        got += [torch.cat([p.grad for p in ours]).flatten() for _, ours in case.same]
        value, *gradients = [((a - b).abs().max() / b.abs().max()).item() for a, b in zip(got, expected, strict=True)]
        print(f"{name:<20} {rule:<23} {used['']:<10} {value:10.1e} {max(gradients):13.1e}")
        assert max(value, *gradients) < 1e-10, f"{rule} is not {name}"
        name = rule = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a batch of two: done at once")
    batch = 2 if parser.parse_args().smoke else 32
    torch.manual_seed(0)
    print("largest difference from the original, in units of its largest value:")
    print(f"{'the original':<20} {'our two arguments':<23} {'kernel':<10} {'value':>10} {'any gradient':>13}")
    for name, make in (("nn.Linear", linear), ("nn.Conv2d", convolution), ("PyG's GCNConv", graph_convolution)):
        compare(name, make(batch))
    compare("MultiheadAttention", attention(batch))


if __name__ == "__main__":
    main()
