"""What needs a CUDA device: the kernels that run there, their agreement with the CPU, and that nothing N × N is made.

Without a device every test here is skipped with that reason (see conftest.py); the choice of kernels on CUDA is tested
as data in test_plan_table.py.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from mpnn import MessagePassing, attend
from mpnn.neighbours import AllTokens, Full, Graph, Grid, Window
from mpnn.weights import AdditiveScore, EdgeLearned, OffsetMLP, QKSoftmax, SharedKernel, Static

pytestmark = pytest.mark.gpu

EDGES = torch.tensor([[0, 1, 2, 2, 5, 5], [1, 1, 3, 3, 0, 0]])
CELLS = {
    "Full × Static": (lambda: MessagePassing(Full(6, 3), Static(4, 5)), "linear", {}),
    "Grid × SharedKernel": (lambda: MessagePassing(Grid((2, 3), 3), SharedKernel(4, 5)), "conv", {}),
    "AllTokens × QKSoftmax": (lambda: MessagePassing(AllTokens(), QKSoftmax(4, 2)), "sdpa", {}),
    "causal": (lambda: MessagePassing(AllTokens(causal=True), QKSoftmax(4, 2)), "sdpa", {}),
    "GCN": (
        lambda: MessagePassing(Graph(self_loops="add"), SharedKernel(4, 5, normalise="symmetric")),
        "spmm",
        {"edge_index": EDGES},
    ),
    "GAT": (
        lambda: MessagePassing(Graph(), EdgeLearned(4, 8, AdditiveScore(8, 2), heads=2, normalise="softmax")),
        "edge_softmax",
        {"edge_index": EDGES},
    ),
    "graph transformer": (lambda: MessagePassing(Graph(), QKSoftmax(4, 2)), "edge_softmax", {"edge_index": EDGES}),
    "window": (lambda: MessagePassing(Window(2, 0), QKSoftmax(4, 2)), "edge_softmax", {}),
    "continuous kernel": (lambda: MessagePassing(Grid((2, 3), 3), EdgeLearned(4, 5, OffsetMLP(2, 20))), None, {}),
}


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("masked", [False, True])
def test_a_layer_on_the_gpu_equals_itself_on_the_cpu(name: str, masked: bool) -> None:
    make, kernel, arguments = CELLS[name]
    layer = make().double()
    there = copy.deepcopy(layer).cuda()
    x = torch.randn(2, 6, 4, dtype=torch.float64)
    given = dict(arguments)
    if masked:
        given["mask"] = torch.tensor([True, True, False, True, True, True])
    moved = {k: v.cuda() for k, v in given.items()}
    results = []
    for module, tokens, call in ((layer, x, given), (there, x.cuda(), moved)):
        tokens = tokens.clone().requires_grad_()
        y = module(tokens, **call)
        gradients = torch.autograd.grad(y.square().sum(), (tokens, *module.parameters()))
        results.append([t.cpu() for t in (y, *gradients)])
    if kernel is not None:
        assert there.plan(x.cuda(), **moved).kernel == kernel
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_dense_attention_takes_flash_attention(causal: bool, dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, 4, 1024, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # any other path is an error here
        y = attend(q, k, v, AllTokens(causal=causal))
        y.sum().backward()
    assert torch.isfinite(q.grad).all()


@pytest.mark.parametrize("masked", [False, True])
def test_dense_attention_makes_no_square_tensor(masked: bool) -> None:
    tokens = 16_384
    layer = MessagePassing(AllTokens(), QKSoftmax(128, heads=2)).cuda().bfloat16()
    x = torch.randn(1, tokens, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    mask = torch.arange(tokens, device="cuda") < tokens - 100 if masked else None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    layer(x, mask=mask).sum().backward()
    square = tokens * tokens * 2
    assert torch.cuda.max_memory_allocated() - before < square / 2


def test_repeats_with_deterministic_algorithms_are_equal_bits() -> None:
    layer = MessagePassing(Graph(), SharedKernel(4, 4), kernel="reference").cuda()
    edge_index = torch.randint(0, 10, (2, 10_000), device="cuda")
    x = torch.randn(10, 4, device="cuda")
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(layer(x, edge_index), layer(x, edge_index))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_small_graphs_as_a_dense_batch_on_the_gpu(dtype: torch.dtype) -> None:
    """Written out in matrix products there, through the fused kernel on the CPU; parallel edges, nodes without any."""
    index = torch.cat([torch.randint(0, 9, (2, 40)) + 10 * g for g in range(7)], 1)
    inputs, grad = [torch.randn(2, 70, 8, dtype=dtype) for _ in range(3)], torch.randn(2, 70, 8, dtype=dtype)
    results = []
    for device in ("cpu", "cuda"):
        leaves = [t.to(device).requires_grad_() for t in inputs]
        y = attend(*leaves, Graph(index.to(device), 70), kernel="padded")
        results.append([t.cpu() for t in (y, *torch.autograd.grad(y, leaves, grad.to(device)))])
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=tolerance, atol=tolerance)
