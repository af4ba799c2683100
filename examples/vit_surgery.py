"""Surgery on a vision transformer: convert it, give it neighbourhood attention, and fine-tune it on real digits.

A ViT of Hugging Face, made from its configuration, learns 5,000 digits of MNIST briefly. Converted, it computes the
same. Then each patch sees the 5×5 patches around it and the class token, and training goes on. (At 197 tokens attention
among all is still the faster one; windows win on larger images, see benchmarks/.)

    python examples/vit_surgery.py
"""

from __future__ import annotations

import argparse
import timeit
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from rich import print
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

from mpnn import capture_weights
from mpnn.data import load
from mpnn.interop import convert, swap
from mpnn.neighbours import Graph, Grid
from mpnn.report import of_target
from mpnn.training import Settings, fit, seeded

SIDE, PATCH, WINDOW = 28, 2, 5
CELLS = SIDE // PATCH
LOOKS = CELLS**2 // 2 + CELLS // 2  # the patch whose attention is drawn
SIZES = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 96}
IMAGE = {"image_size": SIDE, "patch_size": PATCH, "num_channels": 1, "num_labels": 10, "initializer_range": 0.1}


class Digits(ViTForImageClassification):
    """The ViT on tokens (B, 784, 1): logits (B, 10)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2).unflatten(2, (SIDE, SIDE))).logits


def neighbourhood() -> Graph:
    """Each patch and its window, numbered from 1; token 0, the class token, sees all and is seen by all."""
    grid = Grid((CELLS, CELLS), WINDOW, border="clamp").edges(CELLS**2, CELLS**2)
    near, all_tokens = torch.stack([grid.source, grid.target]) + 1, torch.arange(CELLS**2 + 1)
    star = torch.stack([torch.zeros_like(all_tokens), all_tokens])
    return Graph(torch.cat([near, star, star.flip(0)[:, 1:]], 1), CELLS**2 + 1)


def cost(model: nn.Module, x: Tensor) -> tuple[str, str]:
    """The ms of a training step, the best of three, and the MiB that its forward keeps for its backward."""
    held, own = [], {p.untyped_storage().data_ptr() for p in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
        model(x)
    memory = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
    seconds = min(timeit.repeat(lambda: model(x).sum().backward(), number=1, repeat=3))
    return f"{1e3 * seconds:.0f}", f"{sum(n for place, n in memory.items() if place not in own) / 2**20:.0f}"


def seen(model: nn.Module, image: Tensor) -> Tensor:
    """What one patch takes from all in the last layer, the mean over heads, on the grid."""
    with capture_weights(model) as weights, torch.no_grad():
        model(image)
    return of_target(list(weights.values())[-1][0], LOOKS + 1).mean(0)[1:].view(CELLS, CELLS)


def picture(maps: dict[str, Tensor], path: Path) -> Path:
    figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.5))
    for ax, (name, shown) in zip(axes, maps.items(), strict=True):
        ax.imshow(shown.numpy(), cmap="viridis" if shown.shape[0] == CELLS else "gray", extent=(0, CELLS, CELLS, 0))
        ax.plot(LOOKS % CELLS + 0.5, LOOKS // CELLS + 0.5, "s", mec="tab:red", mfc="none", ms=11, mew=2)
        ax.set(xticks=[], yticks=[], title=name, facecolor="0.85")  # grey: no neighbour
    figure.savefig(path, dpi=150, bbox_inches="tight")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="two steps, and a few digits to test on")
    parser.add_argument("--steps", type=int, default=250, help="before the surgery, and as many after it")
    parser.add_argument("--picture", type=Path, default=Path("vit_surgery.png"))
    args = parser.parse_args()
    data, steps, tests = load("mnist5k"), 2 if args.smoke else args.steps, slice(50 if args.smoke else None)
    settings = Settings(3e-3, optimiser="adamw", batch_size=50, schedule="cosine", warmup=0.1, clip=1.0)
    table = Table("the ViT", "test accuracy", "ms a step", "MiB kept")
    batch, image = data.x_train[:50], data.x_test[:1]

    def train(name: str) -> None:
        with Progress() as bar:
            task = bar.add_task(name, total=steps)
            fit(model, data, settings, steps=steps, evaluations=1, advance=lambda n, _: bar.update(task, completed=n))

    def row(name: str) -> None:
        with torch.no_grad():
            right = torch.cat([model(x) for x in data.x_test[tests].split(100)]).argmax(-1) == data.y_test[tests]
        table.add_row(name, f"{right.float().mean():.1%}", *cost(model, batch))

    with seeded(0):
        model = Digits(ViTConfig(**SIZES, **IMAGE))
        train("training")
        row("as it came")
        before = model(batch).detach()
        print(str(convert(model, example=image)))
        row(f"converted: logits differ by {(model(batch).detach() - before).abs().max():.0e}")
        maps = {"a digit": image.view(SIDE, SIDE), "all patches": seen(model, image)}
        swap(model, neighbours=neighbourhood())
        row(f"{WINDOW}×{WINDOW} patches and the class token")
        train("fine-tuning")
        row("the same, fine-tuned")
    print(table)
    if not args.smoke:
        print("the picture is", picture(maps | {f"{WINDOW}×{WINDOW} patches": seen(model, image)}, args.picture))


if __name__ == "__main__":
    main()
