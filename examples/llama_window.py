"""A small Llama learns Python's manual, is converted, gets a sliding window in place of full attention, and goes on.

Model and training are Hugging Face's and torch's; one line changes who sends to whom. The text is the documentation
topics of Python's standard library (pydoc_data.topics), of which every tenth is held out.

    python examples/llama_window.py
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from pydoc_data.topics import topics

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from mpnn import capture_weights, trace_kernels
from mpnn.interop import convert, swap
from mpnn.neighbours import Window
from mpnn.tokens import SubwordTokens, Vocabulary

LENGTH, WINDOW, LONG = 512, 64, 2048


def text(size: int) -> tuple[SubwordTokens, Tensor, Tensor]:
    """The tokeniser, and the ids of the topics to learn from and of those held out."""
    parts = [f"{name}\n\n{body}\n\n" for name, body in sorted(topics.items())]
    tokens = SubwordTokens(128, Vocabulary.trained(parts, size))
    held, learnt = parts[::10], [part for i, part in enumerate(parts) if i % 10]
    return tokens, *(torch.tensor(tokens.vocabulary.encode("".join(p))) for p in (learnt, held))


def train(model: LlamaForCausalLM, ids: Tensor, steps: int, optimiser: torch.optim.Optimizer, what: str) -> None:
    """Next-token prediction on random pieces of the text."""
    for _ in track(range(steps), what):
        piece = ids[torch.randint(len(ids) - LENGTH, (4, 1)) + torch.arange(LENGTH)]
        optimiser.zero_grad()
        model(piece, labels=piece).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()


def measured(model: LlamaForCausalLM, held: Tensor, length: int) -> list[str]:
    """Held-out loss in bits a token; time and memory of a training step on one long piece; kernels."""
    pieces, piece, kept = held[: len(held) // LENGTH * LENGTH].view(-1, LENGTH), held[None, :length], []
    with torch.no_grad(), trace_kernels(model) as kernels:
        loss = torch.stack([model(p, labels=p).loss for p in pieces.split(8)]).mean() / math.log(2)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (t, kept.append(t.untyped_storage()))[0], lambda t: t):
        model(piece, labels=piece)
    memory = sum({storage.data_ptr(): storage.nbytes() for storage in kept}.values()) / 2**20
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        model(piece, labels=piece).loss.backward()
        seconds.append(time.perf_counter() - start)
    names = sorted(set(kernels.values())) or ["torch"]
    return [f"{loss:.2f}", f"{1e3 * min(seconds):,.0f} ms", f"{memory:,.0f} MiB", *names]


def picture(maps: dict[str, Tensor], path: Path) -> None:
    import matplotlib.pyplot as plt
    from matplotlib.colors import LogNorm

    figure, axes = plt.subplots(1, len(maps), figsize=(9, 4.2), layout="constrained")
    for axis, (name, found) in zip(axes, maps.items(), strict=True):
        shown = axis.imshow(found.masked_fill(found == 0, torch.nan), norm=LogNorm(1e-3, 0.3), interpolation="none")
        axis.set(title=name, xlabel="source token", ylabel="target token")
    figure.colorbar(shown, ax=axes, label="attention, mean of layers and heads", extend="both")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="two steps")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--picture", type=Path, default=Path("llama_window.png"))
    args = parser.parse_args()
    steps, length, console, maps = (2, LENGTH, Console(), {}) if args.smoke else (args.steps, LONG, Console(), {})
    torch.manual_seed(0)
    tokens, ids, held = text(300 if args.smoke else 1024)
    held = held[: (4 if args.smoke else 32) * LENGTH]
    sizes = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"intermediate_size": 256, "vocab_size": tokens.vocabulary.size, "initializer_range": 0.05}
    model = LlamaForCausalLM(LlamaConfig(attn_implementation="eager", **sizes))
    model.set_input_embeddings(tokens.embedding)
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    table = Table("attention", "held-out bits a token", f"step on {length:,} tokens", "kept for it", "kernel")

    def note(name: str) -> None:
        table.add_row(name, *measured(model, held, length))
        with torch.no_grad(), capture_weights(model) as weights:
            model(held[None, :256])
        maps[name] = torch.zeros(256, 256)
        for (edges,) in weights.values():
            maps[name][edges.target, edges.source] += edges.weight.mean((0, -1)) / len(weights)

    train(model, ids, steps, optimiser, "full attention")
    note("full, by transformers")
    print(convert(model))
    note("full, converted")
    swap(model, neighbours=Window(WINDOW - 1, 0))
    note(f"window of {WINDOW}")
    train(model, ids, steps // 2, optimiser, f"window of {WINDOW}")
    note(f"window of {WINDOW}, trained on")
    console.print(table)
    if not args.smoke:
        picture({name: maps[name] for name in list(maps)[1::2]}, args.picture)
        console.print(f"the picture is {args.picture}")


if __name__ == "__main__":
    main()
