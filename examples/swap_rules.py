"""One Transformer, one changed argument at a time: window attention, a graph network, a convolution.

Each row differs from the row before it in one argument. The rest of the model stays: the embedding, the code of places,
the pre-norm residual blocks with their channel MLP, the readout.

    python examples/swap_rules.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from mpnn import trace_kernels
from mpnn.data import load
from mpnn.models import Transformer
from mpnn.neighbours import AllTokens, Graph, Grid, Neighbours, Window
from mpnn.positions import Sinusoidal
from mpnn.training import Settings, fit, seeded
from mpnn.weights import AdditiveScore, EdgeLearned, QKSoftmax, SharedKernel, Weight


def grid_graph(size: tuple[int, ...]) -> Graph:
    """The cells of a grid as nodes, each linked to the cells beside it: a list of edges, as any graph."""
    cells = torch.arange(torch.Size(size).numel()).view(size)
    forth = []
    for axis, n in enumerate(size):
        forth.append(torch.stack([cells.narrow(axis, 0, n - 1).flatten(), cells.narrow(axis, 1, n - 1).flatten()]))
    there = torch.cat(forth, 1)
    return Graph(torch.cat([there, there.flip(0)], 1), cells.numel())


def attention(c: int) -> Weight:
    return QKSoftmax(c, heads=4)


def gat(c: int) -> Weight:
    return EdgeLearned(c, c, AdditiveScore(c, heads=4), heads=4, normalise="softmax")


def shared(c: int) -> Weight:
    return SharedKernel(c, c)


def rules(size: tuple[int, ...]) -> list[tuple[str, Neighbours, Callable[[int], Weight]]]:
    return [
        ("Transformer", AllTokens(), attention),
        ("window attention", Window(3), attention),
        ("graph attention, dot products", grid_graph(size), attention),
        ("graph attention, GAT", grid_graph(size), gat),
        ("graph network, sum over edges", grid_graph(size), shared),
        ("convolution", Grid(size, 3), shared),
        ("neighbourhood attention", Grid(size, 3), attention),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="digits", help="digits, mnist1d, or another of mpnn.data.SOURCES")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--smoke", action="store_true", help="a few steps: done in seconds")
    args = parser.parse_args()
    steps = 3 if args.smoke else args.steps
    data = load(args.dataset)
    settings = Settings(3e-3, optimiser="adamw", schedule="cosine", warmup=0.05, batch_size=32, clip=1.0)
    print(f"{data.name}, grid {data.grid}: {len(data.x_train):,} training samples, {steps} steps")
    print(
        f"{'neighbours × weight':<26} {'also known as':<30} {'parameters':>10} {'accuracy':>9}   kernel of each layer"
    )
    for name, neighbours, weight in rules(data.grid):
        with seeded(0):
            code = Sinusoidal(32)
            size = (data.channels, 32, 2, data.classes)
            model = Transformer(*size, neighbours=neighbours, weight=weight, position=code, hidden=64)
            result = fit(model, data, settings, steps=steps, evaluations=1)
        with torch.no_grad(), trace_kernels(model) as kernels:
            model(data.x_test[:64])
        parameters = sum(p.numel() for p in model.parameters())
        rule = f"{type(neighbours).__name__} × {type(weight(4)).__name__}"
        print(f"{rule:<26} {name:<30} {parameters:10,} {result.accuracy:9.1%}   {', '.join(kernels.values())}")


if __name__ == "__main__":
    main()
