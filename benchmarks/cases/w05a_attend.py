"""W5a: attention over edges with given q, k, v. ``attend`` on a ``Graph`` beside gather, softmax and scatter."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from benchmarks import graphs
from benchmarks.case import TRAIN, Case, Entry, Side, Work
from benchmarks.graphs import Sample
from benchmarks.peers import gather_softmax_scatter
from benchmarks.tensors import normal, seeded
from mpnn import attend
from mpnn.attend import bind_attention
from mpnn.kernels import native
from mpnn.neighbours import Graph

HEADS, CHANNELS = 4, 16
CUSTOMARY = {"G1": 1.5, "G2": 3.0, "G3": 6.0, "G4": 1.5, "G5": 6.0, "G6": 6.0}
BESIDE = {"G4": ("padded",), "G6": ("padded", "edge_softmax")}  # other kernels of ours: where the crossover is
SERIES_E = (5_000, (25_000, 50_000, 100_000, 200_000, 400_000))
SERIES_N = ((1_250, 2_500, 5_000, 10_000, 20_000), 20)  # nodes, sources of each


def chosen(*arguments: Any, **given: Any) -> str:
    """The kernel of a call of ``attend``, which has no plan."""
    with torch.no_grad():
        return bind_attention(*arguments, **given)[1]


@lru_cache(maxsize=1)
def compiled() -> Any:
    """The customary way through torch.compile, once for all sizes."""
    return torch.compile(gather_softmax_scatter, dynamic=True)


def work(nodes: int, edges: int, width: int) -> tuple[Work, Work]:
    """(forward, forward and backward): the rows of k and v are gathered once, those of q are read in order. Backward
    reads k and v again by target, and q and the gradient by source."""
    row = 4.0 * width
    each = Work(4.0 * edges * width, 4.0 * edges + 2 * nodes * row, ((2 * edges * row, nodes * row),))
    return each, each.times(3) + Work(4.0 * edges * width)


def make(graph: Sample, *, compile_too: bool = False) -> Case:
    """Four heads of 16 channels; graphs that say so also beside other kernels of ours."""
    seeded()
    index, nodes = graph.edge_index, graph.nodes
    rule = Graph(index, nodes)
    q, k, v = (normal(nodes, HEADS, CHANNELS, seed=s) for s in (1, 2, 3))
    leaves = {"q": q, "k": k, "v": v}

    def ours(kernel: str | None = None) -> Tensor:
        return attend(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), rule, kernel=kernel).transpose(0, 1)

    sides = [
        Side("gather, softmax, scatter", lambda: gather_softmax_scatter(q, k, v, index, nodes), leaves, given=[index])
    ]
    if compile_too:
        call = compiled()
        sides.append(
            Side("the same compiled", lambda: call(q, k, v, index, nodes), leaves, given=[index], compiled=True)
        )
    for name in BESIDE.get(graph.name, ()):
        if name != "native" or native.INSTALLED:
            sides.append(Side(f"mpnn by {name}", partial(ours, name), leaves, given=[index]))
    kernel = chosen(q.detach().transpose(0, 1), k.detach().transpose(0, 1), v.detach().transpose(0, 1), rule)
    return Case(Side("mpnn", ours, leaves, given=[index]), sides, *work(nodes, graph.edges, HEADS * CHANNELS), kernel)


def entries() -> list[Entry]:
    made = []
    for name in ("G1", "G2", "G3", "G4", "G5", "G6"):
        nodes, edges = graphs.SIZES[name]
        title = f"attend, {name} of {nodes:,} nodes and {edges:,} edges, {HEADS} heads of {CHANNELS}"
        size = {"N": nodes, "E": edges, "H": HEADS, "D": CHANNELS}
        floors = {(TRAIN, "customary"): CUSTOMARY[name]}
        scope = "smoke" if name == "G1" else "bench"
        small = name != "G3"  # there the compiled peer takes seconds a call, and as long again to be made
        make_it = partial(_sampled, name, small)
        made.append(Entry(f"W5a/{name}", title, make_it, size, floors, scope))
        if not small:
            made.append(Entry(f"W5a/{name}-compiled", title, partial(_sampled, name, True), size, {}, "scale"))
    return made


def _sampled(name: str, compile_too: bool) -> Case:
    return make(graphs.sample(name), compile_too=compile_too)


def series() -> list[Entry]:
    """Time and memory against E at a fixed N, and against N at a fixed degree."""
    fixed, counts = SERIES_E
    sizes, degree = SERIES_N
    points = [("W5a-E", "E", fixed, e) for e in counts] + [("W5a-N", "N", n, n * degree) for n in sizes]

    def point(nodes: int, edges: int) -> Case:
        return make(Sample("uniform", graphs.uniform(nodes, edges), nodes))

    return [
        Entry(f"series/{name}/{e if axis == 'E' else n}", f"attend, {n:,} nodes, {e:,} edges", partial(point, n, e),
              {"N": n, "E": e, "H": HEADS, "D": CHANNELS}, series=(name, axis))
        for name, axis, n, e in points
    ]  # fmt: skip
