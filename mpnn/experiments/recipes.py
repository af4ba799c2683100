"""The architectures on each dataset: one function a model, and how each is trained."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from mpnn.data import Dataset
from mpnn.experiments.recipe import Recipe
from mpnn.models import CNN, GNN, MLP, Transformer
from mpnn.neighbours import Graph, Grid
from mpnn.positions import Learned
from mpnn.tokens import PatchTokens, Tokens
from mpnn.training import Settings
from mpnn.weights import SharedKernel

MODELS = ("logistic", "mlp", "cnn", "gnn", "transformer")

# Test accuracy in per cent, by (dataset, positions shuffled): Greydanus and Kobak, "Scaling down deep learning with
# MNIST-1D", 2024, arXiv:2011.14439. No GNN and no Transformer is published.
PUBLISHED: dict[str, dict[bool, dict[str, float]]] = {
    "mnist1d": {
        False: {"logistic": 32, "mlp": 68, "cnn": 94},
        True: {"logistic": 32, "mlp": 68, "cnn": 56},
    }
}


def logistic(data: Dataset, width: int) -> nn.Module:
    """One layer from all inputs to the classes."""
    return nn.Sequential(nn.Flatten(), MLP((data.tokens * data.channels, data.classes)))


def mlp(data: Dataset, width: int) -> nn.Module:
    """MNIST-1D's MLP: two hidden layers, the second with a residual connection."""
    sizes = (data.tokens * data.channels, width, width, data.classes)
    return nn.Sequential(nn.Flatten(), MLP(sizes, residual=True))


def signal_cnn(data: Dataset, width: int) -> nn.Module:
    """MNIST-1D's CNN: three strided convolutions, and a linear map from all that is left."""
    return CNN(
        data.channels,
        (width,) * 3,
        data.classes,
        size=data.grid,
        kernel_size=(5, 3, 3),
        stride=2,
        padding=1,
        readout="flatten",
    )


def image_cnn(data: Dataset, width: int) -> nn.Module:
    """Four 3×3 convolutions, the second and the third halving the image, and the mean over what is left."""
    return CNN(
        data.channels,
        (width, width, 2 * width, 2 * width),
        data.classes,
        size=data.grid,
        stride=(1, 2, 2, 1),
        padding=1,
    )


class AsImage(nn.Module):
    """Tokens on a grid as torch lays out images: `(B, N, C)` to `(B, C, *grid)`."""

    def __init__(self, grid: tuple[int, ...]) -> None:
        super().__init__()
        self.grid = grid

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).unflatten(2, self.grid)


def grid_graph(grid: tuple[int, ...]) -> Graph:
    """A graph of the grid's cells: each hears the next ones along each axis, and an edge's type is its direction."""
    cells = math.prod(grid)
    edges = Grid(grid, 3).edges(cells, cells)
    assert edges.relation is not None  # a grid numbers its offsets
    steps = torch.stack(torch.unravel_index(edges.relation, (3,) * len(grid))) - 1
    kept = (steps != 0).sum(0) == 1
    _, direction = edges.relation[kept].unique(return_inverse=True)
    index = torch.stack([edges.source, edges.target])[:, kept]
    return Graph(index, cells, type=direction, relations=2 * len(grid))


def gnn(depth: int, patch: int) -> Callable[[Dataset, int], nn.Module]:
    """An RGCN: a matrix for each direction of an edge, one for the node itself; residual; mean over the nodes.

    The nodes are the cells, or patches of them where there are many. Without directions (a GCN), a signal and its
    mirror image would be the same to it.
    """

    def build(data: Dataset, width: int) -> nn.Module:
        grid = tuple(size // patch for size in data.grid)
        axes = len(data.grid)
        model = GNN(
            data.channels * patch**axes,
            (width,) * depth,
            data.classes,
            neighbours=grid_graph(grid),
            weight=lambda before, after: SharedKernel(before, after, normalise="relation", root=True),
            residual=True,
        )
        if patch == 1:
            return model
        return nn.Sequential(AsImage(data.grid), PatchTokens(data.channels, None, (patch,) * axes), Bare(), model)

    return build


class Bare(nn.Module):
    """The tensor of `Tokens`: the graph says where the nodes are."""

    def forward(self, tokens: Tokens) -> Tensor:
        return tokens.x


def transformer(patch: int, stride: int, depth: int) -> Callable[[Dataset, int], nn.Module]:
    """Tokens that are overlapping patches, a learned code of their place, and attention among all of them."""

    def build(data: Dataset, width: int) -> nn.Module:
        axes = len(data.grid)
        tokens = PatchTokens(data.channels, width, (patch,) * axes, stride=(stride,) * axes)
        places = tuple((size - patch) // stride + 1 for size in data.grid)
        position = Learned(width, places if axes > 1 else places[0])
        model = Transformer(None, width, depth, data.classes, tokens=tokens, position=position, hidden=2 * width)
        return nn.Sequential(AsImage(data.grid), model)

    return build


def recipe(model: str, data: Dataset, *, published: bool = False) -> Recipe:
    """How one of `MODELS` is built and trained on a dataset; with `published`, as it was where it was published."""
    images = len(data.grid) > 1
    small = max(data.grid) < 16
    # MNIST-1D's protocol: Adam at a constant 1e-2, the samples in their stored order.
    protocol = Settings(1e-2, shuffle=False)
    rate = Settings(3e-3, optimiser="adamw", weight_decay=0.05, schedule="cosine", warmup=0.1, clip=1.0)
    fast = Settings(1e-2, optimiser="adamw", weight_decay=0.01, schedule="cosine", warmup=0.1, clip=1.0)
    plain = protocol if published else Settings(1e-2, schedule="cosine")
    patch, stride = ((4, 2) if small else (8, 4)) if images else (8, 2)
    return {
        "logistic": Recipe("Full × Static: one weight per pair of an input and a class", logistic, 0, plain),
        "mlp": Recipe("Full × Static: every unit hears every unit, one weight per pair", mlp, 100, plain),
        "cnn": Recipe(
            "Grid × SharedKernel: a cell hears its window, one matrix per offset",
            image_cnn if images else signal_cnn,
            16 if images else 25,
            plain,
        ),
        "gnn": Recipe(
            "Graph × SharedKernel: a node hears the next ones, one matrix per direction (RGCN)",
            gnn(4, 1 if small or not images else 2),
            32,
            fast,
        ),
        "transformer": Recipe(
            f"AllTokens × QKSoftmax: overlapping patches (size {patch}, stride {stride}) hear each other by content",
            transformer(patch, stride, 2),
            32,
            rate,
            multiple=4,
        ),
    }[model]
