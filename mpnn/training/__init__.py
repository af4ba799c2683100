"""Training: settings, one seeded run by Lightning, checkpoints."""

from __future__ import annotations

from mpnn.training.checkpoint import Loaded, load_checkpoint, save_checkpoint
from mpnn.training.fit import Curve, Fit, fit
from mpnn.training.seeds import seeded
from mpnn.training.settings import Settings

__all__ = ["Curve", "Fit", "Loaded", "Settings", "fit", "load_checkpoint", "save_checkpoint", "seeded"]
