"""Data: named datasets as tokens on a grid, and the batches of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpnn.lazy import lazy

if TYPE_CHECKING:
    from mpnn.data.batches import Batches, StepSampler
    from mpnn.data.cora import Nodes, cora, download_cora, has_cora
    from mpnn.data.dataset import Dataset
    from mpnn.data.errors import UsageError
    from mpnn.data.load import load
    from mpnn.data.sources import SOURCES

__all__ = [
    "SOURCES",
    "Batches",
    "Dataset",
    "Nodes",
    "StepSampler",
    "UsageError",
    "cora",
    "download_cora",
    "has_cora",
    "load",
]

lazy(
    __name__,
    {
        "SOURCES": "sources",
        "Batches": "batches",
        "Dataset": "dataset",
        "Nodes": "cora",
        "StepSampler": "batches",
        "UsageError": "errors",
        "cora": "cora",
        "download_cora": "cora",
        "has_cora": "cora",
        "load": "load",
    },
)
