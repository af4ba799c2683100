"""The four architectures equal models built by hand from torch's and PyG's layers, with the same numbers in both."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import (
    GATConv,
    GCNConv,
    SAGEConv,
    global_add_pool,
    global_max_pool,
    global_mean_pool,
)

from kernel_choice import on_each
from mpnn import MessagePassing, Tokens
from mpnn.experiments.atlas_all_tokens import packed
from mpnn.experiments.atlas_case import TOLERANCE, Case, Names, build, copied, linears, measure
from mpnn.experiments.atlas_grid import as_image
from mpnn.models import CNN, GNN, MLP, Network, PlainBlock, Readout, Transformer
from mpnn.neighbours import AllTokens, Graph, Grid, Window
from mpnn.positions import Sinusoidal
from mpnn.weights import AdditiveScore, EdgeLearned, QKSoftmax, SharedKernel
from reference_cases import Cases

CASES = Cases()
case = CASES.add


class Residual(nn.Module):
    """x + activation(layer(x)), as the published MLP of mnist1d has."""

    def __init__(self, layer: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.layer, self.activation = layer, activation

    def forward(self, x: Tensor) -> Tensor:
        return x + self.activation(self.layer(x))


def mlp(sizes: tuple[int, ...], residual: bool = False, activation: type[nn.Module] = nn.ReLU) -> Case:
    model = MLP(sizes, residual=residual, activation=activation)
    parts: list[nn.Module] = []
    names: Names = {}
    last = len(sizes) - 2
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        linear = nn.Linear(a, b)
        skips = residual and a == b and i < last
        parts.append(
            Residual(linear, activation())
            if skips
            else nn.Sequential(linear, activation() if i < last else nn.Identity())
        )
        ours, theirs = f"blocks.{i}.{'block.' if skips else ''}layer.weight", f"{i}.{'layer' if skips else '0'}"
        names[f"{ours}.weight"] = (f"{theirs}.weight", lambda w: w[:, None, :, None])
        names[f"{ours}.bias"] = (f"{theirs}.bias", lambda b: b[:, None])
    reference = nn.Sequential(*parts)
    return Case(model, model, reference, (torch.randn(3, sizes[0]),), copied(model, reference, names))


case(mlp, sizes=(5, 3))
case(mlp, sizes=(6, 7, 7, 4))
case(mlp, sizes=(6, 7, 7, 4), residual=True)
case(mlp, sizes=(4, 4, 4, 4), residual=True, activation=nn.Tanh)


def cnn(
    size: tuple[int, ...],
    channels: tuple[int, ...],
    readout: str = "mean",
    kernel: Any = 3,
    stride: Any = 1,
    padding: Any = 1,
) -> Case:
    model = CNN(2, channels, 3, size=size, kernel_size=kernel, stride=stride, padding=padding, readout=readout)
    kind: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(size) - 1]
    options = [[v[i] if isinstance(v, list) else v for v in (kernel, stride, padding)] for i in range(len(channels))]
    parts: list[nn.Module] = []
    for (a, b), (k, s, p) in zip(zip((2, *channels), channels, strict=False), options, strict=True):
        parts += [kind(a, b, k, s, p), nn.ReLU()]
    pool = {
        "mean": lambda y: y.flatten(2).mean(-1),
        "max": lambda y: y.flatten(2).amax(-1),
        "flatten": lambda y: y.flatten(1),
    }[readout]
    body = nn.Sequential(*parts)
    out = pool(body(torch.zeros(1, 2, *size))).shape[1]
    reference = nn.ModuleDict({"body": body, "head": nn.Linear(out, 3)})
    names: Names = {
        f"blocks.{i}.layer.weight.{e}": f"body.{2 * i}.{e}" for i in range(len(channels)) for e in ("weight", "bias")
    }
    names |= linears({"readout.linear": "head"})
    x = torch.randn(2, *size, 2).flatten(1, -2)
    ties = copied(model, reference, names)
    return Case(model, model, lambda x: reference["head"](pool(body(as_image(x, size)))), (x,), ties)


case(cnn, size=(9,), channels=(4, 5))
case(cnn, size=(12,), channels=(3, 3, 3), kernel=[5, 3, 3], stride=2, readout="flatten")
case(cnn, size=(6, 7), channels=(4, 3), readout="max")
case(cnn, size=(6, 7), channels=(4, 3), stride=[2, 1], padding=[1, 0], readout="flatten")
case(cnn, size=(4, 3, 5), channels=(3,))


INDEX = torch.tensor([[0, 1, 2, 0, 3, 4, 3], [1, 2, 0, 2, 4, 3, 3]])
BATCH = torch.tensor([0, 0, 0, 1, 1])
POOLS: dict[str, Callable[..., Tensor]] = {"mean": global_mean_pool, "sum": global_add_pool, "max": global_max_pool}
KINDS: dict[str, tuple[Callable[[int, int], Any], Callable[[int, int], Any], Any, Callable[[str, str], Names]]] = {
    "GCN": (
        lambda a, b: SharedKernel(a, b, normalise="symmetric"),
        GCNConv,
        "add",
        lambda ours, theirs: {
            f"{ours}.weight": (f"{theirs}.lin.weight", lambda w: w[None]),
            f"{ours}.bias": f"{theirs}.bias",
        },
    ),
    "SAGE": (
        lambda a, b: SharedKernel(a, b, reduce="mean", root=True),
        SAGEConv,
        None,
        lambda ours, theirs: (
            {f"{ours}.weight": (f"{theirs}.lin_l.weight", lambda w: w[None]), f"{ours}.bias": f"{theirs}.lin_l.bias"}
            | {f"{ours}.root.weight": f"{theirs}.lin_r.weight"}
        ),
    ),
    "GAT": (
        lambda a, b: EdgeLearned(a, b, AdditiveScore(b, 2), heads=2, normalise="softmax"),
        lambda a, b: GATConv(a, b // 2, heads=2),
        "replace",
        lambda ours, theirs: (
            {
                f"{ours}.network.{o}": (f"{theirs}.att_{t}", lambda v: v[0])
                for o, t in (("source", "src"), ("target", "dst"))
            }
            | {f"{ours}.value.weight": f"{theirs}.lin.weight", f"{ours}.bias": f"{theirs}.bias"}
        ),
    ),
}


def gnn(kind: str, channels: tuple[int, ...], readout: str, batch: bool = True, weights: bool = False) -> Case:
    ours, theirs, loops, renamed = KINDS[kind]
    model = GNN(3, channels, 2, neighbours=Graph(self_loops=loops), weight=ours, readout=readout)
    convs = nn.ModuleList(theirs(a, b) for a, b in zip((3, *channels), channels, strict=False))
    reference = nn.ModuleDict({"convs": convs, "head": nn.Linear(channels[-1], 2)})
    names: Names = linears({"readout.linear": "head"})
    for i in range(len(channels)):
        names |= renamed(f"blocks.{i}.layer.weight", f"convs.{i}")
    given = BATCH if batch else torch.zeros(5, dtype=torch.int64)

    def call(x: Tensor, *w: Tensor) -> Tensor:
        y = model(x, INDEX, **({"batch": BATCH} if batch else {}), **({"edge_weight": w[0]} if w else {}))
        return y if batch or readout == "none" else y[None]

    def by_hand(x: Tensor, *w: Tensor) -> Tensor:
        for conv in convs:
            x = conv(x, INDEX, *w).relu()
        return reference["head"](x if readout == "none" else POOLS[readout](x, given))

    inputs = (torch.randn(5, 3), torch.rand(INDEX.shape[1]) + 0.1) if weights else (torch.randn(5, 3),)
    return Case(model, call, by_hand, inputs, copied(model, reference, names))


for kind in KINDS:
    case(gnn, kind=kind, channels=(4, 6), readout="mean")
case(gnn, kind="GCN", channels=(4, 4), readout="sum", weights=True)
case(gnn, kind="GCN", channels=(4,), readout="max")
case(gnn, kind="GCN", channels=(4, 4, 4), readout="none")
case(gnn, kind="SAGE", channels=(4,), readout="mean", batch=False)


def transformer(
    depth: int = 2, mask: bool = False, causal: bool = False, position: bool = False, readout: str = "mean"
) -> Case:
    rule = AllTokens(causal=causal)
    model = Transformer(
        3,
        8,
        depth,
        2,
        heads=2,
        neighbours=rule,
        hidden=12,
        position=Sinusoidal(8) if position else None,
        readout=readout,
    )
    layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, "gelu", batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, depth, nn.LayerNorm(8), enable_nested_tensor=False)
    reference = nn.ModuleDict({"embed": nn.Linear(3, 8), "encoder": encoder, "head": nn.Linear(8, 2)})
    names: Names = linears({"embed": "embed", "readout.linear": "head", "readout.norm": "encoder.norm"})
    for i in range(depth):
        ours, theirs = f"blocks.{i}.", f"encoder.layers.{i}."
        names |= packed(f"{ours}layer.weight", f"{theirs}self_attn.")
        parts = {"norm1": "norm1", "norm2": "norm2", "mlp.0": "linear1", "mlp.3": "linear2"}
        names |= linears({f"{ours}{a}": f"{theirs}{b}" for a, b in parts.items()})
    ties = copied(model, reference, names)
    seen = torch.tensor([[True] * 5, [True] * 3 + [False] * 2]) if mask else torch.ones(2, 5, dtype=torch.bool)
    codes = Sinusoidal(8)(torch.zeros(5, 8))  # which has tests of its own
    later = torch.ones(5, 5).triu(1).bool() if causal else None

    def by_hand(x: Tensor) -> Tensor:
        x = x.masked_fill(~seen[..., None], 0)
        h = reference["embed"](x) + (codes if position else 0)
        h = encoder(h, later, ~seen if mask else None)
        if readout == "none":
            return reference["head"](h)[seen]
        h = h.masked_fill(~seen[..., None], 0).sum(1) / seen.sum(1, keepdim=True) if readout == "mean" else h[:, 0]
        return reference["head"](h)

    def call(x: Tensor) -> Tensor:
        y = model(x, mask=seen) if mask else model(x)
        return y[seen] if readout == "none" else y

    return Case(model, call, by_hand, (torch.randn(2, 5, 3),), ties)


case(transformer)
case(transformer, mask=True)
case(transformer, causal=True, readout="none")
case(transformer, causal=True, mask=True, readout="none")
case(transformer, position=True, readout="first")
case(transformer, position=True, mask=True, depth=1)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_model_built_by_hand(name: str, dtype: torch.dtype) -> None:
    made = build(CASES[name], dtype)
    errors = measure(made)
    assert max(errors.value, errors.gradient) <= TOLERANCE[dtype], errors
    for kernel, other in on_each(lambda: measure(made)):
        assert max(other.value, other.gradient) <= TOLERANCE[dtype], (kernel, other)


def test_published_sizes() -> None:
    """Of mnist1d's MLP and CNN: 15,210 and 5,210 parameters."""
    mlp = MLP((40, 100, 100, 10), residual=True)
    cnn = CNN(1, (25, 25, 25), 10, size=(40,), kernel_size=[5, 3, 3], stride=2, padding=1, readout="flatten")
    assert [sum(p.numel() for p in m.parameters()) for m in (mlp, cnn)] == [15_210, 5_210]


SWAPPED: dict[str, Callable[[], Network]] = {
    "attention": lambda: Transformer(2, 8, 2, 3),
    "window": lambda: Transformer(2, 8, 2, 3, neighbours=Window(1)),
    "graph": lambda: Transformer(2, 8, 2, 3, neighbours=Graph(INDEX, 6)),
    "grid": lambda: Transformer(2, 8, 2, 3, neighbours=Grid((2, 3), 3)),
    "convolution": lambda: Transformer(2, 8, 2, 3, neighbours=Grid((2, 3), 3), weight=lambda c: SharedKernel(c, c)),
    "additive": lambda: Transformer(
        2, 8, 2, 3, weight=lambda c: EdgeLearned(c, c, AdditiveScore(c, 2), heads=2, normalise="softmax")
    ),
}


@pytest.mark.parametrize("name", SWAPPED)
def test_one_argument_makes_another_architecture(name: str) -> None:
    model, x = SWAPPED[name](), torch.randn(4, 6, 2)
    y = model(x)
    assert y.shape == (4, 3)
    y.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    torch.testing.assert_close(model(x[1]), y[1], msg="unbatched in, unbatched out")


@pytest.mark.parametrize("fill", [1e10, math.inf, math.nan])
@pytest.mark.parametrize("readout", ["mean", "sum", "max"])
def test_masked_tokens_are_not_seen(readout: str, fill: float) -> None:
    model = Transformer(2, 8, 2, 3, position=Sinusoidal(8), readout=readout)
    x, mask = torch.randn(2, 5, 2), torch.tensor([[True] * 5, [False, True, True, False, False]])
    other = x.masked_fill(~mask[..., None], fill)
    seen = []
    for given in (x, other):
        leaf = given.clone().requires_grad_()
        y = model(leaf, mask=mask)
        seen.append([y, *torch.autograd.grad(y.square().sum(), [leaf, *model.parameters()])])
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))
    assert not seen[0][1][~mask].any()
    torch.testing.assert_close(model(x[1, 1:3]), seen[0][0][1], msg="as if only the real ones were there")


@pytest.mark.parametrize("readout", ["mean", "sum", "max"])
def test_a_batch_of_graphs_is_each_graph(readout: str) -> None:
    model, x = GNN(3, (4, 4), 2, readout=readout), torch.randn(5, 3)
    together = model(x, INDEX, batch=BATCH)
    first, second = INDEX[:, :4], INDEX[:, 4:] - 3
    torch.testing.assert_close(together, torch.stack([model(x[:3], first), model(x[3:], second)]))
    assert torch.equal(model(Tokens(x, batch=BATCH), INDEX), together)


@pytest.mark.parametrize("pool", ["mean", "sum", "max"])
def test_pools_as_PyG(pool: str) -> None:
    """With a graph in which every node is masked, and with masks of a batch."""
    x = torch.randn(6, 4, dtype=torch.float64)
    batch, mask = torch.tensor([0, 0, 0, 1, 2, 2]), torch.tensor([True, False, True, False, True, True])
    readout = Readout(4, 3, pool).double()
    pooled = POOLS[pool](x[mask], batch[mask], 3)
    torch.testing.assert_close(readout(x, Tokens(x, batch=batch, mask=mask)), readout.linear(pooled))
    dense = torch.stack([x, x])
    both = torch.stack([mask, torch.zeros(6, dtype=torch.bool)])
    expected = torch.cat([POOLS[pool](x[mask], None), torch.zeros(1, 4, dtype=torch.float64)])
    torch.testing.assert_close(readout(dense, Tokens(dense, mask=both)), readout.linear(expected))


def test_a_network_of_ones_own_blocks() -> None:
    class Tripled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = MessagePassing(AllTokens(), QKSoftmax(4, 2))

        def forward(self, x: Tensor, call: Any) -> Tensor:
            return 3 * call(self.layer, x)

    block, x = Tripled(), torch.randn(3, 4)
    network = Network([block, PlainBlock(block.layer)])
    expected = block.layer(3 * block.layer(x))
    torch.testing.assert_close(network(x), expected)
