"""Surgery on a vision transformer: convert it, give it neighbourhood attention, and fine-tune it on real digits.

A ViT of Hugging Face, made from its configuration, is trained briefly on 28×28 images (5,000 of MNIST). Converted,
it computes the same. Then each patch sees the 5×5 patches around it and the class token, and training goes on.

    python examples/vit_surgery.py
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn

from mpnn import capture_weights, trace_kernels
from mpnn.data import load
from mpnn.interop import convert, swap
from mpnn.neighbours import Global, Graph, Grid, Neighbours
from mpnn.training import Settings, fit, seeded

SIDE, PATCH, WINDOW = 28, 2, 5
CELLS = SIDE // PATCH


class Digits(nn.Module):
    """The ViT on tokens (B, 784, 1): logits (B, 10)."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import ViTConfig, ViTForImageClassification

        config = ViTConfig(
            hidden_size=48, num_hidden_layers=3, num_attention_heads=3, intermediate_size=96, image_size=SIDE,
            patch_size=PATCH, num_channels=1, num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        self.vit: Any = ViTForImageClassification(config)

    def forward(self, x: Tensor) -> Tensor:
        return self.vit(x.transpose(1, 2).unflatten(2, (SIDE, SIDE))).logits


def neighbourhood() -> Neighbours:
    """The patches are the cells of a grid, numbered from 1: token 0, the class token, sees all and is seen by all."""
    grid = Grid((CELLS, CELLS), WINDOW, border="clamp").edges(CELLS**2, CELLS**2)
    edges = torch.stack([grid.source, grid.target]) + 1
    return Global(1) | Graph(edges, CELLS**2 + 1)


def milliseconds(model: nn.Module, x: Tensor, rounds: int) -> float:
    """The least time of a forward and backward of a batch."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        model(x).sum().backward()
        best = min(best, time.perf_counter() - start)
    model.zero_grad()
    return 1e3 * best


def kept(model: nn.Module, x: Tensor) -> float:
    """What one forward keeps for its backward beside the parameters, in MiB."""
    own = {p.data_ptr() for p in model.parameters()}
    found: dict[int, int] = {}

    def note(t: Tensor) -> Tensor:
        if t.untyped_storage().data_ptr() not in own:
            found[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        model(x)
    return sum(found.values()) / 2**20


def seen(model: nn.Module, image: Tensor, patch: int) -> Tensor:
    """How much a patch takes from every patch in the last layer, the mean over heads, as a picture of the grid."""
    with capture_weights(model) as captured, torch.no_grad():
        model(image)
    edges = list(captured.values())[-1][0]
    mine = edges.target == patch + 1
    shares = torch.zeros(CELLS**2 + 1)
    shares[edges.source[mine]] = edges.weight[0, mine].mean(-1)
    return shares[1:].view(CELLS, CELLS)


def picture(image: Tensor, patch: int, maps: dict[str, Tensor], path: Path) -> None:
    """The digit with the patch that looks, and how it looks before and after."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 1 + len(maps), figsize=(3.2 * (1 + len(maps)), 3.4))
    row, column = divmod(patch, CELLS)
    axes[0].imshow(image.view(SIDE, SIDE), cmap="gray")
    axes[0].set_title("the digit")
    axes[0].plot((column + 0.5) * PATCH - 0.5, (row + 0.5) * PATCH - 0.5, "s", mec="tab:red", mfc="none", ms=9, mew=2)
    for ax, (name, shares) in zip(axes[1:], maps.items(), strict=True):
        ax.imshow(shares, cmap="viridis", vmin=0)
        ax.plot(column, row, "s", mec="tab:red", mfc="none", ms=12, mew=2)
        ax.set_title(name)
    for ax in axes:
        ax.set(xticks=[], yticks=[])
    figure.savefig(path, dpi=150, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="two steps on a few digits")
    parser.add_argument("--steps", type=int, default=150, help="before, and as many after the surgery")
    parser.add_argument("--picture", type=Path, default=Path("vit_surgery.png"))
    args = parser.parse_args()
    console, steps, data = Console(), 2 if args.smoke else args.steps, load("mnist5k")
    if args.smoke:
        data = replace(data, x_test=data.x_test[:50], y_test=data.y_test[:50])
    settings = Settings(2e-3, optimiser="adamw", batch_size=50, schedule="cosine", warmup=0.1)
    table = Table("the ViT", "test accuracy", "ms a step", "MiB kept for the backward")
    batch, probe, patch = data.x_train[:50], data.x_test[:1], CELLS**2 // 2 + CELLS // 2

    def train() -> float:
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task("training", total=steps)
            outcome = fit(
                model, data, settings, steps=steps, evaluations=1, advance=lambda n, _: bar.update(task, completed=n)
            )
        return outcome.accuracy

    def note(name: str, accuracy: float) -> None:
        table.add_row(name, f"{accuracy:.1%}", f"{milliseconds(model, batch, 3):.0f}", f"{kept(model, batch):.1f}")

    def accuracy() -> float:
        with torch.no_grad():
            return float(
                (torch.cat([model(x) for x in data.x_test.split(100)]).argmax(-1) == data.y_test).float().mean()
            )

    with seeded(0):
        model = Digits().eval()  # its dropout is 0: evaluation and training are the same function
        note("as Hugging Face computes it", train())
        before = model(batch)
        console.print(convert(model, example=probe))
        console.print(f"largest difference of the logits: {float((model(batch) - before).abs().max()):.1e}")
        note("converted", accuracy())
        maps = {"all patches": seen(model, probe, patch)}
        swap(model, neighbours=neighbourhood())
        note(f"{WINDOW}×{WINDOW} neighbours, not yet trained", accuracy())
        note("the same, fine-tuned", train())
        maps[f"{WINDOW}×{WINDOW} neighbours"] = seen(model, probe, patch)
    with trace_kernels(model) as kernels:
        model(probe)
    console.print(table)
    console.print(f"kernels now: {', '.join(sorted(set(kernels.values())))}")
    picture(probe, patch, maps, args.picture)
    console.print(f"the picture is {args.picture}")


if __name__ == "__main__":
    main()
