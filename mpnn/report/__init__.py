"""Reports: tables and pictures of what an experiment found."""

from __future__ import annotations

from mpnn.report.claims import show_claims
from mpnn.report.pictures import accuracies, curves
from mpnn.report.show import show
from mpnn.report.table import table

__all__ = ["accuracies", "curves", "show", "show_claims", "table"]
