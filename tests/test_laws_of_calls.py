"""Laws of how a call is made: strides, integer dtypes, gradients or none, copies, listeners; nothing is written to."""

from __future__ import annotations

import copy
import pickle

import torch
from torch import Tensor, nn

from helpers.calls import Trial, kernels, product, trial
from helpers.cases import PLACES
from helpers.compare import agree, run
from helpers.over import over
from mpnn import capture_weights, trace_kernels
from mpnn.neighbours import Graph

main = over(product("main"))
in_batches = over([(p, r) for p, r in product("main") if not PLACES[p].alone])


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
