"""Attention on a CUDA device: `triton` and `flex` against the reference, what they keep in memory, and case 46, where
counts pass what one launch or 32-bit numbers hold. Without a device every test is skipped with that reason."""

from __future__ import annotations

import pytest
import torch

from helpers.compare import agree, run
from mpnn import MessagePassing, attend
from mpnn.neighbours import AllTokens, Graph, Grid, Neighbours, Window
from mpnn.weights import QKSoftmax

pytestmark = pytest.mark.gpu

EDGES = torch.tensor([[0, 1, 2, 2, 5, 5], [1, 1, 3, 3, 0, 0]])


def power_law(nodes: int, edges: int) -> torch.Tensor:
    """A few hubs, many nodes that hear nobody, and duplicates."""
    ends = torch.rand(2, edges).pow(4) * nodes
    return ends.long().clamp(max=nodes - 1)


LISTED: dict[str, tuple[Neighbours, int, int]] = {
    "power law": (Graph(power_law(500, 4_000), 500), 500, 500),
    "two sets": (Graph(torch.tensor([[6, 6, 0, 3], [0, 0, 1, 1]]), (7, 3)), 3, 7),
    "no edges": (Graph(torch.empty(2, 0, dtype=torch.int64), 4), 4, 4),
    "circular grid": (Grid((12, 13), 3, border="circular"), 156, 156),
    "window": (Window(20, 3), 300, 300),
}
BOXES: dict[str, tuple[Neighbours, int, int]] = {
    "window": (Window(20), 300, 300),
    "causal window": (Window(130, 0), 1000, 1000),
    "fewer targets": (Window(9, 2), 40, 200),
    "targets without a source": (Window(1), 200, 50),
    "dilated window": (Window(3, dilation=5), 200, 200),
    "plane": (Grid((15, 18), 5), 270, 270),
    "clamped plane": (Grid((12, 14), 3, dilation=2, border="clamp"), 168, 168),
}


def equal_the_reference(
    kernel: str, place: tuple[Neighbours, int, int], dtype: torch.dtype, masked: bool, width: int
) -> None:
    """Values, gradients, in float32 gradients of these too, and values without gradients."""
    rule, targets, sources = place
    shapes = {"q": (2, 4, targets, width), "k": (2, 2, sources, width), "v": (2, 2, sources, 24)}
    leaves = {n: torch.randn(s, device="cuda").to(dtype).requires_grad_() for n, s in shapes.items()}
    mask = torch.rand(2, sources, device="cuda") < 0.7 if masked else None
    call = lambda name: attend(*leaves.values(), rule.cuda(), mask=mask, kernel=name)  # noqa: E731
    twice = dtype == torch.float32
    expected, what = run(lambda: call("reference"), leaves, twice), f"{kernel}, {rule}, masked {masked}"
    agree(run(lambda: call(kernel), leaves, twice), expected, dtype, what)
    with torch.no_grad():
        agree({"output": call(kernel)}, {"output": expected["output"]}, dtype, f"{what}, without gradients")


@pytest.mark.parametrize("name", LISTED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_triton_equals_the_reference(name: str, dtype: torch.dtype) -> None:
    for masked, width in ((False, 16), (True, 16), (True, 5)):
        equal_the_reference("triton", LISTED[name], dtype, masked, width)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_flex_equals_the_reference(dtype: torch.dtype) -> None:
    """All rules in one test, since what torch.compile made is forgotten after each; torch's default is no TF32."""
    few = ("window", "clamped plane")
    for name, place in BOXES.items():
        if dtype == torch.float32 or name in few:
            for masked in (False, True) if name in few else (False,):
                equal_the_reference("flex", place, dtype, masked, 40)


def test_a_layer_chooses_them() -> None:
    layer, x = MessagePassing(Window(8), QKSoftmax(64, 2)).cuda(), torch.ones(1, 40, 64, device="cuda")
    assert layer.plan(x).kernel == "flex"
    assert MessagePassing(Window(8), QKSoftmax(64, 8)).cuda().plan(x).kernel == "triton"  # heads of 8 channels
    graph = MessagePassing(Graph(), QKSoftmax(64, 2)).cuda()
    assert graph.plan(x, torch.zeros(2, 3, dtype=torch.int64, device="cuda")).kernel == "triton"


def test_graph_attention_repeats_to_the_last_bit() -> None:
    rule = Graph(power_law(5_000, 100_000), 5_000).cuda()
    q, k, v = (torch.randn(4, 5_000, 16, device="cuda", requires_grad=True) for _ in range(3))
    found = []
    for _ in range(3):
        y = attend(q, k, v, rule, kernel="triton")
        found.append([y, *torch.autograd.grad(y.square().sum(), (q, k, v))])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_transforms_of_graph_attention() -> None:
    rule = Graph(EDGES, 6).cuda()
    q, k, v = (torch.randn(3, 2, 6, 8, device="cuda") for _ in range(3))
    results = []
    for kernel in ("triton", "reference"):
        call = lambda q, k, v, n=kernel: attend(q, k, v, rule, kernel=n).square().sum()  # noqa: E731
        results.append([torch.func.vmap(call)(q, k, v), torch.func.vmap(torch.func.grad(call))(q, k, v)])
    torch.testing.assert_close(*results)


def peak(call) -> int:  # type: ignore[no-untyped-def]
    """Bytes above what was there before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def test_windows_make_no_square_tensor() -> None:
    tokens = 65_536
    q, k, v = (torch.randn(1, 2, tokens, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in "qkv")
    used = peak(lambda: attend(q, k, v, Window(256, 0), kernel="flex").sum().backward())
    assert used < 40 * q.numel() * q.element_size() < tokens * tokens / 8  # tens of tokens × channels


def test_graphs_make_no_tensor_over_edges_and_channels() -> None:
    edges, nodes = 2_000_000, 20_000
    rule = Graph(torch.randint(0, nodes, (2, edges)), nodes).cuda()
    q, k, v = (torch.randn(4, nodes, 16, device="cuda", requires_grad=True) for _ in "qkv")
    attend(q, k, v, rule, kernel="triton").sum().backward()  # rows and their transpose are made once
    assert peak(lambda: attend(q, k, v, rule, kernel="triton").sum().backward()) < edges * 4 * 4


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_seventy_thousand_sequences_of_eight(causal: bool, masked: bool) -> None:
    """Case 46: more batch entries than one launch takes."""
    q, k, v = (torch.randn(70_000, 2, 8, 16, device="cuda", requires_grad=True) for _ in "qkv")
    mask = torch.rand(70_000, 8, device="cuda") < 0.7 if masked else None
    rule = AllTokens(causal=causal)
    y = attend(q, k, v, rule, mask=mask, kernel="sdpa")
    grads = torch.autograd.grad(y.square().sum(), (q, k, v))
    for a in range(0, 70_000, 10_000):
        at = slice(a, a + 10_000)
        part = [t[at].detach().requires_grad_() for t in (q, k, v)]
        wanted = attend(*part, rule, mask=None if mask is None else mask[at], kernel="reference")
        torch.testing.assert_close(y[at], wanted, rtol=1e-4, atol=1e-4)
        for mine, theirs in zip(grads, torch.autograd.grad(wanted.square().sum(), part), strict=True):
            torch.testing.assert_close(mine[at], theirs, rtol=1e-3, atol=1e-3)


def test_seventy_thousand_ragged_sequences() -> None:
    """Case 46 without padding: 560,000 tokens, whose square would be 300 billion pairs."""
    batch = torch.arange(70_000, device="cuda").repeat_interleave(8)
    q, k, v = (torch.randn(2, len(batch), 16, device="cuda", requires_grad=True) for _ in "qkv")
    y = attend(q, k, v, AllTokens(), batch=batch, kernel="flex")
    grads = torch.autograd.grad(y.square().sum(), (q, k, v))
    split = [t.detach().unflatten(1, (70_000, 8)).transpose(0, 1).requires_grad_() for t in (q, k, v)]
    wanted = attend(*split, AllTokens())
    back = torch.autograd.grad(wanted.square().sum(), split)
    for mine, theirs in zip((y, *grads), (wanted, *back), strict=True):
        torch.testing.assert_close(mine, theirs.transpose(0, 1).flatten(1, 2), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("rule", [AllTokens(), AllTokens(causal=True), Window(1_000, 0)])
def test_a_sequence_of_46_400(rule: Neighbours) -> None:
    """Case 46: N² is beyond 32-bit numbers. Rows of the result against these rows alone, and no N × N tensor."""
    tokens = 46_400
    q, k, v = (torch.randn(1, tokens, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in "qkv")
    used = peak(lambda: attend(q, k, v, rule).sum().backward())
    assert used < tokens * tokens / 8
    y = attend(q, k, v, rule)
    for first in (0, 23_111, tokens - 100):
        rows = slice(first, first + 100)
        scores = (q[0, rows].float() @ k[0].float().T) / 32**0.5
        edges = rule.edges(tokens, tokens, rows=rows)
        sees = torch.zeros(100, tokens, dtype=torch.bool)
        sees[edges.target - first, edges.source] = True
        wanted = torch.softmax(scores.masked_fill(~sees.cuda(), -torch.inf), -1) @ v[0].float()
        torch.testing.assert_close(y[0, rows].float(), wanted, rtol=0.02, atol=0.02)
