"""Comparisons that know what an error is measured against, and say which tensor is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Relative to the largest value; sums in half precision of a few dozen terms.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 2**-8, torch.bfloat16: 2**-5}


def run(call: Callable[[], Any], leaves: dict[str, Tensor], twice: bool = False) -> dict[str, Tensor | None]:
    """The output of a call and the gradients of all leaves, of a random projection of it.

    ``twice``: also the gradients of a random projection of these gradients.
    """
    y = call()
    y = y[0] if isinstance(y, tuple) else y
    found = {"output": y.detach()}
    wanted = {k: t for k, t in leaves.items() if t.requires_grad}
    first = gradients([y], wanted, 0, twice)
    found |= {f"gradient of {k}": None if g is None else g.detach() for k, g in first.items()}
    if twice:
        second = gradients(list(first.values()), wanted, 1, False)
        found |= {f"second gradient of {k}": g for k, g in second.items()}
    return found


def gradients(of: list[Tensor | None], wanted: dict[str, Tensor], seed: int, create: bool) -> dict[str, Tensor | None]:
    """Gradients of a random projection, the same for the same seed and shapes."""
    pairs = []
    for place, t in enumerate(of):
        if t is not None and t.requires_grad:
            generator = torch.Generator().manual_seed(100 * seed + place)
            pairs.append((t, torch.randn(t.shape, dtype=torch.float64, generator=generator).to(t.dtype)))
    if not pairs or not wanted:
        return dict.fromkeys(wanted)
    outputs, ups = zip(*pairs, strict=True)
    grads = torch.autograd.grad(outputs, list(wanted.values()), ups, create_graph=create, allow_unused=True)
    return dict(zip(wanted, grads, strict=True))


def differences(mine: dict[str, Tensor | None], theirs: dict[str, Tensor | None], dtype: torch.dtype) -> list[str]:
    """What differs by more than the dtype's tolerance, relative to the largest value among outputs or gradients.

    A gradient that is None is one of zeros: a loop does not touch what no pair reads.
    """
    wrong, tolerance = [], TOLERANCE[dtype]
    for kind in ("output", "gradient", "second"):
        names = [k for k in theirs if k.startswith(kind)]
        scale = max(
            [float(t.detach().abs().max()) for k in names if (t := theirs[k]) is not None and t.numel()], default=0.0
        )
        for k in names:
            a, b = mine[k], theirs[k]
            if a is None and b is None:
                continue
            a, b = torch.zeros_like(b) if a is None else a, torch.zeros_like(a) if b is None else b
            if a.shape != b.shape or a.dtype != b.dtype:
                wrong.append(f"{k}: {tuple(a.shape)} {a.dtype}, expected {tuple(b.shape)} {b.dtype}")
            elif a.numel():
                error = float((a.detach().double() - b.detach().double()).abs().max())
                if not error <= tolerance * max(scale, 1e-3):  # also for NaN
                    wrong.append(f"{k}: off by {error:.3g} of {scale:.3g}, allowed {tolerance:g}")
    return wrong


def agree(mine: dict[str, Tensor | None], theirs: dict[str, Tensor | None], dtype: torch.dtype, what: str = "") -> None:
    """Assert that there is no difference."""
    wrong = differences(mine, theirs, dtype)
    assert not wrong, "\n".join([what, *wrong])
