"""W14: attention over a hundred million edges on one machine, only with ``--scale``. PyG's way needs E × channels."""

from __future__ import annotations

from benchmarks import graphs
from benchmarks.case import TRAIN, Case, Entry
from benchmarks.cases import w05a_attend
from benchmarks.graphs import Sample

GIB = 2**30
SIZES = ((100_000, 10_000_000), (1_000_000, 100_000_000))


def make(nodes: int, edges: int) -> Case:
    """Ours alone: no peer fits."""
    case = w05a_attend.make(Sample("uniform", graphs.uniform(nodes, edges), nodes))
    case.peers = []
    case.note = "gather, softmax, scatter would need several tensors of E × 64 numbers"
    return case


def entries() -> list[Entry]:
    made = []
    for nodes, edges in SIZES:
        floors = {(TRAIN, "memory"): 20.0 * GIB} if edges == SIZES[-1][1] else {}
        title = f"attend, {nodes:,} nodes, {edges:,} edges, 4 heads of 16"
        made.append(
            Entry(f"W14/{edges}", title, lambda n=nodes, e=edges: make(n, e), {"N": nodes, "E": edges}, floors, "scale")
        )
    return made
