"""Tensors that several sides share, from fixed seeds."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def normal(*shape: int, seed: int = 1) -> Tensor:
    """A leaf of normal numbers that wants a gradient."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).requires_grad_()


def leaf(view: Tensor) -> Tensor:
    """A leaf of its own on the same memory: the peer's view of our tensor."""
    return view.detach().requires_grad_()


def share(module: nn.Module, **tensors: Tensor) -> nn.Module:
    """Give a module parameters that lie in the memory of these tensors, of the same shape as its own.

    Dots in names are written as two underscores: ``in_proj__weight``.
    """
    for name, tensor in tensors.items():
        path = name.replace("__", ".")
        owner = module.get_submodule(path.rpartition(".")[0])
        last = path.rpartition(".")[2]
        own = getattr(owner, last)
        if own.shape != tensor.shape:
            raise ValueError(f"expected {path} of shape {tuple(own.shape)}, got {tuple(tensor.shape)}")
        setattr(owner, last, nn.Parameter(tensor.detach()))
    return module


def seeded(seed: int = 0) -> None:
    """The same parameters in every process that makes a case."""
    torch.manual_seed(seed)
