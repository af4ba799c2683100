"""Nested tensors, which ``nn.TransformerEncoder`` makes of padded tokens in inference, as tokens and a mask."""

from __future__ import annotations

import torch
from torch import Tensor


def padded(x: Tensor) -> tuple[Tensor, Tensor]:
    """A nested tensor as tokens (B, N, C), zero where there are none, and their mask (B, N)."""
    lengths = torch.tensor([len(part) for part in x.unbind()], device=x.device)
    full = x.to_padded_tensor(0.0)
    return full, torch.arange(full.shape[1], device=x.device) < lengths[:, None]


def nested(x: Tensor, mask: Tensor) -> Tensor:
    """The tokens that a mask leaves as a nested tensor."""
    return torch._nested_tensor_from_mask(x, mask, mask_check=False)
