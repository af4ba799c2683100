"""One seed for everything, and the random state of the caller left as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Python's, numpy's and torch's generators, and those of loader workers, start at `seed` inside the block.

    >>> import torch
    >>> with seeded(3):
    ...     first = torch.rand(2)
    >>> with seeded(3):
    ...     again = torch.rand(2)
    >>> bool((first == again).all())
    True
    """
    from lightning.pytorch import seed_everything
    from lightning.pytorch.utilities.seed import isolate_rng

    with isolate_rng():
        seed_everything(seed, workers=True, verbose=False)
        yield
