"""torch.compile(fullgraph=True, dynamic=True) on every cell, forward and backward, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.calls import trial
from helpers.cases import edges
from helpers.compare import agree, run
from mpnn import MessagePassing, attend, use_kernels
from mpnn.neighbours import AllTokens, Graph, Window
from mpnn.weights import AdditiveScore, EdgeLearned, EdgeMLP, QKSoftmax, SharedKernel, Static

CELLS = [
    ("Full of two numbers", "Static"),
    ("Full", "SharedKernel"),
    ("Full", "NNConv"),
    ("Full", "attention"),
    ("Grid 2-D", "Static"),
    ("Grid 2-D circular", "SharedKernel"),
    ("Grid strided", "continuous kernel"),
    ("Grid 2-D clamp", "attention"),
    ("Graph built", "Static"),
    ("Graph loops added", "SharedKernel symmetric"),
    ("Graph loops replaced", "GAT edges"),
    ("Graph of two sets", "TransformerConv"),
    ("AllTokens max_tokens", "Static heads"),
    ("AllTokens causal max_tokens", "SharedKernel"),
    ("AllTokens", "Bahdanau"),
    ("AllTokens causal fewer targets", "Rotary"),
    ("Window ragged", "ALiBi"),
    ("KNN", "GAT"),
    ("KNN ragged", "SharedKernel"),
    ("KNN of all", "attention"),
    ("Radius", "NNConv"),
    ("Random ragged", "attention"),
]


def compiled(layer: Callable[..., Any], backend: Any = "aot_eager") -> Callable[..., Any]:
    return torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)


@pytest.mark.parametrize(("place", "rule"), CELLS)
def test_cell(place: str, rule: str) -> None:
    """Traced whole with dynamic shapes, and forward and backward made into graphs, for these sizes."""
    call = trial(place, rule, mask="batched", edge_weight="one", positions=True)
    x, arguments = call.bound()
    expected = run(call, call.leaves)
    for backend, dynamic in (("eager", True), ("aot_eager", False)):
        torch._dynamo.reset()
        fast = torch.compile(call.layer, fullgraph=True, dynamic=dynamic, backend=backend)
        agree(run(lambda fast=fast: fast(x, **arguments), call.leaves), expected, torch.float64)


@pytest.mark.parametrize(("place", "rule"), [CELLS[i] for i in (5, 7, 9)])
def test_cell_with_dynamic_graphs(place: str, rule: str) -> None:
    """Both at once, which is slow: each kind of kernel."""
    call = trial(place, rule, mask="batched", edge_weight="one", positions=True)
    x, arguments = call.bound()
    fast = compiled(call.layer)
    agree(run(lambda: fast(x, **arguments), call.leaves), run(call, call.leaves), torch.float64)


@pytest.mark.parametrize(("place", "rule"), [("Graph loops added", "SharedKernel symmetric"), ("Window", "attention")])
def test_inductor(place: str, rule: str) -> None:
    call = trial(place, rule, dtype=torch.float32, grad=rule != "attention")  # compiling to C++ is slow
    x, arguments = call.bound()
    fast = compiled(call.layer, "inductor")
    with torch.set_grad_enabled(rule != "attention"):
        agree(run(lambda: fast(x, **arguments), call.tensors), run(call, call.tensors), torch.float32)


def test_pair_masks_weights_and_attend() -> None:
    call = trial("AllTokens", "attention", pair_mask="heads")
    x, arguments = call.bound()
    y, used = compiled(call.layer)(x, **arguments, return_weights=True)
    z, expected = call(return_weights=True)
    torch.testing.assert_close(y, z)
    torch.testing.assert_close(used.weight, expected.weight)
    q, k, v = torch.randn(3, 2, 5, 4, dtype=torch.float64)
    for rule in (AllTokens(causal=True), Window(2, 1)):
        fast = torch.compile(lambda q, k, v, rule=rule: attend(q, k, v, rule), fullgraph=True, backend="eager")
        torch.testing.assert_close(fast(q, k, v), attend(q, k, v, rule))


NONE = torch.empty(2, 0, dtype=torch.int64)
WEIGHTS: dict[str, Callable[[], Any]] = {
    "GCN": lambda: SharedKernel(4, 6, normalise="symmetric"),
    "max": lambda: SharedKernel(4, 6, reduce="max", root=True),
    "NNConv": lambda: EdgeLearned(4, 6, EdgeMLP(2, 24)),
    "GAT": lambda: EdgeLearned(4, 6, AdditiveScore(6, 2, edge_channels=2), heads=2, normalise="softmax"),
    "TransformerConv": lambda: QKSoftmax(4, 2, edge_channels=2, root=True),
}


@pytest.mark.parametrize(("weight", "nodes"), [*((w, 3) for w in WEIGHTS), ("GCN", 0), ("TransformerConv", 0)])
def test_no_edges(weight: str, nodes: int) -> None:
    """Case 16, compiled: root and bias only, and gradients of zeros, not None."""
    layer = MessagePassing(Graph(), WEIGHTS[weight]())
    attr = {"edge_attr": torch.zeros(0, 2)} if layer.weight.edge_channels else {}
    x = torch.randn(nodes, 4, requires_grad=True)
    y = torch.compile(layer, fullgraph=True, backend="aot_eager")(x, NONE, **attr)
    expected = layer(x, NONE, **attr)
    torch.testing.assert_close(y, expected)
    assert y.shape == (nodes, layer.weight.out_channels)
    leaves = [x, *layer.parameters()]
    for mine, theirs in zip(
        torch.autograd.grad(y.sum(), leaves), torch.autograd.grad(expected.sum(), leaves), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


GRAPHS = ((5, 8), (7, 3), (7, 0), (1, 1))
LENGTHS = (1, 2, 129)


def count(module: Callable[..., Tensor], inputs: list[tuple], backend: str = "eager") -> int:
    """How often a module is compiled for inputs one after another, each checked against eager."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    fast = compiled(module, counter)
    for given in inputs:
        y, expected = fast(*given), module(*given)
        torch.testing.assert_close(y, expected)
    return counter.frame_count


def graph_inputs(width: int) -> list[tuple]:
    made = []
    for n, e in GRAPHS:
        x, index = torch.randn(n, 4, requires_grad=True), torch.randint(0, n, (2, e))
        made.append((x, index, *((torch.randn(e, width),) if width else ())))
    return made


@pytest.mark.parametrize("weight", ["GCN", "TransformerConv"])
def test_compilations_of_a_graph_layer(weight: str) -> None:
    """Case 29: at most one more than a bare index_add (the edges (7, 0) among them: case 16)."""
    bare = count(lambda x, index: x.new_zeros(x.shape).index_add(0, index[1], x[index[0]]), graph_inputs(0))
    layer = MessagePassing(Graph(self_loops="add"), WEIGHTS[weight]())
    assert bare == 3
    assert count(layer, graph_inputs(layer.weight.edge_channels)) <= bare + 1
    if weight == "GCN":
        assert count(layer, graph_inputs(0), "aot_eager") <= bare + 1


@pytest.mark.parametrize(
    ("rule", "weight"),
    [
        (AllTokens(), QKSoftmax(4, 2)),
        (Window(2), EdgeLearned(4, 6, AdditiveScore(6, 2), heads=2, normalise="softmax")),
        (AllTokens(max_tokens=129), Static(4, 4, heads=2)),
        (AllTokens(max_tokens=129, causal=True), SharedKernel(4, 4, groups=4)),
    ],
)
def test_compilations_of_a_sequence_layer(rule: Any, weight: Any) -> None:
    inputs = [(torch.randn(2, n, 4, requires_grad=True),) for n in LENGTHS]
    index = [(x, torch.randint(0, x.shape[1], (x.shape[1],))) for (x,) in inputs]
    bare = count(lambda x, i: x.new_zeros(x.shape).index_add(1, i, x), index)
    assert bare == 2
    assert count(MessagePassing(rule, weight), inputs) <= bare + 1
    if type(weight) is Static:
        assert count(MessagePassing(rule, weight), inputs, "aot_eager") <= bare + 1


def test_values_are_checked_under_compile() -> None:
    """Decision 3 and case 1: the same text, without the value that came."""
    layer = MessagePassing(Graph(), SharedKernel(4, 6))
    with pytest.raises(RuntimeError, match=r"expected edge_index\[0\] \(source\)"):
        compiled(layer, "eager")(torch.ones(3, 4), edges((3, 0), (1, 1)))
    gcn = MessagePassing(Graph(self_loops="add"), SharedKernel(1, 1, normalise="symmetric"))
    with pytest.raises(RuntimeError, match="negative degree"):
        compiled(gcn, "eager")(torch.ones(2, 1), edges((0, 1)), edge_weight=torch.tensor([-2.0]))
    ragged = MessagePassing(AllTokens(), QKSoftmax(4, 2))
    with pytest.raises(RuntimeError, match="expected batch sorted"):
        compiled(ragged, "eager")(torch.ones(3, 4), batch=torch.tensor([1, 0, 1]))


def test_forced_kernels_hold_under_compile() -> None:
    """A forced choice never falls back, compiled or not."""
    x = torch.ones(2, 3, 4)
    with pytest.raises(Exception, match="expected a kernel that can run"):
        compiled(MessagePassing(AllTokens(), QKSoftmax(4, 2), kernel="spmm"), "eager")(x)
    free = MessagePassing(AllTokens(), QKSoftmax(4, 2))
    torch._dynamo.reset()
    with use_kernels("conv"), pytest.raises(Exception, match="expected a kernel that can run"):
        compiled(free, "eager")(x)


def test_eval_and_dropout() -> None:
    """Case 13: dropout 0.9 in eval after compile is dropout 0; in training it acts."""
    layer = MessagePassing(Window(2), QKSoftmax(4, 2, dropout=0.9))
    fast = compiled(layer, "eager")
    x = torch.randn(2, 6, 4)
    layer.eval()
    torch.testing.assert_close(fast(x), layer(x))
    torch.testing.assert_close(fast(x), fast(x))
    layer.train()
    assert not torch.equal(fast(x), fast(x))


def test_a_state_dict_of_a_compiled_layer() -> None:
    layer = MessagePassing(AllTokens(), QKSoftmax(4, 2))
    layer.compile(fullgraph=True, backend="aot_eager")  # in place: the names stay clean
    x = torch.randn(2, 3, 4)
    y = layer(x)
    plain = MessagePassing(AllTokens(), QKSoftmax(4, 2))
    plain.load_state_dict(layer.state_dict())
    torch.testing.assert_close(plain(x), y)
