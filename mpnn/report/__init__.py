"""Reports: tables and pictures of what an experiment found, of what a layer hears, and of how it runs."""

from __future__ import annotations

from mpnn.report.captured import dense, numbers, of_target
from mpnn.report.claims import show_claims
from mpnn.report.field import Field, receptive_field
from mpnn.report.field_edges import field_by_edges
from mpnn.report.field_gradients import field_by_gradients
from mpnn.report.maps import attention_maps
from mpnn.report.page import page
from mpnn.report.parts import Code, Picture, Section, Sheet, Text
from mpnn.report.pictures import accuracies, curves
from mpnn.report.places import places
from mpnn.report.plans import plan_picture, plan_table, plans_of
from mpnn.report.show import show
from mpnn.report.table import table
from mpnn.report.target import weights_of_target

__all__ = [
    "Code",
    "Field",
    "Picture",
    "Section",
    "Sheet",
    "Text",
    "accuracies",
    "attention_maps",
    "curves",
    "dense",
    "field_by_edges",
    "field_by_gradients",
    "numbers",
    "of_target",
    "page",
    "places",
    "plan_picture",
    "plan_table",
    "plans_of",
    "receptive_field",
    "show",
    "show_claims",
    "table",
    "weights_of_target",
]
