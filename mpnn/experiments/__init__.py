"""Experiments: the comparison of the architectures, and the harness that other experiments share."""

from __future__ import annotations

from mpnn.experiments.compare import Interrupted, compare
from mpnn.experiments.recipes import MODELS
from mpnn.experiments.result import Comparison, Contestant, Trained

__all__ = ["MODELS", "Comparison", "Contestant", "Interrupted", "Trained", "compare"]
