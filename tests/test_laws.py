"""Laws that hold for every pair of rules, on every kernel that can run the call: masks, batches, order, time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from helpers.calls import Trial, kernels, product, trial
from helpers.cases import PLACES
from helpers.compare import agree, run
from helpers.over import over
from mpnn.neighbours import AllTokens, Window

FEW = product("few")
few = over(FEW)
main = over(product("main"))
in_batches = over([(p, r) for p, r in product("main") if not PLACES[p].alone])
GRAPHS = ("Graph at call", "Graph loops added", "Graph relations", "Graph of two sets")
graphs = over([(p, r) for p, r in FEW if p in GRAPHS])
COUNTED = ("ALiBi", "Rotary")  # the sources' positions are counted where there are two sets: they belong to no token


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


@over([(p, r) for p, r in FEW if p in GRAPHS and not (PLACES[p].targets and r in COUNTED)])
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
