"""The workloads: one file each, in the order in which they run."""

from __future__ import annotations

from benchmarks.case import Entry
from benchmarks.cases import (
    dispatch,
    w01_linear,
    w02_conv,
    w03_spmm,
    w04_edge_weight,
    w05a_attend,
    w05b_layers,
    w06_attention,
    w07_window,
    w08_grid_attention,
    w10_unions,
    w11_long_conv,
    w12_gaussian,
    w13_graph_training,
    w13_model_training,
    w14_scale,
)

MODULES = (
    dispatch,
    w01_linear,
    w02_conv,
    w03_spmm,
    w04_edge_weight,
    w05a_attend,
    w05b_layers,
    w06_attention,
    w07_window,
    w08_grid_attention,
    w10_unions,
    w11_long_conv,
    w12_gaussian,
    w13_graph_training,
    w13_model_training,
    w14_scale,
)


def entries() -> list[Entry]:
    """Every case of every workload, none of them made yet; the scaling series come last."""
    made = [entry for module in MODULES for entry in module.entries()]
    return made + [entry for module in MODULES if hasattr(module, "series") for entry in module.series()]


def entry(key: str) -> Entry:
    """A case by its key.

    Raises:
        KeyError: for an unknown one.
    """
    return {e.key: e for e in entries()}[key]
