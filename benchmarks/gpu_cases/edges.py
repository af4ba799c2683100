"""Layers and attention on the edges of graphs: W3 and W5a."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional as F

from benchmarks import graphs, peers
from benchmarks.case import TRAIN, Case, Entry, Side
from benchmarks.cases import w03_spmm, w05a_attend
from benchmarks.cases.w05a_attend import chosen
from benchmarks.gpu_cases.leaves import TOLERANCE, bytes_of, given, on
from benchmarks.graphs import Sample
from benchmarks.tensors import seeded
from mpnn import MessagePassing, attend
from mpnn.neighbours import Graph
from mpnn.weights import SharedKernel

SMALL_GRAPH = Sample("small", graphs.uniform(40, 300), 40)


def layer(device: str, graph: Sample, width: int) -> Case:
    """W3: a GCN layer beside PyG's and torch's sparse product."""
    from torch_geometric.nn import GCNConv

    seeded()
    index, nodes = graph.edge_index.to(device), graph.nodes
    ours = MessagePassing(Graph(self_loops="add"), SharedKernel(width, width, normalise="symmetric")).to(device)
    conv, x = GCNConv(width, width).to(device), on(device, torch.float32, nodes, width)
    with torch.no_grad():
        conv.lin.weight.copy_(ours.weight.weight[0])
        conv.bias.copy_(ours.weight.bias)
    loops, scale = peers.normalised(graph.edge_index, nodes)
    matrix = peers.csr(loops, scale, nodes).to(device)
    names = {"x": x, "weight": conv.lin.weight, "bias": conv.bias}
    own = Side(
        "mpnn", lambda: ours(x, index), {"x": x, "weight": ours.weight.weight, "bias": ours.weight.bias},
        views={"weight": lambda g: g[0]}, given=[index],
    )  # fmt: skip
    sides = [
        Side("GCNConv", lambda: conv(x, index), names, given=[index]),
        Side("torch.sparse.mm", lambda: matrix @ F.linear(x, conv.lin.weight) + conv.bias, names, given=[matrix]),
    ]
    return Case(own, sides, *w03_spmm.work(nodes, loops.shape[1], width), ours.plan(x, index).kernel, 1e-4)


def graph_attention(device: str, dtype: torch.dtype, graph: Sample) -> Case:
    """W5a: attention on edges beside PyG's gather, softmax, scatter, whose tensors lie as it wants them."""
    index, nodes = graph.edge_index.to(device), graph.nodes
    rule = Graph(index, nodes)
    leaves = given(device, dtype, nodes, w05a_attend.HEADS, w05a_attend.CHANNELS)
    q, k, v = leaves.values()
    by_head = [t.transpose(0, 1) for t in (q, k, v)]
    ours = Side("mpnn", lambda: attend(*by_head, rule).transpose(0, 1), leaves, given=[index])
    name = "gather, softmax, scatter"
    peer = Side(name, lambda: peers.gather_softmax_scatter(q, k, v, index, nodes), leaves, given=[index])
    work = w05a_attend.work(nodes, graph.edges, w05a_attend.HEADS * w05a_attend.CHANNELS)
    kernel = chosen(*(t.detach() for t in by_head), rule)
    sides = [peer]
    if graph.name in ("G4", "G6", "small"):  # small graphs as a dense batch, which is not chosen here by itself
        padded = lambda: attend(*by_head, rule, kernel="padded").transpose(0, 1)  # noqa: E731
        sides.append(Side("mpnn by padded", padded, leaves, given=[index]))
    return Case(ours, sides, *(bytes_of(w, dtype) for w in work), kernel, TOLERANCE[dtype])


def entries(device: str, small: bool) -> Iterator[Entry]:
    floors = {} if small else {(TRAIN, "customary"): 8.0}
    for name in ("small",) if small else ("G3", "G5", "G2", "G1", "G4", "G6"):
        sample = lambda name=name: SMALL_GRAPH if small else graphs.sample(name)  # noqa: E731
        nodes, edges = (40, 300) if small else graphs.SIZES[name]
        size, words = {"N": nodes, "E": edges}, f"{name} of {nodes:,} nodes and {edges:,} edges"
        for dtype in TOLERANCE:
            kind = str(dtype).removeprefix("torch.")
            make = lambda d=dtype, s=sample: graph_attention(device, d, s())  # noqa: E731
            yield Entry(f"W5a/{name}-{kind}", f"attend, {words}, {kind}", make, size, floors)
        yield Entry(f"W3/{name}", f"GCN layer, {words}, float32", lambda s=sample: layer(device, s(), 64), size)
