"""A needle in 16,384 tokens, found on a CPU: attention over a window and a few global tokens, trained end to end.

One token of noise is marked and carries a class; the first tokens see all and are seen by all, so they can find it.
Then the memory of one training step against the length, beside the same attention by a mask over all pairs.

    python examples/long_context.py
"""

from __future__ import annotations

import argparse
import multiprocessing
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from mpnn import attend
from mpnn.models import Network, Transformer
from mpnn.neighbours import Global, Window

CLASSES, CHANNELS = 4, 32
RULE, DENSE = Window(128) | Global(16), "a mask over all pairs"
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def needles(samples: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(samples, length, CLASSES + 1) of noise; a random token has 1 as its last channel and its class before it."""
    x = torch.randn(samples, length, CLASSES + 1, generator=generator) * 0.1
    label = torch.randint(CLASSES, (samples,), generator=generator)
    place = torch.randint(length, (samples,), generator=generator)
    x[torch.arange(samples), place] = torch.cat([2.0 * F.one_hot(label, CLASSES), torch.full((samples, 1), 4.0)], 1)
    return x, label


def train(length: int, steps: int) -> tuple[Network, float]:
    """Steps of Adam on fresh samples, then the accuracy on others."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = Transformer(CLASSES + 1, CHANNELS, 1, CLASSES, heads=2, neighbours=RULE, readout="first")
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in track(range(steps), f"training on {length:,} tokens"):
        x, label = needles(2, length, generator)
        optimiser.zero_grad()
        F.cross_entropy(model(x), label).backward()
        optimiser.step()
    with torch.no_grad():
        tests = [needles(2, length, generator) for _ in range(10)]
        return model, sum(float((model(x).argmax(-1) == label).float().mean()) for x, label in tests) / len(tests)


def peak() -> int:
    """In KiB, of this process."""
    return int(next(line.split()[1] for line in STATUS.read_text().splitlines() if line.startswith("VmHWM")))


def step(how: str, length: int) -> int:
    """The most memory of one forward and backward in this process, in KiB."""
    if length > 1024:
        step(how, 1024)  # what a first call loads is no matter of length
    q, k, v = (torch.randn(1, 2, length, CHANNELS // 2, requires_grad=True) for _ in range(3))
    CLEAR.write_text("5")  # Linux forgets the process's peak
    before = peak()
    if how == DENSE:
        i = torch.arange(length)
        mask = ((i - i[:, None]).abs() <= 128) | (i < 16) | (i[:, None] < 16)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    else:
        y = attend(q, k, v, RULE)
    y.sum().backward()
    return peak() - before


def picture(lengths: list[int], rows: dict[str, list[float]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.5))
    for name, values in rows.items():
        axes.loglog(lengths[: len(values)], values, marker="o", label=name, base=2)
    axes.set(xlabel="tokens", ylabel="KiB a token", title="memory of one training step")
    axes.legend(loc="center right")
    figure.savefig(path, dpi=150, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="two steps on short sequences")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--picture", type=Path, default=Path("long_context.png"))
    args = parser.parse_args()
    length, steps = (4096, 2) if args.smoke else (16_384, args.steps)
    console, (model, accuracy) = Console(), train(length, steps)
    print(model.blocks[0].layer.plan(torch.zeros(1, length, CHANNELS)))
    console.print(f"accuracy on {length:,} tokens after {steps} steps: {accuracy:.0%} (chance {1 / CLASSES:.0%})")
    if not CLEAR.exists():
        raise SystemExit("the memory of a step is read from Linux's /proc, which this system does not have")
    lengths = [length // 2, length] if args.smoke else [length // 8, length // 4, length // 2, length]
    rows: dict[str, list[float]] = {}
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:  # a process for each step
        for name, tried in (("window | global", lengths), (DENSE, lengths[:-1])):  # whose memory grows with the square
            rows[name] = [pool.apply(step, (name, n)) / n for n in track(tried, f"memory of {name}")]
    table = Table("KiB a token", *(f"{n:,} tokens" for n in lengths))
    for name, values in rows.items():
        table.add_row(name, *(f"{v:.1f}" for v in values))
    console.print(table)
    if not args.smoke:
        picture(lengths, rows, args.picture)
        console.print(f"the picture is {args.picture}")


if __name__ == "__main__":
    main()
