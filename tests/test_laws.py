"""Laws that hold for every pair of rules, on every kernel that can run the call."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from helpers.calls import Trial, product, trial
from helpers.cases import PLACES, RULES
from helpers.compare import agree, run
from mpnn import capture_weights, trace_kernels, use_kernels
from mpnn.kernels import reference
from mpnn.neighbours import AllTokens, Graph, Window
from mpnn.weights import EdgeLearned, QKSoftmax

FEW = product("few")


def has_dropout(rule: str) -> bool:
    return isinstance(RULES[rule].make(AllTokens()), EdgeLearned | QKSoftmax)


few = pytest.mark.parametrize(("place", "rule"), FEW)
MAIN = product("main")
main = pytest.mark.parametrize(("place", "rule"), MAIN)
in_batches = pytest.mark.parametrize(("place", "rule"), [(p, r) for p, r in MAIN if PLACES[p].batch is None])
GRAPHS = ("Graph at call", "Graph loops added", "Graph relations", "Graph of two sets")
graphs = pytest.mark.parametrize(("place", "rule"), [(p, r) for p, r in FEW if p in GRAPHS])
COUNTED = ("ALiBi", "Rotary")  # the sources' positions are counted where there are two sets: they belong to no token


def kernels(call: Trial) -> Iterator[str]:
    """Each kernel that can run a call, chosen in the body of the loop."""
    for name in [*call.able(), "reference"]:
        with use_kernels(name):
            yield name


@few
def test_what_is_masked_cannot_be_seen(place: str, rule: str) -> None:
    """Case 11: to the last bit, whatever stands at masked tokens and on the edges that go with them."""
    call = trial(place, rule, mask="batched", edge_weight="batched")
    for kernel in kernels(call):
        clean = call.mapped(lambda name, t: blanked(call, name, t, 0.0))
        expected = run(clean, clean.leaves)
        for fill in (1e10, torch.inf, -torch.inf, torch.nan):
            dirty = call.mapped(lambda name, t, fill=fill: blanked(call, name, t, fill))
            found = run(dirty, dirty.leaves)
            for name, t in expected.items():
                assert t is None or torch.equal(found[name], t), f"{kernel}, {fill}: {name}"
                assert t is None or bool(t.isfinite().all()), f"{kernel}: {name} is not finite"


def blanked(call: Trial, name: str, t: Tensor, fill: float) -> Tensor:
    """A tensor with masked tokens and the edges at these filled."""
    end, kind = name.split()[0], name.split()[-1]
    one_set = "target" not in call.tensors
    if end in ("source", "target") and kind in ("source", "target", "coordinates"):
        return t.masked_fill(~call.tensors[f"{end} mask"][..., None], fill)
    if kind in ("edge_attr", "edge_weight") and "edge_index" in call.tensors:
        masks = [call.tensors[f"{e} mask"] for e in ("source", "source" if one_set else "target")]
        alive = torch.stack([m[..., ends] for m, ends in zip(masks, call.tensors["edge_index"], strict=True)]).all(0)
        return t.masked_fill(~(alive if kind == "edge_weight" else alive[..., None]), fill)
    return t.clone()


@main
def test_without_any_token_the_aggregate_is_zero(place: str, rule: str) -> None:
    call = trial(place, rule, mask="all")
    weight = call.layer.weight
    for kernel in kernels(call):
        found = run(call, call.leaves)
        zero = found["output"].new_zeros(*found["output"].shape[:-1], weight.out_channels)
        if weight.output is not None:
            width = weight.output.in_features
            zero = weight.output(zero.new_zeros(*zero.shape[:-1], width))
        if weight.root is not None:
            zero = zero + weight.root(zero.new_zeros(*zero.shape[:-1], weight.root.in_features))
        zero = zero if weight.bias is None else zero + weight.bias
        assert torch.equal(found["output"], zero), kernel
        for name, t in found.items():
            assert t is None or bool(t.isfinite().all()), f"{kernel}: {name}"
            touched = name == "output" or name.endswith(("weight.bias", "output.weight", "output.bias", "root.bias"))
            assert t is None or touched or not t.any(), f"{kernel}: {name}"


@in_batches
def test_entries_of_a_batch_do_not_see_each_other(place: str, rule: str) -> None:
    call = trial(place, rule, lead=(3,), mask="batched", edge_weight="batched")
    other = call.mapped(lambda name, t: other_entry(call, name, t))
    for kernel in kernels(call):
        y, z = call(), other()
        agree({"output": z[:2]}, {"output": y[:2]}, torch.float64, kernel)
        grads = torch.autograd.grad(
            y[1].sum(), [t for k, t in call.leaves.items() if "parameter" not in k], allow_unused=True
        )
        for g in grads:
            assert g is None or not (g[0].any() or g[2].any()), kernel


def other_entry(call: Trial, name: str, t: Tensor) -> Tensor:
    """The same, but for other numbers in the last entry."""
    return torch.cat([t[:2], torch.rand_like(t[2:])]) if t.is_floating_point() else t


@in_batches
def test_leading_dimensions_are_one_batch(place: str, rule: str) -> None:
    call = trial(place, rule, lead=(2, 1, 3), mask="batched", pair_mask="heads", edge_weight="batched", positions=True)
    flat = call.mapped(lambda name, t: t.flatten(0, 2) if t.shape[:3] == (2, 1, 3) else t)
    alone = call.mapped(lambda name, t: t[1, 0, 2] if t.shape[:3] == (2, 1, 3) else t)
    for kernel in kernels(call):
        y = call()
        agree({"output": flat()}, {"output": y.flatten(0, 2)}, torch.float64, kernel)
        agree({"output": alone()}, {"output": y[1, 0, 2]}, torch.float64, kernel)
    weights = [t(return_weights=True)[1].weight for t in (call, flat)]
    agree({"output": weights[1]}, {"output": weights[0].flatten(0, 2)}, torch.float64)


@in_batches
def test_an_empty_batch(place: str, rule: str) -> None:
    call = trial(place, rule, lead=(0,), mask="batched", edge_weight="one")
    n = trial(place, rule, lead=())().shape[-2]
    for kernel in kernels(call):
        found = run(call, call.leaves)
        assert found["output"].shape == (0, n, call.layer.weight.out_channels), kernel
        assert all(t is None or not t.any() for t in found.values()), kernel


@main
def test_strides_do_not_matter(place: str, rule: str) -> None:
    """Case 24: views of other tensors, and an upstream gradient of stride 0."""
    call = trial(place, rule, mask="batched", pair_mask="one", edge_weight="batched")
    looks = {
        "every second": lambda t: torch.stack([t, t + 1], -1).flatten(-2)[..., ::2],
        "transposed": lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2),
        "a slice": lambda t: torch.cat([t, t, t], 0)[len(t) : 2 * len(t)] if t.ndim else t,
    }
    for kernel in kernels(call):
        expected = summed(call)
        for look, change in looks.items():
            wanted = lambda name, t, change=change: change(t) if t.ndim >= 2 and t.dtype != torch.bool else t  # noqa: E731
            agree(summed(call.mapped(wanted)), expected, torch.float64, f"{kernel}, {look}")


@in_batches
def test_an_expanded_batch_is_a_copied_one(place: str, rule: str) -> None:
    call = trial(place, rule, mask="one")
    names = ("source", "target", "edge_attr")
    copied = call.mapped(lambda name, t: t[:1].repeat(2, *(1,) * (t.ndim - 1)) if name in names else t)
    spread = call.mapped(lambda name, t: t[:1].expand(2, *t.shape[1:]) if name in names else t)
    for kernel in kernels(call):
        agree(summed(spread), summed(copied), torch.float64, kernel)


def summed(call: Trial) -> dict[str, Tensor | None]:
    """Output and gradients of the plain sum."""
    y, leaves = call(), call.leaves
    grads = torch.autograd.grad(y.sum(), list(leaves.values()), allow_unused=True)
    return {"output": y.detach()} | {f"gradient of {k}": g for k, g in zip(leaves, grads, strict=True)}


@main
def test_no_tensor_of_the_caller_is_written_to(place: str, rule: str) -> None:
    call = trial(place, rule, mask="batched", pair_mask="heads", edge_weight="batched", positions=True)
    everything = call.tensors | dict(call.layer.named_parameters()) | dict(call.layer.named_buffers())
    before = {k: (t._version, t.detach().clone()) for k, t in everything.items()}
    for kernel in kernels(call):
        run(call, call.leaves)
        call(return_weights=True)
        for name, t in everything.items():
            version, value = before[name]
            assert t._version == version and torch.equal(t, value), f"{kernel} wrote to {name}"


@main
def test_int32_is_int64(place: str, rule: str) -> None:
    call = trial(place, rule, edge_weight="one", positions=True)
    small = call.mapped(lambda name, t: t.int() if t.dtype == torch.int64 else t)
    graph = small.layer.neighbours
    for kernel in kernels(call):
        expected = call()
        assert torch.equal(small(), expected), kernel
    if isinstance(graph, Graph) and graph.built:
        made = copy.deepcopy(call.layer)
        made.neighbours.edge_index = made.neighbours.edge_index.int()
        small.layer = made
        for kernel in kernels(call):
            assert torch.equal(small(), call()), kernel


@main
def test_copies_and_pickles_are_equal(place: str, rule: str) -> None:
    call = trial(place, rule)
    expected = call()  # what the layer remembers of a call goes into no copy
    plain = "plain function" in rule
    for layer in (copy.deepcopy(call.layer), *([] if plain else [pickle.loads(pickle.dumps(call.layer))])):
        twin = Trial(layer, call.tensors, call.grid, call.as_pair)
        assert torch.equal(twin(), expected)
        with torch.no_grad():
            for p in layer.parameters():
                p.zero_()
        assert torch.equal(call(), expected)


@main
def test_listeners_change_nothing(place: str, rule: str) -> None:
    call = trial(place, rule, mask="batched")
    call.layer.weight.dropout = 0.5
    torch.manual_seed(0)
    expected, after = call(), torch.rand(3)
    model = nn.ModuleDict({"layer": call.layer})
    for listen in (capture_weights, trace_kernels):
        torch.manual_seed(0)
        with listen(model) as found:
            y = call()
        assert torch.equal(y, expected) and torch.equal(torch.rand(3), after)
        assert list(found) == ["layer"]
    with capture_weights(model) as found:
        call()
        call()
    one, two = found["layer"]
    call.layer.eval()
    edges = call(return_weights=True)[1]
    for captured in (one, two):
        assert torch.equal(captured.source, edges.source) and torch.equal(captured.target, edges.target)
        assert torch.equal(captured.weight, edges.weight) and not captured.weight.requires_grad


@pytest.mark.parametrize(("place", "rule"), [(p, r) for p, r in MAIN if has_dropout(r)])
def test_dropout(place: str, rule: str) -> None:
    """Case 13, and in training: a seed repeats it, and of everything nothing is left, on every kernel."""
    call = trial(place, rule, mask="one")
    layer, n, m = call.layer, call().shape[-2], call.tensors["source"].shape[-2]
    nothing = call(pair_mask=torch.zeros(n, m, dtype=torch.bool))
    for kernel in kernels(call):
        layer.eval()
        expected = call()
        layer.weight.dropout = 0.9
        assert torch.equal(call(), expected) and torch.equal(call(), expected), kernel
        layer.train()
        seeded = []
        for _ in range(2):
            torch.manual_seed(3)
            seeded.append(run(call, call.leaves))
        for name, t in seeded[0].items():
            assert t is None or torch.equal(seeded[1][name], t), f"{kernel}: {name}"
        layer.weight.dropout = 1.0
        agree({"output": call()}, {"output": nothing}, torch.float64, kernel)
        layer.weight.dropout = 0.0


@pytest.mark.parametrize(("place", "rule"), [(p, r) for p, r in MAIN if has_dropout(r)])
def test_gradients_under_dropout_are_those_of_the_same_draw(
    place: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finite differences of a function that draws from a seed; the reference also in blocks that are made again."""
    call = trial(place, rule, lead=())
    call.layer.weight.dropout = 0.4

    def drawn(x: Tensor) -> Tensor:
        torch.manual_seed(1)
        return dataclasses.replace(call, tensors=call.tensors | {"source": x})()

    for kernel in kernels(call):
        assert torch.autograd.gradcheck(drawn, call.tensors["source"], fast_mode=True), kernel
    with use_kernels("reference"), monkeypatch.context() as patch:
        patch.setattr(reference, "BLOCK", 20)
        assert torch.autograd.gradcheck(drawn, call.tensors["source"], fast_mode=True)


@pytest.mark.parametrize(
    ("place", "rule"), [(p, r) for p, r in FEW if p in GRAPHS and not (PLACES[p].targets and r in COUNTED)]
)
def test_order_of_nodes(place: str, rule: str) -> None:
    """A permutation of the nodes, with everything that belongs to them, permutes the output."""
    call = trial(place, rule, mask="batched", edge_weight="batched", positions=True)
    ends = ("source", "target") if "target" in call.tensors else ("source",)
    orders = {end: torch.randperm(call.tensors[end].shape[-2]) for end in ends}
    ranks = [orders[end].argsort() for end in ("source", ends[-1])]

    def moved(name: str, t: Tensor) -> Tensor:
        end, kind = name.split()[0], name.split()[-1]
        if name == "edge_index":
            return torch.stack([rank[row] for rank, row in zip(ranks, t, strict=True)])
        if name == "positions":
            return t.index_select(-1, orders[ends[-1]])
        return t.index_select(-1 if kind == "mask" else -2, orders[end]) if end in orders else t

    other = call.mapped(moved)
    for kernel in kernels(call):
        agree({"output": other()}, {"output": call().index_select(-2, orders[ends[-1]])}, torch.float64, kernel)


@graphs
def test_order_of_edges(place: str, rule: str) -> None:
    call = trial(place, rule, dtype=torch.float32, edge_weight="one")
    order = torch.randperm(call.tensors["edge_index"].shape[1])
    axis = {"edge_index": -1, "edge_type": -1, "edge_weight": -1, "edge_attr": -2}
    other = call.mapped(lambda name, t: t.index_select(axis[name], order) if name in axis else t)
    for kernel in kernels(call):
        y, z = call(), other()
        assert float((y - z).detach().abs().max()) <= 32 * 2**-23 * float(y.detach().abs().max().clamp(min=1)), kernel


@pytest.mark.parametrize("rule", ["attention", "GAT", "fixed sum", "fixed max", "own score", "own matrix", "Bahdanau"])
def test_order_of_tokens(rule: str) -> None:
    call = trial("AllTokens", rule, mask="batched")
    order = torch.randperm(4)
    other = call.mapped(lambda name, t: t.index_select(-1 if name.endswith("mask") else -2, order))
    for kernel in kernels(call):
        agree({"output": other()}, {"output": call().index_select(-2, order)}, torch.float64, kernel)


@pytest.mark.parametrize("neighbours", [AllTokens(causal=True), Window(2, 0)])
def test_the_future_cannot_be_seen(neighbours: nn.Module) -> None:
    for rule in ("attention", "GAT", "fixed sum", "Rotary", "ALiBi"):
        call = trial("AllTokens", rule)
        call.layer.neighbours = neighbours
        other = call.mapped(lambda name, t: torch.cat([t[:, :3], t[:, 3:] + 5], 1))
        for kernel in kernels(call):
            assert torch.equal(other()[:, :3], call()[:, :3]), kernel


QKV = {f"{n}.{k}": s for n in ("query", "key", "value") for k, s in (("weight", (4, 4)), ("bias", (4,)))}
OUTPUT = {"output.weight": (4, 4), "output.bias": (4,)}
STATES: list[tuple[str, str, dict[str, tuple[int, ...]]]] = [
    ("Full of two numbers", "Static", {"weight": (3, 6, 4, 4), "bias": (3, 6)}),
    ("Full of two numbers", "Static groups", {"weight": (3, 6, 4, 2), "bias": (3, 6), "root.weight": (6, 4)}),
    ("Full", "Static output", {"weight": (4, 6, 4, 4), "output.weight": (6, 6)}),
    ("Full of two numbers", "Static heads", {"weight": (2, 3, 4), "value.weight": (6, 4), "bias": (3, 6)}),
    ("AllTokens max_tokens", "Static", {"weight": (5, 6, 5, 4), "bias": (6,)}),
    ("AllTokens max_tokens", "Static bare heads", {"weight": (2, 5, 5)} | OUTPUT),
    ("Grid 2-D", "Static", {"weight": (6, 6, 4, 3, 3), "bias": (6,)}),
    ("Grid 2-D", "Static heads", {"weight": (2, 6, 3, 3), "value.weight": (6, 4), "bias": (6,)}),
    ("Graph built", "Static", {"weight": (9, 6, 4), "bias": (6,)}),  # ten edges, two of one pair
    ("Graph built", "Static heads", {"weight": (2, 9), "value.weight": (6, 4), "bias": (6,)}),
    ("Graph loops replaced", "Static", {"weight": (12, 6, 4), "bias": (6,)}),
    ("Full of two numbers", "SharedKernel", {"weight": (6, 6, 4), "bias": (6,)}),
    ("Grid 1-D", "SharedKernel", {"weight": (6, 4, 3), "bias": (6,)}),
    ("Grid 2-D", "SharedKernel", {"weight": (6, 4, 3, 3), "bias": (6,)}),
    ("Grid 2-D", "SharedKernel groups", {"weight": (6, 2, 3, 3), "bias": (6,)}),
    ("Grid 2-D clamp", "SharedKernel", {"weight": (6, 4, 5, 5), "bias": (6,)}),
    ("Grid 2-D", "SharedKernel heads", {"weight": (9, 2), "value.weight": (6, 4), "bias": (6,)}),
    ("Grid 2-D", "SharedKernel bases", {"weight": (2, 6, 2), "coefficients": (9, 2), "bias": (6,)}),
    ("Graph at call", "SharedKernel", {"weight": (1, 6, 4), "bias": (6,)}),
    ("Graph relations", "SharedKernel", {"weight": (3, 6, 4), "bias": (6,)}),
    ("Graph relations", "SharedKernel bases", {"weight": (2, 6, 2), "coefficients": (3, 2), "bias": (6,)}),
    ("AllTokens max_tokens", "SharedKernel", {"weight": (9, 6, 4), "bias": (6,)}),
    ("AllTokens causal max_tokens", "SharedKernel", {"weight": (4, 6, 4), "bias": (6,)}),
    ("Window", "SharedKernel narrow", {"weight": (3, 2, 2), "value.weight": (2, 4)}),
    ("Graph at call", "fixed sum", {"bias": (4,)}),
    ("Graph at call", "fixed max", {"output.weight": (6, 4), "output.bias": (6,)}),
    (
        "Graph at call",
        "GAT",
        {f"network.{k}": (2, 3) for k in ("source", "target")} | {"value.weight": (6, 4), "bias": (6,)},
    ),
    ("AllTokens", "attention", QKV | OUTPUT),
    ("AllTokens", "ALiBi", {k: s for k, s in (QKV | OUTPUT).items() if k.endswith("weight")}),
    ("AllTokens", "Rotary", QKV | OUTPUT),
    ("AllTokens", "RelativeBias", QKV | OUTPUT | {"score_bias.weight": (7, 2)}),
    ("AllTokens", "cross-attention", QKV | OUTPUT | {"key.weight": (4, 3), "value.weight": (4, 3)}),
    ("AllTokens", "split sources", QKV | OUTPUT | {"key.weight": (4, 2), "value.weight": (4, 3)}),
    (
        "Graph at call",
        "TransformerConv",
        {k: (6, *s[1:]) for k, s in QKV.items()} | {"edge.weight": (6, 3), "root.weight": (6, 4), "root.bias": (6,)},
    ),
]


@pytest.mark.parametrize(("place", "rule", "expected"), STATES)
def test_names_and_shapes_of_parameters(place: str, rule: str, expected: dict[str, tuple[int, ...]]) -> None:
    layer = trial(place, rule, grad=False).layer
    assert {k: tuple(t.shape) for k, t in layer.weight.state_dict().items()} == expected
    assert {k.removeprefix("weight.") for k in layer.state_dict()} == set(expected)  # the neighbourhood has none


@main
def test_without_gradients_the_output_is_the_same(place: str, rule: str) -> None:
    """Case 12: training with dropout 0 and evaluation, with gradients, without, and in inference mode."""
    call = trial(place, rule, mask="batched", pair_mask="one")
    plain = trial(place, rule)
    for each in (call, plain):
        for kernel in kernels(each):
            each.layer.train()
            expected = {"output": each()}
            each.layer.eval()
            for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
                for _ in range(2):
                    with mode():
                        y = each()
                    agree({"output": y}, expected, torch.float64, f"{kernel}, {mode.__name__}")


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


@pytest.mark.parametrize(
    ("place", "rule"),
    [(p, r) for p, r in MAIN if p in ("Full", "Grid 2-D", "Graph at call", "Graph built", "AllTokens", "Window")],
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


@main
def test_a_remembered_call_keeps_no_tokens_alive(place: str, rule: str) -> None:
    call = trial(place, rule, grad=False)
    call()
    seen = [weakref.ref(t) for name, t in call.tensors.items() if name in ("source", "target", "edge_attr")]
    call.tensors = {}
    assert [r() for r in seen] == [None] * len(seen)
