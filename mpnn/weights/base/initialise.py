"""Initialisations of the layers that the rules stand beside: torch's and PyG's."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def uniform_(tensor: Tensor, fan_in: float) -> None:
    """U(-1/√fan_in, 1/√fan_in): the distribution of nn.Linear and nn.Conv."""
    bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0.0
    with torch.no_grad():
        tensor.uniform_(-bound, bound)


def glorot_(tensor: Tensor) -> None:
    """U(-a, a), a = √(6 / (rows + columns)) of the last two axes: PyG's ``glorot``."""
    bound = math.sqrt(6.0 / (tensor.shape[-2] + tensor.shape[-1]))
    with torch.no_grad():
        tensor.uniform_(-bound, bound)
