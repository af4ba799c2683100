"""Limits: how many numbers a kernel that works in blocks holds at once; ``use_kernels(block=...)`` sets it."""

from __future__ import annotations

from functools import lru_cache

import torch

block: int = 1 << 22  # 16 MiB of float32; a backward holds a few times that


@lru_cache(1)
def keep_freed_memory(device: str) -> None:
    """Let the C library keep what one block frees for the next, and not give it back page by page.

    It does so up to a size that grows with what was freed; a large piece that nobody writes to costs nothing.
    """
    if device == "cpu":
        torch.empty(31 << 18)  # 31 MiB of float32; from 32 on glibc learns nothing
