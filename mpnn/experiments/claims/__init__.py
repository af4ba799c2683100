"""The claims about the architectures, each put to the test by an experiment that anyone can rerun."""

from __future__ import annotations

from mpnn.experiments.claims.base import Claim, Size
from mpnn.experiments.claims.listed import CLAIMS
from mpnn.experiments.claims.outcome import Outcome
from mpnn.experiments.claims.run import Listing, experiment

__all__ = ["CLAIMS", "Claim", "Listing", "Outcome", "Size", "experiment"]
