"""Limits: how many numbers a kernel that works in blocks holds at once; ``use_kernels(block=...)`` sets it."""

block: int = 1 << 22  # 16 MiB of float32; a backward holds a few times that
