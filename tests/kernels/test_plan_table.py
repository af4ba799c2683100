"""The plan as a table: a call in plain values → the kernel that runs it, on the CPU and on CUDA, with no GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from helpers.calls import trial
from mpnn import MessagePassing, attend, plan, use_kernels
from mpnn.kernels import KERNELS, Spec, edge_softmax, segment, spmm
from mpnn.neighbours import AllTokens, Full, Graph, Window
from mpnn.plan import NAMES, choose
from mpnn.weights import QKSoftmax, SharedKernel, Static

GPU = {"device": "cuda", "dtype": "bfloat16"}

# (place, rule): the spec of that case, then with what is changed in it, the kernel that runs.
TABLE: list[tuple[str, str, dict[str, Any], str]] = [
    # Dense attention.
    ("AllTokens", "attention", {}, "sdpa"),
    ("AllTokens", "attention", GPU, "sdpa"),
    ("AllTokens", "attention", GPU | {"dtype": "float32"}, "sdpa"),
    ("AllTokens", "attention", GPU | {"targets": 46_400, "sources": 46_400}, "sdpa"),
    ("AllTokens", "attention", GPU | {"batch": 70_000, "targets": 8, "sources": 8}, "sdpa"),
    ("AllTokens", "attention", GPU | {"mask": True}, "sdpa"),
    ("AllTokens", "attention", GPU | {"mask": True, "causal": True}, "sdpa"),
    ("AllTokens", "attention", GPU | {"pair_mask": True}, "sdpa"),
    ("AllTokens", "attention", GPU | {"dropout": 0.1, "grad": True}, "sdpa"),
    ("AllTokens", "attention", GPU | {"causal": True}, "sdpa"),
    ("AllTokens", "attention", GPU | {"causal": True, "square": False, "targets": 1}, "sdpa"),
    ("AllTokens", "attention", GPU | {"score_bias": "tensor"}, "sdpa"),
    ("AllTokens", "attention", GPU | {"compiling": True}, "sdpa"),
    ("AllTokens", "attention", GPU | {"transforms": ("grad",)}, "sdpa"),
    ("AllTokens", "attention", {"transforms": ("vmap", "grad")}, "sdpa"),
    ("AllTokens", "attention", {"transforms": ("jvp",)}, "reference"),
    ("AllTokens", "attention", GPU | {"transforms": ("grad", "jvp")}, "reference"),
    ("AllTokens", "attention", {"transforms": ("grad",), "dropout": 0.1}, "reference"),
    ("AllTokens", "attention", {"targets": 0, "sources": 0}, "reference"),
    ("AllTokens", "attention", {"ragged": True}, "reference"),
    ("AllTokens", "attention", {"score": True}, "reference"),
    ("AllTokens", "attention", {"score_bias": "edges"}, "reference"),
    ("AllTokens", "grouped queries", GPU, "sdpa"),
    ("AllTokens", "ALiBi", GPU, "sdpa"),
    ("AllTokens", "ALiBi", {"transforms": ("grad",)}, "reference"),
    ("AllTokens", "Rotary", GPU, "sdpa"),
    ("AllTokens", "TransformerConv", GPU, "reference"),
    ("AllTokens of two lengths", "attention", GPU, "sdpa"),
    ("Full", "attention", GPU, "sdpa"),
    ("Full of two numbers", "attention", GPU, "sdpa"),
    # One matrix product.
    ("Full", "Static", {}, "linear"),
    ("Full of two numbers", "Static", {}, "linear"),
    ("Full of two numbers", "Static", GPU, "linear"),
    ("Full of two numbers", "Static", {"compiling": True}, "linear"),
    ("Full of two numbers", "Static", {"transforms": ("jvp",)}, "linear"),
    ("Full of two numbers", "Static", {"mask": True}, "linear"),
    ("Full of two numbers", "Static", {"pair_mask": True}, "reference"),
    ("Full of two numbers", "Static", {"edge_weight": True}, "reference"),
    ("Full of two numbers", "Static groups", {}, "reference"),
    ("Full", "Static heads", {}, "linear"),
    ("Full", "Static heads", {"dtype": "bfloat16"}, "reference"),
    ("Full", "Static heads", GPU, "linear"),
    ("Full", "Static softmax", {}, "reference"),
    ("AllTokens max_tokens", "Static heads", {}, "linear"),
    ("AllTokens max_tokens", "Static", {}, "reference"),
    ("AllTokens causal max_tokens", "Static heads", {}, "reference"),
    # Convolutions.
    ("Grid 1-D", "SharedKernel", {}, "conv"),
    ("Grid 2-D", "SharedKernel", {}, "conv"),
    ("Grid 3-D", "SharedKernel", {}, "conv"),
    ("Grid 2-D", "SharedKernel", GPU, "conv"),
    ("Grid 2-D", "SharedKernel depthwise", GPU, "conv"),
    ("Grid 2-D", "SharedKernel", {"compiling": True}, "conv"),
    ("Grid 2-D", "SharedKernel", {"transforms": ("jvp", "vmap")}, "conv"),
    ("Grid 2-D", "SharedKernel", {"mask": True}, "conv"),
    ("Grid circular", "SharedKernel", {}, "conv"),
    ("Grid reflect", "SharedKernel", {}, "conv"),
    ("Grid 2-D", "SharedKernel", {"axes": 4}, "spmm"),
    ("Grid 2-D", "SharedKernel", {"pair_mask": True}, "spmm"),
    ("Grid 2-D clamp", "SharedKernel", {}, "spmm"),
    ("Grid 2-D clamp", "SharedKernel", {"compiling": True}, "reference"),
    ("Grid 2-D", "SharedKernel bases", {}, "spmm"),
    ("Grid 2-D", "SharedKernel heads", {}, "spmm"),
    ("Grid 2-D", "SharedKernel symmetric", {}, "spmm"),
    ("Grid 2-D", "SharedKernel mean", {}, "spmm"),
    ("Grid 2-D", "SharedKernel max", {}, "segment"),
    ("Grid 2-D", "Static", {}, "segment"),
    ("Grid 2-D", "Static heads", {}, "spmm"),
    # Sums over listed edges.
    ("Graph at call", "SharedKernel", {}, "spmm"),
    ("Graph at call", "SharedKernel symmetric", GPU | {"dtype": "float32"}, "spmm"),
    ("Graph at call", "SharedKernel", {"edge_weight": True, "mask": True, "pair_mask": True}, "spmm"),
    ("Graph at call", "SharedKernel", {"transforms": ("vmap", "grad")}, "spmm"),
    ("Graph at call", "SharedKernel", {"transforms": ("jvp",)}, "reference"),
    ("Graph at call", "SharedKernel", {"compiling": True}, "reference"),
    ("Graph at call", "fixed sum", {}, "spmm"),
    ("Graph at call", "fixed max", {}, "segment"),
    ("Graph at call", "fixed max", {"compiling": True}, "reference"),
    ("Graph relations", "SharedKernel relation", {}, "spmm"),
    ("Graph built", "Static heads", {}, "spmm"),
    ("Graph at call", "CFConv", {}, "segment"),
    ("Graph at call", "NNConv", {}, "segment"),
    ("Graph at call", "NNConv", {"edges": 20_000, "channels": 64, "out_channels": 64}, "reference"),
    ("Window", "SharedKernel", {}, "spmm"),
    ("own", "SharedKernel", {}, "reference"),
    ("own listed", "SharedKernel", {}, "spmm"),
    # Attention over listed edges.
    ("Graph at call", "attention", {}, "edge_softmax"),
    ("Graph at call", "attention", GPU, "edge_softmax"),
    ("Graph at call", "attention", {"dropout": 0.1, "grad": True}, "edge_softmax"),
    ("Graph at call", "attention", {"score_bias": "edges", "score": True}, "edge_softmax"),
    ("Graph at call", "attention", {"compiling": True}, "reference"),
    ("Graph at call", "attention", {"transforms": ("jvp",)}, "reference"),
    ("Graph at call", "TransformerConv", {}, "segment"),
    ("Graph of two sets", "attention", {}, "edge_softmax"),
    ("Graph loops replaced", "GAT", {}, "edge_softmax"),
    ("Graph loops replaced", "GAT edges", GPU, "edge_softmax"),
    ("Graph of two sets", "GAT", {}, "segment"),
    ("Graph at call", "GATv2", {}, "segment"),
    ("Grid 2-D clamp", "attention", {}, "edge_softmax"),
    ("Window", "attention", {}, "edge_softmax"),
    ("Window", "ALiBi", GPU, "edge_softmax"),
    ("own listed", "attention", {}, "edge_softmax"),
    ("own", "attention", {}, "reference"),
    # What only the reference does.
    ("AllTokens", "GAT", {}, "reference"),
    ("AllTokens", "own score", GPU, "reference"),
    ("AllTokens max_tokens", "SharedKernel", {}, "reference"),
    ("Full", "SharedKernel", {}, "reference"),
    ("Full", "NNConv", {}, "reference"),
]


@pytest.fixture(autouse=True)
def everything_is_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The table of a machine with MKL and torch_scatter; what was chosen is forgotten before and after."""
    for module in (spmm, edge_softmax):
        monkeypatch.setattr(module, "MKL", True)
    monkeypatch.setattr(segment, "INSTALLED", True)
    plan._choose.cache_clear()
    yield
    plan._choose.cache_clear()


def spec_of(place: str, rule: str, changes: dict[str, Any]) -> Spec:
    return dataclasses.replace(trial(place, rule, grad=False).plan().spec, **changes)


@pytest.mark.parametrize(("place", "rule", "changes", "kernel"), TABLE)
def test_table(place: str, rule: str, changes: dict[str, Any], kernel: str) -> None:
    spec = spec_of(place, rule, changes)
    chosen, reasons = choose(spec)
    assert chosen == kernel, reasons
    assert choose(spec) == (chosen, reasons)
    for name in NAMES[: NAMES.index(kernel)]:
        assert reasons[name] and all(len(text) > 5 for text in reasons[name]), f"no words against {name}"
    assert kernel not in reasons


@pytest.mark.parametrize(("place", "rule", "changes", "kernel"), TABLE)
def test_a_forced_kernel_runs_or_gives_every_reason(place: str, rule: str, changes: dict, kernel: str) -> None:
    spec = spec_of(place, rule, changes)
    for module in KERNELS:
        why = module.unsupported(spec)
        if not why:
            assert choose(spec, (module.name,))[0] == module.name
            continue
        with pytest.raises(ValueError, match=f"expected a kernel that can run {spec.neighbours} × {spec.weight}") as e:
            choose(spec, (module.name,))
        assert all(text in str(e.value) for text in why) and "reference" in str(e.value)


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of("Graph at call", "fixed max", {})
    monkeypatch.setattr(segment, "INSTALLED", False)
    plan._choose.cache_clear()
    chosen, reasons = choose(spec)
    assert chosen == "reference" and "pip install" in reasons["segment"][0]
    for module, rule in ((spmm, "SharedKernel heads"), (edge_softmax, "attention")):
        monkeypatch.setattr(module, "MKL", False)
        plan._choose.cache_clear()
        assert choose(spec_of("Graph at call", rule, {}))[0] == "reference"
        assert choose(spec_of("Graph at call", rule, {"device": "cuda"}))[0] == module.name


def test_the_reference_runs_everything() -> None:
    for place, rule, changes, _ in TABLE:
        assert choose(spec_of(place, rule, changes), ("reference",))[0] == "reference"


def test_a_forced_layer_never_falls_back() -> None:
    x = torch.ones(3, 4)
    layer = MessagePassing(AllTokens(), QKSoftmax(4, 2), kernel="linear")
    with pytest.raises(ValueError, match="linear: needs Full or AllTokens with Static"):
        layer(x)
    with pytest.raises(ValueError, match="linear: needs Full or AllTokens with Static"):
        layer.plan(x)
    with pytest.raises(ValueError, match=r"got conv \(conv: .*sdpa, reference can"):
        attend(x[None], x[None], x[None], AllTokens(), kernel="conv")
    free = MessagePassing(AllTokens(), QKSoftmax(4, 2))
    with use_kernels("spmm", "linear"), pytest.raises(ValueError, match="got spmm or linear"):
        free(x)
    assert free.plan(x).kernel == "sdpa"  # nothing is left of it
    with use_kernels("reference"):
        assert MessagePassing(AllTokens(), QKSoftmax(4, 2), kernel="sdpa").plan(x).kernel == "sdpa"  # its own wins
        with use_kernels("sdpa", "reference"):
            assert free.plan(x).kernel == "sdpa"
        assert free.plan(x).kernel == "reference"
        assert free.plan(x).reasons["sdpa"] == ["only reference may run here"]


@pytest.mark.parametrize(
    "make",
    [
        lambda name: MessagePassing(AllTokens(), QKSoftmax(4, 2), kernel=name),
        lambda name: use_kernels("linear", name).__enter__(),
        lambda name: attend(*[torch.ones(2, 3, 4)] * 3, AllTokens(), kernel=name),
    ],
)
def test_unknown_kernels_list_the_known_ones(make: Any) -> None:
    with pytest.raises(ValueError, match="did you mean 'sdpa'") as e:
        make("spda")
    assert all(repr(name) in str(e.value) for name in NAMES)
    with pytest.raises(ValueError, match="expected kernel to be one of") as e:
        make("zzz")
    assert "did you mean" not in str(e.value)


def test_a_plan_reads_like_explain() -> None:
    layer = MessagePassing(Window(2, 0), QKSoftmax(64, heads=4))
    made = layer.plan(torch.ones(8, 100, 64))
    lines = str(made).splitlines()
    assert "Window × QKSoftmax" in lines[0] and "batch 8, 100 targets × 100 sources, 297 edges" in lines[0]
    assert lines[1] == "64 → 64 channels, 4 heads, float32 on cpu"
    assert lines[2].startswith("→ edge_softmax") and "FLOPs" in lines[2] and "double backward" in lines[2]
    against = dict(line.removeprefix("  not ").split(": ", 1) for line in lines[3:])
    assert set(against) == set(made.reasons) and "every pair of tokens" in against["sdpa"]
    assert all(len(line) < 500 for line in lines)


def test_a_plan_counts() -> None:
    dense = MessagePassing(Full(784, 256), Static()).plan(torch.ones(128, 784, 1))
    assert (dense.kernel, dense.edges, dense.flops) == ("linear", 784 * 256, 2 * 128 * 784 * 256)
    assert dense.bytes == 4 * (128 * (784 + 256) + 784 * 256 + 256)
    edges = torch.randint(0, 50, (2, 300))
    sparse = MessagePassing(Graph(self_loops="replace"), SharedKernel(16, 8, bias=False)).plan(
        torch.ones(50, 16), edges
    )
    loops = int((edges[0] == edges[1]).sum())
    assert sparse.edges == 300 - loops + 50
    attention = MessagePassing(AllTokens(), QKSoftmax(64, 8)).plan(torch.ones(2, 100, 64))
    assert attention.edges == 100 * 100 and attention.flops == 2 * 2 * 100 * 100 * (64 + 64)
    large = MessagePassing(AllTokens(), QKSoftmax(4, 2)).plan(torch.ones(1_000_000, 4))  # lists no pair
    assert large.edges == 10**12
    with pytest.raises(TypeError, match="unexpected argument 'edge_wait'"):
        MessagePassing(AllTokens(), QKSoftmax(4, 2)).plan(torch.ones(3, 4), edge_wait=1)


def test_names_are_unique_and_reasons_are_plain() -> None:
    assert len(set(NAMES)) == len(KERNELS) and NAMES[-1] == "reference"
    spec = spec_of("AllTokens", "attention", {})
    assert all(isinstance(v, str | int | float | bool | tuple | None) for v in dataclasses.asdict(spec).values())
    assert hash(spec) == hash(dataclasses.replace(spec))
