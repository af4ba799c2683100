"""Cases 15 to 20 and 45: graphs, on every kernel that can run them."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from helpers.cases import RULES
from kernel_choice import able
from mpnn import MessagePassing, use_kernels
from mpnn.neighbours import Graph
from mpnn.weights import AdditiveScore, EdgeLearned, QKSoftmax, SharedKernel, Static


def index(*pairs: tuple[int, int]) -> Tensor:
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t().contiguous()


REDUCTIONS = {
    "sum": lambda: SharedKernel(2, 3, bias=False),
    "mean": lambda: SharedKernel(2, 3, reduce="mean", bias=False),
    "max": lambda: SharedKernel(2, 3, reduce="max", bias=False),
    "fixed max": lambda: SharedKernel(2, 2, reduce="max", fixed=True, bias=False),
    "symmetric": lambda: SharedKernel(2, 3, normalise="symmetric", bias=False),
    "relation": lambda: SharedKernel(2, 3, normalise="relation", bias=False),
    "heads": lambda: SharedKernel(2, 4, heads=2, bias=False),
    "softmax": lambda: EdgeLearned(2, 4, AdditiveScore(4, 2), heads=2, normalise="softmax", bias=False),
    "attention": lambda: QKSoftmax(2, 2, output=False),
}


@pytest.mark.parametrize("rule", REDUCTIONS)
@pytest.mark.parametrize(("nodes", "edges"), [(1, index()), (4, index((0, 1), (1, 2), (2, 0), (2, 2)))])
def test_case_15_nothing_comes_in(rule: str, nodes: int, edges: Tensor) -> None:
    layer = MessagePassing(Graph(), REDUCTIONS[rule]())
    x = torch.randn(nodes, 2, requires_grad=True)
    for kernel in able(layer, x, edges):
        for _ in range(5):
            garbage = [torch.full((size,), 1e30) for size in (8, 64, 512, 4096)]
            del garbage
            with use_kernels(kernel):
                y = layer(x, edges)
            assert not y[-1].any(), kernel
            (gradient,) = torch.autograd.grad(y[-1].sum(), x)
            assert not gradient.any(), kernel


@pytest.mark.parametrize("nodes", [3, 0])
@pytest.mark.parametrize("rule", [name for name, r in RULES.items() if "offset" not in r.needs])
def test_case_16_no_edges(rule: str, nodes: int) -> None:
    made, told = empty(rule, nodes)
    x, given = told
    wide = x[1] if isinstance(x, tuple) else x
    for kernel in able(made, x, **given):
        with use_kernels(kernel):
            y = made(x, **given)
        torch.testing.assert_close(y, of_nothing(made, wide), rtol=0, atol=0, msg=kernel)
        assert y.shape == (nodes, made.weight.out_channels)
        found = dict(
            zip(
                dict(made.named_parameters()),
                torch.autograd.grad(y.sum(), list(made.parameters()), allow_unused=True),
                strict=True,
            )
        )
        assert [k for k, g in found.items() if g is None] == [], kernel
        left = [k for k, g in found.items() if g.any() and "bias" not in k and not k.startswith("weight.root")]
        assert left == [], kernel


@pytest.mark.parametrize("rule", [name for name, r in RULES.items() if "offset" not in r.needs and r.main])
def test_case_16_no_edges_compiled(rule: str) -> None:
    made, (x, given) = empty(rule, 3)
    y = torch.compile(made, fullgraph=True, backend="aot_eager")(x, **given)
    torch.testing.assert_close(y, of_nothing(made, x), rtol=0, atol=0)
    y.sum().backward()
    assert [k for k, p in made.named_parameters() if p.grad is None] == []
    assert [k for k, p in made.named_parameters() if p.grad.any() and not k.endswith("bias")] == []


def empty(rule: str, nodes: int) -> tuple[MessagePassing, tuple[Any, dict[str, Any]]]:
    """A rule's layer, and a call of it without edges."""
    case = RULES[rule]
    none = torch.zeros(2, 0, dtype=torch.int64)
    graph = Graph(none, nodes) if "pairs" in case.needs else Graph()
    layer = MessagePassing(graph, case.make(graph)).double()
    for name, parameter in layer.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    widths = case.channels if isinstance(case.channels, tuple) else (case.channels,) * 2
    source, target = (torch.randn(nodes, w, dtype=torch.float64, requires_grad=True) for w in widths)
    given: dict[str, Any] = {} if "pairs" in case.needs else {"edge_index": none}
    given |= {"edge_attr": torch.zeros(0, case.attr, dtype=torch.float64)} if case.attr else {}
    given |= {"coordinates": torch.randn(nodes, 3, dtype=torch.float64)} if case.coordinates else {}
    given |= {"positions": torch.zeros(nodes, case.axes, dtype=torch.int64)} if case.axes else {}
    return layer, ((source, target) if "two sets" in case.needs else source, given)


def of_nothing(layer: MessagePassing, x: Tensor) -> Tensor:
    rule = layer.weight
    y = torch.zeros(x.shape[0], rule.out_channels, dtype=x.dtype)
    for bias in (rule.bias, None if rule.output is None else rule.output.bias):
        y = y if bias is None else y + bias
    return y if rule.root is None else y + rule.root(x)


def every(layer: MessagePassing, x: Tensor, *arguments: Any, **given: Any) -> list[Tensor]:
    """The answer of each kernel that can run a call."""
    answers = []
    for kernel in able(layer, x, *arguments, **given):
        with use_kernels(kernel):
            answers.append(layer(x, *arguments, **given))
    return answers


def test_case_17_loops_are_there_once() -> None:
    x, edges = torch.tensor([[1.0], [3.0]]), index((0, 1), (1, 1))
    gcn = MessagePassing(Graph(self_loops="add"), SharedKernel(1, 1, normalise="symmetric", bias=False))
    attention = MessagePassing(Graph(self_loops="replace"), QKSoftmax(1, 1, bias=False, output=False))
    gat = MessagePassing(
        Graph(self_loops="replace"), EdgeLearned(1, 1, AdditiveScore(1), heads=1, normalise="softmax", bias=False)
    )
    with torch.no_grad():
        for p in (*attention.weight.query.parameters(), *gat.weight.network.parameters()):
            p.zero_()
        for p in (gcn.weight.weight, attention.weight.value.weight, gat.weight.value.weight):
            p.fill_(1)
    for y in every(gcn, x, edges):
        assert y[1].item() == pytest.approx(2.2071, abs=5e-5)
        assert y[0].item() == pytest.approx(1.0)
    for layer in (attention, gat):
        for y in every(layer, x, edges):
            assert y[1].item() == pytest.approx(2.0)


@pytest.mark.parametrize("loops", ["add", "replace"])
def test_case_17_an_added_loop_has_the_mean_of_what_comes_in(loops: str) -> None:
    layer = MessagePassing(Graph(self_loops=loops), EdgeLearned(1, 1, nn.Identity(), bias=False))
    x, edges, attr = torch.ones(3, 1), index((0, 1), (2, 1)), torch.tensor([[2.0], [4.0]])
    for kernel in able(layer, x, edges, attr):
        with use_kernels(kernel):
            y, found = layer(x, edges, attr, return_weights=True)
        ends = list(zip(found.source.tolist(), found.target.tolist(), strict=True))
        assert ends == [(0, 1), (2, 1), (0, 0), (1, 1), (2, 2)]
        assert found.weight.flatten().tolist() == [2, 4, 0, 3, 0], kernel
        assert y.flatten().tolist() == [0.0, 9.0, 0.0], kernel
    half = MessagePassing(Graph(self_loops=loops, loop_fill=0.5), copy.deepcopy(layer.weight))
    assert half(x, edges, attr).flatten().tolist() == [0.5, 6.5, 0.5]


FEATURED = {
    "network": lambda: EdgeLearned(4, 4, nn.Linear(3, 16), edge_channels=3),
    "additive": lambda: EdgeLearned(4, 4, AdditiveScore(4, 2, edge_channels=3), heads=2, normalise="softmax"),
    "attention": lambda: QKSoftmax(4, 2, edge_channels=3),
}
PLAIN = {
    "additive": lambda: EdgeLearned(4, 4, AdditiveScore(4, 2), heads=2, normalise="softmax"),
    "attention": lambda: QKSoftmax(4, 2),
    "shared": lambda: SharedKernel(4, 4),
}


@pytest.mark.parametrize("rule", PLAIN)
def test_case_18_edge_features_that_nobody_reads(rule: str) -> None:
    with pytest.raises(
        ValueError, match=r"edge_attr of shape \(2, 3\) would be ignored by \w+; build it with edge_channels="
    ):
        MessagePassing(Graph(), PLAIN[rule]())(torch.zeros(3, 4), index((0, 1), (1, 2)), torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"edge_attr of shape .*got \(2,\); did you mean edge_weight="):
        MessagePassing(Graph(), PLAIN[rule]())(torch.zeros(3, 4), index((0, 1), (1, 2)), torch.zeros(2))


@pytest.mark.parametrize("rule", FEATURED)
@pytest.mark.parametrize(
    ("attr", "says"),
    [
        (None, r"expected edge_attr of shape \(..., E, 3\) for \w+, got None"),
        (torch.zeros(2, 5), r"expected edge_attr of shape \(..., E, 3\) for \w+, got \(2, 5\)"),
        (torch.zeros(1, 3), r"expected edge_attr with one row for each of 2 edges, got shape \(1, 3\)"),
    ],
)
def test_case_18_edge_features_that_do_not_fit(rule: str, attr: Tensor | None, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        MessagePassing(Graph(), FEATURED[rule]())(torch.zeros(3, 4), index((0, 1), (1, 2)), attr)


WRONG_INDICES = {
    "a source too large": ([[0, 3], [1, 0]], IndexError, r"edge_index\[0\] \(source\) in 0 … 2, got 3"),
    "a target too large": ([[0, 1], [1, 3]], IndexError, r"edge_index\[1\] \(target\) in 0 … 2, got 3"),
    "negative": ([[0, -1], [1, 0]], IndexError, r"edge_index\[0\] \(source\) in 0 … 2, got -1"),
    "floats": ([[0.0, 1.0], [1.0, 0.0]], TypeError, "edge_index of dtype int64 or int32, got torch.float32"),
    "bools": ([[True, False], [False, True]], TypeError, "edge_index of dtype int64 or int32, got torch.bool"),
    "rows of pairs": (
        [[0, 1], [1, 2], [2, 0]],
        (IndexError, TypeError),
        r"edge_index of shape \(2, E\), got \(3, 2\); ",
    ),
}


@pytest.mark.parametrize("graph", [Graph(), Graph(self_loops="add"), Graph(self_loops="replace")], ids=str)
@pytest.mark.parametrize("name", WRONG_INDICES)
def test_case_19_wrong_indices(graph: Graph, name: str) -> None:
    rows, error, says = WRONG_INDICES[name]
    edges, says = torch.tensor(rows), f"expected {says}"
    layer, x = MessagePassing(graph, SharedKernel(2, 2)), torch.zeros(3, 2)
    with pytest.raises(error, match=says):
        layer(x, edges)
    if edges.dtype == torch.int64:
        with pytest.raises(error, match=says):
            layer(x, edges.int())
    with pytest.raises(error, match=says):
        layer.plan(x, edges)
    with pytest.raises(error, match=says):
        Graph(edges, 3)
    with pytest.raises(error, match=says):
        MessagePassing(Graph(edges), SharedKernel(2, 2))(x)


@pytest.mark.parametrize(("kind", "error"), [(2, IndexError), (-1, IndexError), (0.5, TypeError)])
def test_case_19_wrong_types(kind: Any, error: type[Exception]) -> None:
    edges, kinds = index((0, 1), (1, 2)), torch.tensor([0, kind])
    says = (
        f"expected edge_type in 0 … 1, got {kind}"
        if error is IndexError
        else "expected edge_type of dtype int64 or int32"
    )
    with pytest.raises(error, match=says):
        MessagePassing(Graph(relations=2), SharedKernel(2, 2))(torch.zeros(3, 2), edges, edge_type=kinds)
    with pytest.raises(error, match=says):
        Graph(edges, 3, type=kinds, relations=2)


@pytest.mark.parametrize("rule", ["shared", "static", "attention", "relations"])
def test_case_19_int32_equals_int64(rule: str) -> None:
    edges, kinds, x = index((0, 1), (1, 2), (1, 2), (2, 2)), torch.tensor([0, 1, 1, 0]), torch.randn(3, 4)
    rules: dict[str, Any] = {
        "shared": (Graph(self_loops="add"), SharedKernel(4, 3, normalise="symmetric")),
        "static": (Graph(edges.int(), 3), Static(4, 3)),
        "attention": (Graph(self_loops="replace"), QKSoftmax(4, 2)),
        "relations": (Graph(relations=2), SharedKernel(4, 3)),
    }
    layer = MessagePassing(*rules[rule])
    other = MessagePassing(Graph(edges, 3), copy.deepcopy(layer.weight)) if rule == "static" else layer
    kind = {"edge_type": kinds} if rule == "relations" else {}
    narrow = {} if rule == "static" else {"edge_index": edges.int()} | {k: v.int() for k, v in kind.items()}
    wide = {} if rule == "static" else {"edge_index": edges} | kind
    for kernel in able(layer, x, **narrow):
        with use_kernels(kernel):
            assert torch.equal(layer(x, **narrow), other(x, **wide)), kernel


ORDERED = {
    "sum": lambda: SharedKernel(1, 1, fixed=True, bias=False),
    "heads": lambda: SharedKernel(1, 1, heads=1, value=False, bias=False),
    "groups": lambda: SharedKernel(1, 1, bias=False),
    "network": lambda: EdgeLearned(1, 1, lambda pairs: torch.ones(len(pairs), 1), bias=False),
}


@pytest.mark.parametrize("rule", ORDERED)
def test_case_20_the_order_of_edges_hardly_matters(rule: str) -> None:
    layer = MessagePassing(Graph(), ORDERED[rule]())
    with torch.no_grad():
        for p in layer.parameters():
            p.fill_(1)
    x = torch.randn(1000, 1) * torch.logspace(-3, 3, 1000)[:, None]
    edges = torch.stack([torch.randint(1000, (10_000,)), torch.randint(10, (10_000,))])
    total = np.zeros(1000, dtype=np.float64)
    np.add.at(total, edges[1].numpy(), x[edges[0], 0].abs().double().numpy())
    allowed = torch.from_numpy(32 * np.spacing(total.astype(np.float32)))[:, None]
    first = None
    for kernel in able(layer, x, edges):
        for _ in range(4):
            shuffled = edges[:, torch.randperm(10_000)]
            with use_kernels(kernel), torch.no_grad():
                y = layer(x, shuffled)
            first = y if first is None else first
            assert ((y - first).abs() <= allowed).all(), kernel


MEMORY = """
import resource, sys, torch
from torch import nn
from mpnn import MessagePassing, use_kernels
from mpnn.neighbours import Graph
from mpnn.weights import EdgeLearned, SharedKernel
torch.set_num_threads(1)

def run(nodes, edges, kernel, block=None):
    index = torch.randint(nodes, (2, edges))
    x = torch.randn(nodes, 64, requires_grad=True)
    if sys.argv[1] == "rgcn":
        layer = MessagePassing(Graph(relations=4), SharedKernel(64, 64, normalise="relation", root=True))
        given = {"edge_type": torch.randint(4, (edges,))}
    else:
        layer = MessagePassing(Graph(), EdgeLearned(64, 64, nn.Linear(4, 64 * 64)))
        given = {"edge_attr": torch.randn(edges, 4)}
    with use_kernels(*kernel, block=block):
        layer(x, index, **given).square().sum().backward()

kernel = [] if sys.argv[2] == "chosen" else [sys.argv[2]]
# all that is imported when first used is there before
run(10, 20, kernel)
run(10, 20, ['reference'], 1 << 12)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(2000, 75_000 if sys.argv[1] == "rgcn" else 20_000, kernel)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss is Linux's, kibibytes")
@pytest.mark.parametrize("kernel", ["chosen", "reference"])
@pytest.mark.parametrize(("layer", "allowed"), [("rgcn", 100), ("nnconv", 100)])
def test_case_45_memory_is_bounded(layer: str, allowed: int, kernel: str) -> None:
    """Forward and backward, in MiB. A matrix for each edge of NNConv would be 313 MiB, and their gradients as much."""
    # Freed blocks go back at once, so that what is resident is what is held.
    alone = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    run = subprocess.run(
        [sys.executable, "-c", MEMORY, layer, kernel], capture_output=True, text=True, check=True, env=alone
    )
    assert int(run.stdout) < allowed
