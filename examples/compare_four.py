"""MLP, CNN, GNN and Transformer on the same samples: the same network with other neighbours and other weights.

A signal of 40 steps is 40 units to the MLP, a grid of 40 cells to the CNN, a path of 40 nodes to the GNN, and 40 tokens
to the Transformer. `mpnn compare` does this with tuned recipes, several seeds, pictures and files; here it is by hand.

    python examples/compare_four.py
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from mpnn import trace_kernels
from mpnn.data import Dataset, load
from mpnn.models import CNN, GNN, MLP, Transformer
from mpnn.neighbours import Graph
from mpnn.positions import Learned
from mpnn.training import Settings, fit, seeded
from mpnn.weights import SharedKernel


def path(nodes: int) -> Graph:
    """Each node linked to the next one, both ways."""
    here = torch.arange(nodes - 1)
    forth = torch.stack([here, here + 1])
    return Graph(torch.cat([forth, forth.flip(0)], 1), nodes)


def with_own_token(channels: int, out_channels: int) -> SharedKernel:
    """GraphConv: one matrix for the neighbours' sum, another for the node itself."""
    return SharedKernel(channels, out_channels, root=True)


def models(data: Dataset) -> dict[str, tuple[nn.Module, Settings]]:
    n, classes = data.tokens, data.classes
    plain, warm = Settings(3e-3), Settings(3e-3, optimiser="adamw", schedule="cosine", warmup=0.05)
    return {
        # A signal is (N, 1) as tokens and (N,) as units.
        "MLP": (nn.Sequential(nn.Flatten(), MLP((n, 100, 100, classes))), plain),
        "CNN": (CNN(1, (25, 25, 25), classes, size=(n,), stride=2, padding=1, readout="flatten"), plain),
        "GNN": (GNN(1, (48,) * 4, classes, neighbours=path(n), weight=with_own_token, residual=True), plain),
        "Transformer": (Transformer(1, 24, 2, classes, position=Learned(24, n)), warm),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--smoke", action="store_true", help="a few steps: done in seconds")
    args = parser.parse_args()
    steps = 5 if args.smoke else args.steps
    data = load("mnist1d")
    print(f"{data.name}: {len(data.x_train):,} training samples, {len(data.x_test):,} test samples, {steps} steps")
    print(f"{'model':<12} {'parameters':>10} {'accuracy':>9} {'ms a step':>10}   kernel of each layer")
    with seeded(0):
        made = models(data)
    for name, (model, settings) in made.items():
        with seeded(0):
            result = fit(model, data, settings, steps=steps, evaluations=1)
        with torch.no_grad(), trace_kernels(model) as kernels:
            model(data.x_test[:100])
        parameters = sum(p.numel() for p in model.parameters())
        used = ", ".join(kernels.values())
        print(f"{name:<12} {parameters:10,} {result.accuracy:9.1%} {1e3 * result.seconds_a_step:10.1f}   {used}")


if __name__ == "__main__":
    main()
