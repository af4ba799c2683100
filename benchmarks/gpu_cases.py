"""What is timed on a GPU: attention on graphs, sparse products, windows and grids, dense attention by each of torch's
backends. The sizes are a GPU's; ``small`` ones show on a CPU that every case runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import graphs, peers
from benchmarks.case import FORWARD, TRAIN, Case, Entry, LeftOut, Side, Work
from benchmarks.cases import w03_spmm, w05a_attend
from benchmarks.cases.w05a_attend import chosen
from benchmarks.graphs import Sample
from benchmarks.tensors import normal, seeded
from mpnn import MessagePassing, attend
from mpnn.neighbours import AllTokens, Graph, Grid, Neighbours, Window
from mpnn.weights import SharedKernel

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
BACKENDS = {"flash": "FLASH_ATTENTION", "cuDNN": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "plain": "MATH"}
SQUARE = 2**28  # entries of a mask or of scores over all pairs: beyond it a peer that makes them is left out
DENSE = (  # batch, heads, tokens, channels of a head, causal
    (8, 16, 1024, 64, False),
    (2, 16, 4096, 64, True),
    (2, 16, 4096, 128, False),
    (2, 16, 4096, 128, True),
    (1, 16, 16384, 128, True),
)
WINDOWS = ((256, 4096, True), (256, 16384, True), (1024, 16384, True), (256, 16384, False), (256, 65536, True))
SMALL_GRAPH = Sample("small", graphs.uniform(40, 300), 40)


def on(device: str, dtype: torch.dtype, *shape: int, seed: int = 1) -> Tensor:
    """A leaf of the same numbers on every device."""
    return normal(*shape, seed=seed).detach().to(device, dtype).requires_grad_()


def given(device: str, dtype: torch.dtype, *shape: int) -> dict[str, Tensor]:
    """q, k, v."""
    return {name: on(device, dtype, *shape, seed=seed) for seed, name in enumerate("qkv", 1)}


def bytes_of(work: Work, dtype: torch.dtype) -> Work:
    """Work that was counted for four bytes a number."""
    part = torch.finfo(dtype).bits / 32
    return Work(work.flops, work.streamed * part, tuple((b * part, t * part) for b, t in work.gathers))


def dense(device: str, dtype: torch.dtype, batch: int, heads: int, n: int, width: int, causal: bool) -> Case:
    """``attend`` on all tokens beside each of torch's backends, forced; the note names those that refuse the call."""
    leaves = given(device, dtype, batch, heads, n, width)
    q, k, v = leaves.values()
    rule = AllTokens(causal=causal)

    def by(backend: SDPBackend) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    sides, refused = [], []
    for name, backend in ((n, getattr(SDPBackend, b)) for n, b in BACKENDS.items()):
        if (name == "plain" and batch * heads * n * n > SQUARE) or not takes(partial(by, backend), [q, k, v]):
            refused.append(name)
        else:
            sides.append(Side(f"SDPA {name}", partial(by, backend), leaves))
    pairs = Work(4.0 * batch * heads * n * n * width * (0.5 if causal else 1.0), 16.0 * batch * heads * n * width)
    pairs = bytes_of(pairs, dtype)
    ours = Side("mpnn", lambda: attend(q, k, v, rule), leaves)
    kernel = chosen(q.detach(), k.detach(), v.detach(), rule)
    note = f"refused: {', '.join(refused)}" if refused else ""
    return Case(ours, sides, pairs, pairs.times(3.5), kernel, TOLERANCE[dtype], note)


def takes(call: Callable[[], Tensor], leaves: list[Tensor]) -> bool:
    """Whether a forced backend runs this call, forward and backward; torch says no by an error and its reasons."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.autograd.grad(call().sum(), leaves)
        except RuntimeError as error:
            if "No available kernel" not in str(error) and "No viable backend" not in str(error):
                raise
            return False
    return True


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


def boxes(device: str, dtype: torch.dtype, rule: Neighbours, heads: int, n: int, width: int, pairs: float) -> Case:
    """W7, W8: windows and grids beside SDPA with a mask, where that may be made, and beside our listed edges."""
    leaves = given(device, dtype, 1, heads, n, width)
    q, k, v = leaves.values()
    masked = n * n <= SQUARE
    if masked:
        mask = torch.zeros(n, n, dtype=torch.bool, device=device)
        edges = rule.edges(n, n)
        mask[edges.target, edges.source] = True
        sides = [
            Side(
                "SDPA with a mask",
                lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
                leaves,
                given=[mask],
            )
        ]
    ours = Side("mpnn", lambda: attend(q, k, v, rule), leaves)
    listed = (
        [Side("mpnn by triton", lambda: attend(q, k, v, rule, kernel="triton"), leaves)] if device == "cuda" else []
    )
    if not masked and not listed:
        raise LeftOut(f"a mask of {n:,} × {n:,} pairs, and no other peer here")
    work = bytes_of(Work(4.0 * pairs * heads * width, 16.0 * heads * n * width), dtype)
    kernel = chosen(q.detach(), k.detach(), v.detach(), rule)
    return Case(ours, [*(sides if masked else []), *listed], work, work.times(3.5), kernel, TOLERANCE[dtype])


def window(device: str, dtype: torch.dtype, width: int, n: int, causal: bool) -> Case:
    """Each target sees ``width`` sources, itself included."""
    left = width - 1 if causal else width // 2
    return boxes(device, dtype, Window(left, width - 1 - left), 4, n, 64, float(n * width))


def grid(device: str, dtype: torch.dtype, side: int) -> Case:
    """Neighbourhood attention, windows of 7×7."""
    return boxes(device, dtype, Grid((side, side), 7, border="clamp"), 4, side * side, 32, 49.0 * side * side)


def entries(device: str, small: bool = False) -> Iterator[Entry]:
    """Every case, the most telling ones first, since the time may end."""
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
    for w, n, causal in ((16, 200, True),) if small else WINDOWS:
        for dtype in (torch.bfloat16, torch.float32):
            kind = str(dtype).removeprefix("torch.")
            key = f"W7/{'causal' if causal else 'both'}-{w}-{n}-{kind}"
            make = partial(window, device, dtype, w, n, causal)
            aim = {(m, "customary"): 0.4 * n / w for m in (FORWARD, TRAIN)} if n * n <= SQUARE and not small else {}
            yield Entry(key, f"window of {w} sources, {n:,} tokens, {kind}", make, {"N": n, "w": w}, aim)
    for side in (9,) if small else (56, 128):
        make = partial(grid, device, torch.bfloat16, side)
        yield Entry(
            f"W8/{side}", f"attention in 7×7 windows of {side}×{side} cells, bfloat16", make, {"N": side * side}
        )
    best = {} if small else {(FORWARD, "best"): 0.98, (TRAIN, "best"): 0.98}
    for shape in ((1, 2, 64, 32, True),) if small else DENSE:
        for dtype in (torch.bfloat16, torch.float32):
            kind = str(dtype).removeprefix("torch.")
            if dtype == torch.float32 and shape[2] > 4096:
                continue
            key = "dense/" + "x".join(map(str, shape[:4])) + ("-causal" if shape[4] else "") + f"-{kind}"
            size = dict(zip(("B", "H", "N", "D"), shape, strict=False))
            words = f"attention over all of {shape[2]:,} tokens, {kind}{', causal' * shape[4]}"
            yield Entry(key, words, partial(dense, device, dtype, *shape), size, best)
