"""The Triton kernel in Triton's interpreter, on the CPU: test_triton.py runs these in a process of their own, since the
interpreter is chosen when Triton is imported."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from helpers.attention import VARIANTS, Attention
from helpers.calls import trial
from helpers.compare import agree, run
from mpnn import attend, plan, use_kernels
from mpnn.cuda import lines
from mpnn.kernels import merge, triton_attention
from mpnn.neighbours import Graph, Window
from mpnn.plan import NAMES

BIASED = [name for name in VARIANTS if name in ("bias of edges", "ALiBi", "RelativeBias")]
HUB = torch.stack(
    [torch.cat([torch.arange(20), torch.full((20,), 7)]), torch.cat([torch.full((20,), 5), torch.arange(20)])]
)
GRAPHS = {
    "a hub that sends and one that hears": (HUB, (20, 20)),
    "empty rows": (torch.tensor([[0, 1, 4], [4, 4, 0]]), (6, 6)),
    "duplicates": (torch.tensor([[1, 1, 1, 0, 2, 2], [0, 0, 0, 0, 3, 3]]), (4, 4)),
    "no edges": (torch.empty(2, 0, dtype=torch.int64), (3, 3)),
    "two sets": (torch.tensor([[6, 6, 0, 3], [0, 0, 1, 1]]), (7, 2)),
    "no targets": (torch.empty(2, 0, dtype=torch.int64), (3, 0)),
    "32-bit indices": (torch.tensor([[0, 1, 2], [2, 2, 0]], dtype=torch.int32), (3, 3)),
}


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Allowed on the CPU, eight edges at a time and seventeen in a piece, so that a row of twenty takes four rounds."""
    monkeypatch.setattr(triton_attention, "DEVICES", ("cuda", "cpu"))
    monkeypatch.setattr(triton_attention, "TILE", 1)
    monkeypatch.setattr(lines, "LONG", 17)
    plan._choose.cache_clear()
    yield
    plan._choose.cache_clear()


def tensors(sources: int, targets: int, heads: int, kv: int, width: int, own: int, dtype: torch.dtype) -> list[Tensor]:
    shapes = (2, heads, targets, width), (2, kv, sources, width), (2, kv, sources, own)
    return [torch.randn(s, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]


def both(q: Tensor, k: Tensor, v: Tensor, rule: Graph | Window, dtype: torch.dtype, **given: object) -> None:
    leaves = {"q": q, "k": k, "v": v}
    results = [run(lambda n=name: attend(q, k, v, rule, kernel=n, **given), leaves) for name in ("triton", "reference")]
    agree(*results, dtype)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize(("width", "own"), [(8, 8), (5, 3), (1, 20)])
def test_graphs(name: str, width: int, own: int) -> None:
    index, (sources, targets) = GRAPHS[name]
    rule = Graph(index, sources if sources == targets else (sources, targets))
    both(*tensors(sources, targets, 2, 2, width, own, torch.float32), rule, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    both(*tensors(9, 9, 4, 2, 6, 6, dtype), Window(2), dtype)


def test_sums_of_half_precision_are_float32() -> None:
    """Right to the last bit: a thousand equal weights of 1/1000 on ones."""
    k = torch.zeros(1, 1000, 4, dtype=torch.bfloat16)
    rule = Graph(torch.stack([torch.arange(1000), torch.zeros(1000, dtype=torch.int64)]), (1000, 2))
    y = attend(k[:, :2], k, torch.ones_like(k), rule, kernel="triton")
    assert torch.equal(y[0], torch.tensor([[1.0], [0.0]], dtype=torch.bfloat16).expand(2, 4))


def test_large_scores_do_not_overflow() -> None:
    """Scores of some thousands have an error of 1e-3 in float32, and so have the weights."""
    q, k, v = tensors(6, 6, 1, 1, 4, 4, torch.float32)
    found = []
    for kernel in ("triton", "reference"):
        y = attend(q, k, v, Window(2, 1), scale=1000.0, kernel=kernel)
        found.append([y, *torch.autograd.grad(y.sum(), (v,))])
    torch.testing.assert_close(*found, rtol=1e-2, atol=1e-2)


def test_as_many_edges_together_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(triton_attention, "DEVICES", ("cuda", "cpu"))
    plan._choose.cache_clear()
    index = torch.stack([torch.arange(150) % 3, torch.zeros(150, dtype=torch.int64)])  # 64, 64, 22 edges
    both(*tensors(3, 2, 1, 1, 4, 4, torch.float32), Graph(index, (3, 2)), torch.float32)


def test_layouts_are_read_where_they_lie() -> None:
    """Heads beside one another, as layers have them; every second channel; an upstream gradient of stride 0."""
    parts = [torch.randn(2, 9, 3, 16).transpose(1, 2)[..., :8], torch.randn(2, 3, 9, 16)[..., ::2], torch.randn(8)]
    parts[2] = parts[2].expand(2, 3, 9, 8)
    found = []
    for kernel in ("triton", "reference"):
        given = [t.detach().requires_grad_() for t in parts]
        y = attend(*given, Window(3, 0), kernel=kernel)
        found.append([y, *torch.autograd.grad(y.sum(), given)])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("place", ["Graph built", "Window dilated"])
@pytest.mark.parametrize("variant", [v for v in VARIANTS if v not in (*BIASED, "bias", "one bias", "score")])
def test_every_variant_of_attend(place: str, variant: str) -> None:
    call = Attention(place, variant, torch.float32)
    agree(*(run(lambda n=name: call(kernel=n), call.leaves) for name in ("triton", "reference")), torch.float32)


@pytest.mark.parametrize("place", ["Graph built", "Window"])
@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "score"])
def test_biases_without_a_gradient(place: str, variant: str) -> None:
    if variant == "bias of edges" and place == "Window":
        pytest.skip("a bias per edge belongs to a Graph")
    call = Attention(place, variant, torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(call(kernel="triton"), call(kernel="reference"))


@pytest.mark.parametrize("variant", ["bias", "RelativeBias"])
def test_a_bias_that_wants_a_gradient_goes_elsewhere(variant: str) -> None:
    call = Attention("Window", variant, torch.float32)
    assert "triton" not in call.able(NAMES)
    for t in "qkv":
        call.leaves[t] = call.leaves[t].detach()
    assert "triton" not in call.able(NAMES)
    with torch.no_grad():
        assert "triton" in call.able(NAMES)


@pytest.mark.parametrize("rule", ["attention", "grouped queries", "Rotary"])
@pytest.mark.parametrize("place", ["Graph at call", "Graph of two sets", "Window"])
@pytest.mark.parametrize("masks", [{}, {"mask": "batched", "pair_mask": "heads"}, {"mask": "all"}])
def test_layers(place: str, rule: str, masks: dict[str, str]) -> None:
    call = trial(place, rule, dtype=torch.float32, **masks)
    found = []
    for kernel in ("triton", "reference"):
        with use_kernels(kernel):
            found += [run(call, call.leaves, twice=True), run(call, call.leaves)]
    agree(found[0], found[2], torch.float32)
    agree(found[1], found[3], torch.float32)


def test_parts_of_a_union(monkeypatch: pytest.MonkeyPatch) -> None:
    """Joined by log-sum-exp: the backward with the joint output."""
    monkeypatch.setattr(merge, "PARTS", [triton_attention])
    rule = Window(1) | Graph(torch.randint(0, 8, (2, 20)), 8)
    leaves = dict(zip("qkv", tensors(8, 8, 2, 2, 4, 3, torch.float32), strict=True))
    mask = torch.arange(8) != 3
    results = [
        run(lambda n=name: attend(*leaves.values(), rule, mask=mask, kernel=n), leaves)
        for name in ("merge", "reference")
    ]
    agree(*results, torch.float32)


def test_transforms() -> None:
    q, k, v = (t.detach() for t in tensors(5, 5, 2, 2, 4, 3, torch.float32))
    more = torch.randn(3, *q.shape)
    results = []
    for kernel in ("triton", "reference"):
        call = lambda q, n=kernel: attend(q, k, v, Window(1), kernel=n).square().sum()  # noqa: E731
        results.append(
            [torch.func.vmap(call)(more), torch.func.vmap(torch.func.grad(call))(more), torch.func.grad(call)(q)]
        )
    torch.testing.assert_close(*results)


def test_masked_tokens_leave_no_trace() -> None:
    found = []
    for fill in (0.0, 1e10, float("inf"), float("nan")):
        torch.manual_seed(0)
        q, k, v = (t.detach() for t in tensors(6, 6, 2, 2, 4, 4, torch.float32))
        mask = torch.tensor([True, True, False, True, True, True])
        k[:, :, 2], v[:, :, 2] = fill, fill
        given = [t.requires_grad_() for t in (q, k, v)]
        y = attend(*given, Window(2), mask=mask, kernel="triton")
        found.append([y, *torch.autograd.grad(y.square().sum(), given)])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
