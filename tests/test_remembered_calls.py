"""A layer remembers the calls that it has checked: the second is as the first of a copy, which remembers nothing."""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

from helpers.calls import Trial, product, trial
from helpers.compare import agree, run
from helpers.over import over
from mpnn import MessagePassing, use_kernels
from mpnn.neighbours import AllTokens, Full, Graph, Grid
from mpnn.pairs import Pairs
from mpnn.positions import ALiBi, Rotary
from mpnn.weights import EdgeLearned, QKSoftmax, SharedKernel, Static

CHANGES: dict[str, Callable[[Trial], Trial]] = {}


def change(made: Callable[[Trial], Trial]) -> Callable[[Trial], Trial]:
    """A change between two calls, by the function's name."""
    CHANGES[made.__name__] = made
    return made


@change
def parameters_written_in_place(call: Trial) -> Trial:
    with torch.no_grad():
        for p in call.layer.parameters():
            p.mul_(-0.5)
    return call


@change
def parameters_replaced(call: Trial) -> Trial:
    for module in call.layer.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(p.detach() * -0.5))
    return call


@change
def parameters_loaded(call: Trial) -> Trial:
    call.layer.load_state_dict({k: t * -0.5 for k, t in call.layer.state_dict().items()}, assign=True)
    return call


@change
def modules_replaced(call: Trial) -> Trial:
    weight = call.layer.weight
    for name in ("value", "output", "query", "root"):
        if isinstance(old := getattr(weight, name, None), nn.Linear):
            setattr(weight, name, nn.Linear(old.in_features, old.out_features, old.bias is not None).double())
    return call


@change
def another_dtype(call: Trial) -> Trial:
    call.layer.float()
    return call.mapped(lambda name, t: t.float() if t.is_floating_point() else t)


@change
def frozen(call: Trial) -> Trial:
    call.layer.requires_grad_(False)
    return call


@change
def other_edges(call: Trial) -> Trial:
    return call.mapped(lambda name, t: t.roll(1, -1) if name == "edge_index" else t)


@change
def edges_written_in_place(call: Trial) -> Trial:
    if "edge_index" in call.tensors:
        call.tensors["edge_index"].copy_(call.tensors["edge_index"].roll(1, -1))
    return call


@change
def graph_moved(call: Trial) -> Trial:
    rule = call.layer.neighbours
    if isinstance(rule, Graph) and rule.built:
        rule.edge_index.copy_(rule.edge_index.roll(1, -1))
    return call


@change
def another_kernel(call: Trial) -> Trial:
    call.layer.kernel = "reference"
    return call


@change
def another_dropout(call: Trial) -> Trial:
    if isinstance(call.layer.weight, EdgeLearned | QKSoftmax):
        call.layer.weight.dropout = 0.5
    return call


@change
def another_reduce(call: Trial) -> Trial:
    weight = call.layer.weight
    if isinstance(weight, SharedKernel) and weight.normalise is None and weight.reduce == "sum":
        weight.reduce = "mean"
    return call


@change
def positions_and_biases_set(call: Trial) -> Trial:
    weight = call.layer.weight
    if isinstance(weight, QKSoftmax) and weight.position is None and weight.score_bias is None:
        weight.position, weight.score_bias = Rotary(weight.head_channels), ALiBi(weight.heads)
    return call


@over(
    [
        (p, r)
        for p, r in product("main")
        if p in ("Full", "Grid 2-D", "Graph at call", "Graph built", "AllTokens", "Window")
    ],
)
def test_a_remembered_call_sees_what_has_changed(place: str, rule: str) -> None:
    """The second of two calls is as the first of a copy, which remembers nothing."""
    for name, made in CHANGES.items():
        call = trial(place, rule)
        call = call.mapped(lambda name, t: t.clone())
        run(call, call.leaves)
        call()
        changed = made(call)
        fresh = dataclasses.replace(changed, layer=copy.deepcopy(changed.layer))
        found = []
        for each in (changed, fresh):
            torch.manual_seed(5)
            found.append(run(each, each.leaves))
        agree(found[0], found[1], torch.float32, name)
        assert found[0].keys() == found[1].keys(), name


@over(product("few"))
def test_a_call_that_is_remembered_gives_what_it_gave(place: str, rule: str) -> None:
    """Values and gradients of a second call and a third, with and without leading dimensions and gradients."""
    for lead in ((), (2,)):
        call = trial(place, rule, lead=lead)
        with torch.no_grad():
            for p in call.layer.parameters():
                p.add_(torch.rand_like(p) / 8)  # a bias of zeros, as many begin, would hide its sign
        first = run(call, call.leaves)
        for _ in range(2):
            agree(run(call, call.leaves), first, torch.float64, str(lead))
        for _ in range(3):
            with torch.no_grad():
                torch.testing.assert_close(call(), first["output"])


@over(product("main"))
def test_a_remembered_call_keeps_no_tokens_alive(place: str, rule: str) -> None:
    call = trial(place, rule, grad=False)
    call()
    seen = [weakref.ref(t) for name, t in call.tensors.items() if name in ("source", "target", "edge_attr")]
    call.tensors = {}
    assert [r() for r in seen] == [None] * len(seen)


def test_another_grid_of_as_many_tokens() -> None:
    layer = MessagePassing(Grid(axes=2, kernel_size=3), SharedKernel(2, 3)).double()
    x = torch.randn(2, 12, 2, dtype=torch.float64)
    first = [layer(x, grid=grid) for grid in ((3, 4), (4, 3), (12, 1))]
    again = [layer(x, grid=grid) for grid in ((3, 4), (4, 3), (12, 1))]
    fresh = [copy.deepcopy(layer)(x, grid=grid) for grid in ((3, 4), (4, 3), (12, 1))]
    for one, two, three in zip(first, again, fresh, strict=True):
        assert torch.equal(one, three) and torch.equal(two, three)
    assert not torch.allclose(first[0], first[1])


@pytest.mark.parametrize("change", ["data", "turned", "in place", "replaced", "training between"])
def test_a_dense_layer_without_gradients_sees_its_weight_as_it_is(change: str) -> None:
    """The view of the weight is kept from call to call where no gradient is wanted."""
    layer, x = MessagePassing(Full(4, 4), Static()), torch.randn(3, 4, 1)
    rule = layer.weight
    with torch.no_grad():
        layer(x), layer(x)
        if change == "data":
            rule.weight.data = torch.randn_like(rule.weight)
        elif change == "turned":
            rule.weight.data = rule.weight.data.transpose(0, 2)
        elif change == "in place":
            rule.weight.mul_(2)
        elif change == "replaced":
            rule.weight = torch.nn.Parameter(torch.randn_like(rule.weight))
    if change == "training between":
        (layer(x).square().sum() + rule.bias.sum()).backward()
        with torch.no_grad():
            for p in rule.parameters():
                p -= 0.1 * p.grad
    with torch.no_grad():
        expected = torch.einsum("tosi,bsi->bto", rule.weight, x) + rule.bias
        torch.testing.assert_close(layer(x), expected)
        torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("data", ["edge_weight", "edge_attr"])
def test_data_of_edges_that_wants_a_gradient_has_it_at_every_call(data: str) -> None:
    index, x = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 0]]), torch.randn(3, 4)
    given = torch.rand(4) if data == "edge_weight" else torch.rand(4, 2)
    graph = Graph(index, 3, weight=given) if data == "edge_weight" else Graph(index, 3, attr=given, self_loops="add")
    weight = SharedKernel(4, 4, normalise="symmetric") if data == "edge_weight" else QKSoftmax(4, 2, edge_channels=2)
    layer = MessagePassing(graph, weight)
    layer(x), layer(x)
    held = getattr(layer.neighbours, data)
    held.requires_grad_()
    found = [torch.autograd.grad(layer(x).square().sum(), held)[0] for _ in range(3)]
    assert found[0].abs().sum() > 0
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_a_layer_forgets_edges_that_are_gone() -> None:
    layer, x = MessagePassing(Graph(), SharedKernel(4, 4)), torch.randn(3, 4)
    for _ in range(3):
        layer(x, torch.tensor([[0, 1], [1, 2]]))
    assert len(layer._repeats) == 0


def test_edges_made_in_inference_mode_are_looked_at_again() -> None:
    with torch.inference_mode():
        index = torch.tensor([[0, 1, 2], [1, 2, 0]])
        other = index.flip(0)
        layer, x = MessagePassing(Graph(index, 3), SharedKernel(4, 4)), torch.randn(3, 4)
        before = layer(x), layer(x)
        assert torch.equal(*before)
        layer.neighbours.edge_index.copy_(other)
        assert not torch.allclose(layer(x), before[0])
        torch.testing.assert_close(layer(x), MessagePassing(Graph(other, 3), layer.weight)(x))


@pytest.mark.parametrize("place", [Grid((3,), 3), Full(3, 3), Graph()], ids=["conv", "linear", "spmm"])
def test_a_bias_registered_later_is_added(place: torch.nn.Module) -> None:
    edges = (torch.tensor([[0, 1], [1, 2]]),) if isinstance(place, Graph) else ()
    weight = Static(2, 2, bias=False) if isinstance(place, Full) else SharedKernel(2, 2, bias=False)
    layer, x = MessagePassing(place, weight), torch.randn(3, 2)
    before = layer(x, *edges), layer(x, *edges)
    layer.weight.register_parameter("bias", nn.Parameter(torch.tensor([1.0, 2.0])))
    torch.testing.assert_close(layer(x, *edges), before[0] + torch.tensor([1.0, 2.0]))


class Halved(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight / 2


def test_a_parametrised_weight_keeps_its_kernel() -> None:
    edges = torch.tensor([[0, 1], [1, 2]])
    cases = [
        (Grid((3,), 3), SharedKernel(2, 2), ()),
        (Full(3, 3), Static(2, 2), ()),
        (Graph(), SharedKernel(2, 2), (edges,)),
    ]
    for place, weight, given in cases:
        layer, x = MessagePassing(place, weight), torch.randn(3, 2)
        kernel, before = layer.plan(x, *given).kernel, layer(x, *given)
        torch.nn.utils.parametrize.register_parametrization(layer.weight, "weight", Halved())
        assert layer.plan(x, *given).kernel == kernel
        for _ in range(2):
            found = layer(x, *given) - layer.weight.bias
            torch.testing.assert_close(found, (before - layer.weight.bias) / 2)


GRAPHS = {
    "spmm": lambda: MessagePassing(Graph(self_loops="add"), SharedKernel(4, 4, normalise="symmetric")),
    "spmm, narrower": lambda: MessagePassing(Graph(), SharedKernel(4, 2)),
    "edge_softmax": lambda: MessagePassing(Graph(), QKSoftmax(4, 2), kernel="edge_softmax"),
    "native": lambda: MessagePassing(Graph(), QKSoftmax(4, 2), kernel="native"),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_remembered_call_on_a_graph_has_every_derivative(name: str) -> None:
    """Values, gradients and their gradients, of the call that is run again."""
    if name == "native":
        pytest.importorskip("numba")
    layer = GRAPHS[name]().double()
    index = torch.tensor(
        [[0, 1, 2, 3, 3, 1, 0], [1, 0, 3, 2, 0, 1, 1]]
    )  # a duplicate, a loop; 4 hears and sends nothing
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    leaves = [x, *layer.parameters()]
    layer(x, index)
    (repeat,) = layer._repeats
    assert repeat.shortcut is not None

    def found() -> list[torch.Tensor]:
        y = layer(x, index)
        first = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves)
        third = torch.autograd.grad(layer(x, index).sum(), leaves)  # an upstream gradient without memory of its own
        return [y, *first, *second, *third]

    ours = found()
    layer.kernel = "reference"
    for a, b in zip(ours, found(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("after", [2, 4, 6])
def test_a_remembered_sum_over_edges_without_gradients_adds_its_bias(after: int) -> None:
    """Where the matrix is no wider it comes first, and the bias is added in place."""
    layer, x = MessagePassing(Graph(), SharedKernel(4, after)), torch.randn(3, 4)
    nn.init.normal_(layer.weight.bias)
    edges = torch.tensor([[0, 1, 1], [1, 2, 0]])
    with torch.no_grad():
        expected = torch.zeros(3, 4).index_add(0, edges[1], x[edges[0]]) @ layer.weight.weight[0].T + layer.weight.bias
        for _ in range(3):
            torch.testing.assert_close(layer(x, edges), expected)


def test_edges_written_to_in_place_are_looked_at_again() -> None:
    layer = MessagePassing(Graph(), SharedKernel(4, 4))
    x, edges = torch.randn(5, 4), torch.tensor([[0, 1, 2], [1, 2, 3]])
    layer(x, edges)
    edges[0, 0] = 4
    torch.testing.assert_close(layer(x, edges), copy.deepcopy(layer)(x, edges.clone()))


def test_a_rule_that_changes_itself_in_a_call_is_not_remembered() -> None:
    def growing(pairs: Pairs) -> torch.Tensor:
        layer.weight.calls = getattr(layer.weight, "calls", 0) + 1
        return torch.full((len(pairs.edges), 1), float(layer.weight.calls))

    layer = MessagePassing(Graph(), EdgeLearned(4, 4, growing, heads=1, value=False, bias=False))
    x, edges = torch.randn(5, 4), torch.tensor([[0, 1, 2], [1, 2, 3]])
    with torch.no_grad():
        layer(x, edges)
    assert layer.weight.calls > 0
    assert not layer._repeats


def test_kernels_and_training_of_another_call_are_its_own() -> None:
    """What a call depends on besides the rules and its tokens, changed between two of them."""
    layer, x = MessagePassing(AllTokens(), QKSoftmax(8, 2, dropout=0.5)), torch.randn(6, 8)
    with torch.no_grad():
        calm = layer.eval()(x)
        with use_kernels("linear"), pytest.raises(ValueError, match="linear"):
            layer(x)
        layer.training = True  # the layer's alone: nothing is assigned to its rules
        assert not torch.equal(layer(x), calm)


@pytest.mark.parametrize("kernel", ["spmm", "native", "sdpa", "linear", "native_fft"])
def test_autocast_of_another_call_is_its_own(kernel: str) -> None:
    """Remembered without it or within it, a call gives what a copy gives that remembers nothing."""
    if kernel.startswith("native"):
        pytest.importorskip("numba")
    edges, x = (torch.tensor([[0, 1, 2], [1, 2, 3]]),), torch.randn(300, 8)
    layer, given = {
        "spmm": (MessagePassing(Graph(), SharedKernel(8, 8)), edges),
        "native": (MessagePassing(Graph(), QKSoftmax(8, 2)), edges),
        "sdpa": (MessagePassing(AllTokens(), QKSoftmax(8, 2)), ()),
        "linear": (MessagePassing(Full(300, 5), Static(8, 4, groups=1)), ()),
        "native_fft": (MessagePassing(AllTokens(causal=True, max_tokens=300), SharedKernel(8, 8, groups=8)), ()),
    }[kernel]
    assert layer.plan(x, *given).kernel == kernel
    for order in ((False, True), (True, False)):
        own = copy.deepcopy(layer)
        for cast in order:
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=cast):
                found, expected = own(x, *given), copy.deepcopy(layer)(x, *given)
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected)
