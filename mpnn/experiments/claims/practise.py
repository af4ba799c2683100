"""Training on tasks that are made as they are needed: every step sees samples that were never seen before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpnn.experiments.progress import Advance
from mpnn.training import Settings

# What every small model of these experiments is trained with.
SETTINGS = Settings(3e-3, optimiser="adamw", weight_decay=0.01, schedule="cosine", warmup=0.1, clip=1.0, batch_size=64)

Samples = tuple[Tensor, Tensor]  # what a model takes, and its labels


@contextmanager
def drawn(seed: int) -> Iterator[torch.Generator]:
    """torch's generator started at `seed` inside the block, for models, and a second one, for data."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield torch.Generator().manual_seed(seed + 10_000)


def practise(
    model: nn.Module,
    batch: Callable[[], Samples],
    *,
    steps: int,
    settings: Settings = SETTINGS,
    rows: Tensor | None = None,
    advance: Advance | None = None,
) -> list[float]:
    """Minimise the cross-entropy of `model(x)`, (..., classes), with labels (...); the processor seconds of each step.

    Processor time is what this process used: other work on the machine adds little to it.

    Args:
        batch: makes the samples of a step.
        rows: which rows of the output count, as the training nodes of a graph.
    """
    optimiser, scheduler = settings.make_optimiser(model.parameters(), steps)
    model.train()
    seconds = []
    for step in range(steps):
        started = time.process_time()
        x, y = batch()
        output = model(x)
        if rows is not None:
            output, y = output[rows], y[rows]
        loss = F.cross_entropy(output.flatten(0, -2), y.flatten(), label_smoothing=settings.label_smoothing)
        optimiser.zero_grad()
        loss.backward()
        if settings.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimiser.step()
        scheduler.step()
        seconds.append(time.process_time() - started)
        if advance is not None:
            advance(step + 1, None)
    return seconds


@torch.no_grad()
def accuracy(model: nn.Module, x: Any, y: Tensor) -> float:
    """The share of labels that the largest output names."""
    model.eval()
    return float((model(x).argmax(-1) == y).double().mean())


def one_hot(symbols: Tensor, count: int) -> Tensor:
    """Symbols as tokens: (B, N) → (B, N, count)."""
    return F.one_hot(symbols, count).float()
