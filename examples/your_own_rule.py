"""A neighbourhood and a weight of your own, twenty lines each, that work with every built-in rule as they stand.

`Powers`: a token sees itself and the tokens 1, 2, 4, 8, … steps away on either side, so that a few layers connect all
(Li et al., 2019, arXiv:1907.00235, do so to the left). `Aim`: each head learns where it looks, so many steps away and
so wide. Both are checked against a loop over the pairs, then trained a little.

    python examples/your_own_rule.py
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from mpnn import MessagePassing, trace_kernels
from mpnn.data import load
from mpnn.models import Transformer
from mpnn.neighbours import Edges, Neighbours, Window
from mpnn.positions import Learned
from mpnn.training import Settings, fit, seeded
from mpnn.weights import Pairs, QKSoftmax, SharedKernel, Weight


class Powers(Neighbours):
    """N(i) = {i, i ± 1, i ± 2, i ± 4, …, i ± 2^(reach - 1)}, cut off at the ends.

    Relations: the steps in ascending order, 2 · reach + 1 of them, so that `SharedKernel` has a matrix for each.
    """

    axes = 1  # the width of offset, which `Aim` reads
    listed = True  # few edges: the sparse kernels may run it

    def __init__(self, reach: int) -> None:
        super().__init__()
        powers = [2**k for k in range(reach)]
        self.steps = [-p for p in reversed(powers)] + [0] + powers
        self.relations = len(self.steps)

    def edges(self, targets: int, sources: int, *, rows: slice | None = None, tokens: object = None) -> Edges:
        target = torch.arange(targets)[
            rows or slice(None)
        ]  # the targets that are asked for; their numbers stay absolute
        step = torch.tensor(self.steps)
        source = target[:, None] + step
        here, relation = ((source >= 0) & (source < sources)).nonzero(as_tuple=True)
        return Edges(source[here, relation], target[here], relation, offset=step[relation, None])


class Aim(Weight):
    """w_ij = exp(-|x_j - x_i - μ_h|² / 2 σ_h²) with x_j - x_i the offset: head h looks to μ_h, σ_h wide."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__(channels, channels, heads=heads)  # also makes `value`, an nn.Linear, and `bias`

    def build(self, neighbours: Neighbours) -> None:  # parameters that need the neighbourhood's numbers are made here
        if not neighbours.axes:
            raise ValueError(f"expected a neighbourhood with offsets for Aim, got {neighbours}")
        self.aim = nn.Parameter(torch.empty(self.heads, neighbours.axes))
        self.log_width = nn.Parameter(torch.empty(self.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.reset_linears()
        nn.init.normal_(self.aim, std=2)
        nn.init.zeros_(self.log_width), nn.init.zeros_(self.bias)

    def per_edge(self, pairs: Pairs) -> Tensor:
        squared = (pairs.offset[:, None] - self.aim).square().sum(-1)  # (E, heads)
        return torch.exp(-squared / (2 * self.log_width.exp() ** 2))


@torch.no_grad()
def check() -> None:
    """The layer beside a loop that knows nothing of edges."""
    layer, x = MessagePassing(Powers(3), Aim(8, heads=2)).double(), torch.randn(12, 8, dtype=torch.float64)
    aim, width, v = layer.weight.aim[:, 0], layer.weight.log_width.exp(), layer.weight.value(x).view(12, 2, 4)
    y = torch.zeros_like(v)
    for i in range(12):
        for j in range(12):
            if abs(j - i) in (0, 1, 2, 4):
                y[i] += torch.exp(-((j - i - aim) ** 2) / (2 * width**2))[:, None] * v[j]
    difference = (layer(x) - (y.view(12, 8) + layer.weight.bias)).abs().max().item()
    print(f"largest difference from a loop: {difference:.1e}\n\n{layer.plan(x)}\n")
    assert difference < 1e-12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--smoke", action="store_true", help="a few steps: done in seconds")
    args = parser.parse_args()
    check()
    data = load("mnist1d")
    settings = Settings(3e-3, optimiser="adamw", schedule="cosine", warmup=0.05)
    cells = [
        ("Powers × Aim", Powers(5), lambda c: Aim(c, heads=4)),
        ("Powers × QKSoftmax", Powers(5), lambda c: QKSoftmax(c, heads=4)),
        ("Powers × SharedKernel", Powers(5), lambda c: SharedKernel(c, c)),
        ("Window × Aim", Window(3), lambda c: Aim(c, heads=4)),
    ]
    for name, neighbours, weight in cells:
        with seeded(0):
            code = Learned(16, data.tokens)
            model = Transformer(1, 16, 2, data.classes, neighbours=neighbours, weight=weight, position=code, hidden=32)
            result = fit(model, data, settings, steps=3 if args.smoke else args.steps, evaluations=1)
        with torch.no_grad(), trace_kernels(model) as kernels:
            model(data.x_test[:100])
        print(f"{name:<22} test accuracy {result.accuracy:6.1%}   kernel of each layer: {', '.join(kernels.values())}")


if __name__ == "__main__":
    main()
