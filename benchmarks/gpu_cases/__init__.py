"""What is timed on a GPU: attention on graphs, sparse products, windows and grids, dense attention by each of torch's
backends. The sizes are a GPU's; ``small`` ones show on a CPU that every case runs."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.case import Entry
from benchmarks.gpu_cases import boxes, dense, edges


def entries(device: str, small: bool = False) -> Iterator[Entry]:
    """Every case, the most telling ones first, since the time may end."""
    for kind in (edges, boxes, dense):
        yield from kind.entries(device, small)
