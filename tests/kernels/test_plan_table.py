"""The plan as a table: a call in plain values → the kernel that runs it, on the CPU and on CUDA, with no GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from helpers.calls import trial
from helpers.plan_rows import TABLE
from mpnn import MessagePassing, attend, plan, use_kernels
from mpnn.kernels import KERNELS, Spec, edge_softmax, native, native_fft, padded, segment, spmm, triton_attention
from mpnn.neighbours import AllTokens, Full, Graph, Window
from mpnn.plan import NAMES, choose
from mpnn.weights import QKSoftmax, SharedKernel, Static


@pytest.fixture(autouse=True)
def everything_is_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The table of a machine with MKL, numba, torch_scatter and Triton; what was chosen is forgotten after."""
    for module in (spmm, edge_softmax):
        monkeypatch.setattr(module, "MKL", True)
    for module in (native, native_fft, padded, segment, triton_attention):
        monkeypatch.setattr(module, "INSTALLED", True)
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
    monkeypatch.setattr(triton_attention, "INSTALLED", False)
    plan._choose.cache_clear()
    chosen, reasons = choose(spec_of("Graph at call", "attention", {"device": "cuda", "dtype": "float32"}))
    assert chosen == "edge_softmax" and "pip install" in reasons["triton"][0]
    monkeypatch.setattr(native, "INSTALLED", False)
    plan._choose.cache_clear()
    chosen, reasons = choose(spec_of("Graph at call", "attention", {}))
    assert chosen == "edge_softmax" and reasons["native"] == ["numba is not installed: pip install 'mpnn[native]'"]
    many = {"edges": 100_000, "padded": 200_000}
    assert choose(spec_of("Graph at call", "attention", many))[0] == "edge_softmax"
    monkeypatch.setattr(padded, "INSTALLED", False)  # without native the dense batch is the faster one for longer
    plan._choose.cache_clear()
    assert choose(spec_of("Graph at call", "attention", many))[0] == "padded"
    assert choose(spec_of("Graph at call", "attention", many | {"padded": 301_000}))[0] == "edge_softmax"
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
    with pytest.raises(ValueError, match=r"got conv \(conv: .*sdpa, tiles, pairwise, reference can"):
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
    assert lines[2].startswith("→ tiles") and "FLOPs" in lines[2] and "double backward" in lines[2]
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


def test_a_slower_kernel_runs_where_it_is_named() -> None:
    spec = spec_of("Graph at call", "attention", {"edges": 100_000, "padded": 1_700_000})
    chosen, reasons = choose(spec)
    assert chosen == "native" and not padded.unsupported(spec)
    (why,) = reasons["padded"]
    assert "1,700,000 pairs as a dense batch, more than 1.5 for each of 100,000 edges, where native is faster" in why
    assert choose(spec, ("padded",))[0] == choose(spec, ("native", "padded"))[0] == "padded"
    assert choose(spec, ("native", "reference"))[1]["padded"] == reasons["padded"]
    dense = dataclasses.replace(spec, padded=100_000, targets=2_000, sources=2_000)
    for targets, grad, kernel in ((2_000, True, "padded"), (2_000, False, "native"), (700, False, "padded")):
        assert choose(dataclasses.replace(dense, targets=targets, sources=targets, grad=grad))[0] == kernel
    small = choose(dataclasses.replace(dense, targets=4_000, sources=4_000, grad=True))
    assert small[0] == "native" and "fewer than 48 sources each, where native is faster" in small[1]["padded"][0]
    gpu = dataclasses.replace(spec, device="cuda", padded=100_000)
    assert choose(gpu)[1]["padded"] == ["its speed on cuda is not measured; name it to have it"]
    assert choose(gpu, ("padded",))[0] == "padded"
