"""One layer called by several threads at once: each gets its own outputs and gradients."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from mpnn import MessagePassing, use_kernels
from mpnn.neighbours import AllTokens, Graph, Window
from mpnn.positions import RelativeBias
from mpnn.weights import AdditiveScore, EdgeLearned, QKSoftmax, SharedKernel

EDGES = torch.tensor([[e * 7 % 12 for e in range(40)], [e * 5 % 12 for e in range(40)]])
LAYERS = {
    "all": (lambda: MessagePassing(AllTokens(), QKSoftmax(8, 2)), ()),
    "learned bias": (lambda: MessagePassing(Window(3), QKSoftmax(8, 2, score_bias=RelativeBias.offsets(2, 3))), ()),
    "graph": (lambda: MessagePassing(Graph(), QKSoftmax(8, 2)), (EDGES,)),
    "GCN": (lambda: MessagePassing(Graph(self_loops="add"), SharedKernel(8, 8, normalise="symmetric")), (EDGES,)),
    "GAT": (
        lambda: MessagePassing(Graph(), EdgeLearned(8, 8, AdditiveScore(8, 2), heads=2, normalise="softmax")),
        (EDGES,),
    ),
}


@pytest.fixture(autouse=True)
def turns_are_short() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def step(layer: MessagePassing, x: Tensor, edges: tuple[Tensor, ...]) -> list[Tensor]:
    x = x.requires_grad_()
    y = layer(x, *edges)
    return [y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])]


@pytest.mark.parametrize("block", [None, 64], ids=["whole", "in blocks"])
@pytest.mark.parametrize("name", LAYERS)
def test_threads_do_not_meet(name: str, block: int | None) -> None:
    make, edges = LAYERS[name]
    layer = make()
    tokens = [torch.randn(2, 12, 8) for _ in range(8)]
    kernels = () if block is None else ("reference",)
    with use_kernels(*kernels, block=block):
        expected = [step(layer, x, edges) for x in tokens]
        found: dict[tuple[int, int], list[Tensor]] = {}
        errors: list[Exception] = []

        def work(thread: int) -> None:
            for i, x in enumerate(tokens):
                try:
                    found[thread, i] = step(layer, x.detach().clone(), edges)
                except RuntimeError as error:
                    errors.append(error)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors
    for (_, i), tensors in found.items():
        for a, b in zip(tensors, expected[i], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
