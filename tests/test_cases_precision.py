"""Cases 25 to 27: half precision, double precision and autocast, on every kernel that can run them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.calls import product, trial
from helpers.over import over
from kernel_choice import able, on_each
from mpnn import MessagePassing, attend, use_kernels
from mpnn.models import CNN, GNN, MLP, Transformer
from mpnn.neighbours import AllTokens, Full, Graph, Grid, Window
from mpnn.positions import ALiBi, RelativeBias, Rotary, ScoreBias, Sinusoidal
from mpnn.weights import AdditiveScore, EdgeLearned, QKSoftmax, SharedKernel, Static

HALVES = (torch.float16, torch.bfloat16)
STAR = torch.stack([torch.arange(4096), torch.zeros(4096, dtype=torch.int64)])


def ones(pairs: Any) -> Tensor:
    return torch.ones(len(pairs), 1, dtype=pairs.x_source.dtype)


MEANS = {
    "fixed": lambda: SharedKernel(1, 1, fixed=True, reduce="mean", bias=False),
    "shared": lambda: SharedKernel(1, 1, reduce="mean", bias=False),
    "heads": lambda: SharedKernel(1, 1, heads=1, value=False, reduce="mean", bias=False),
    "network": lambda: EdgeLearned(1, 1, ones, reduce="mean", bias=False),
    "network heads": lambda: EdgeLearned(1, 1, ones, heads=1, value=False, reduce="mean", bias=False),
    "relation": lambda: SharedKernel(1, 1, normalise="relation", bias=False),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("rule", MEANS)
def test_case_25_the_mean_of_many_ones(rule: str, dtype: torch.dtype) -> None:
    layer = MessagePassing(Graph(), MEANS[rule]()).to(dtype)
    for parameter in layer.parameters():
        nn.init.ones_(parameter)
    x = torch.ones(4096, 1, dtype=dtype, requires_grad=True)
    for kernel in able(layer, x, STAR):
        with use_kernels(kernel):
            y = layer(x, STAR)
        assert y.dtype == dtype and y[0].item() == 1.0 and not y[1:].any(), kernel
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert gradient.eq(1 / 4096).all(), kernel


@pytest.mark.parametrize("dtype", HALVES)
def test_case_25_degrees_of_many_edges(dtype: torch.dtype) -> None:
    """y_0 = 4,095 / √(4096 · 1) from the others, 1 / 4096 from its own loop."""
    layer = MessagePassing(Graph(self_loops="add"), SharedKernel(1, 1, normalise="symmetric", bias=False)).to(dtype)
    nn.init.ones_(layer.weight.weight)
    x = torch.ones(4096, 1, dtype=dtype)
    for kernel in able(layer, x, STAR):
        with use_kernels(kernel):
            assert layer(x, STAR)[0].item() == torch.tensor(4095 / 64 + 1 / 4096, dtype=dtype).item(), kernel


FIVE_TWELVE = torch.stack([torch.arange(512), torch.zeros(512, dtype=torch.int64)])
EQUAL: dict[str, tuple[Any, Any]] = {
    "attention": (AllTokens(), lambda: QKSoftmax(2, 2, bias=False, output=False)),
    "fixed set": (Full(512), lambda: QKSoftmax(2, 2, bias=False, output=False)),
    "window": (Window(511), lambda: QKSoftmax(2, 2, bias=False, output=False)),
    "graph": (Graph(FIVE_TWELVE, 512), lambda: QKSoftmax(2, 2, bias=False, output=False)),
    "additive": (Graph(FIVE_TWELVE, 512), lambda: EdgeLearned(2, 2, AdditiveScore(2, 2), heads=2, normalise="softmax")),
    "mixing": (AllTokens(max_tokens=512), lambda: Static(2, 2, heads=2, normalise="softmax", bias=False)),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", EQUAL)
def test_case_25_many_equal_scores(name: str, dtype: torch.dtype) -> None:
    rule, weight = EQUAL[name]
    layer = MessagePassing(rule, weight()).to(dtype)
    for part, parameter in layer.named_parameters():
        nn.init.ones_(parameter) if "value" in part else nn.init.zeros_(parameter)
    x = torch.ones(512, 2, dtype=dtype)
    for kernel in able(layer, x):
        with use_kernels(kernel), torch.no_grad():
            y, edges = layer(x, return_weights=True)
        assert y.dtype == edges.weight.dtype == dtype
        assert edges.weight[edges.target == 0].eq(1 / 512).all(), kernel
        assert y[0].tolist() == [2.0, 2.0], kernel


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("form", ["tensor", "module"])
@pytest.mark.parametrize("rule", [AllTokens(causal=True), Window(7, 0)], ids=str)
def test_case_26_a_row_that_causal_and_padding_block(rule: Any, form: str, dtype: torch.dtype) -> None:
    class Sixteen(ScoreBias):
        heads = 2

        def forward(self, target: Tensor, source: Tensor) -> Tensor:
            sign = 1 - 2 * ((target + source) % 2)
            return torch.stack([16.0 * sign, -16.0 * sign], -1)

    place = torch.arange(6)
    dense = Sixteen()(place[:, None], place).movedim(-1, 0).to(dtype)
    q, k, v = (torch.randn(2, 2, 6, 4).to(dtype).requires_grad_() for _ in range(3))
    mask = torch.tensor([[False, False, True, True, True, True], [True] * 6])
    bias: Any = dense if form == "tensor" else Sixteen()
    places = {"positions": place} if form == "module" else {}
    runs = on_each(lambda: attend(q, k, v, rule, mask=mask, score_bias=bias, return_weights=True, **places))
    for kernel, (y, edges) in runs:
        assert y.dtype == dtype and y.isfinite().all(), kernel
        assert not y[0, :, :2].any(), "nothing is there for the padded rows"
        blocked = ~mask[:, edges.source]
        assert not edges.weight[blocked].any() and edges.weight.isfinite().all(), kernel
        for gradient in torch.autograd.grad(y.float().square().sum(), (q, k, v)):
            assert gradient.isfinite().all(), kernel
        assert not torch.autograd.grad(attend(q, k, v, rule, mask=mask).sum(), v)[0][0, :, :2].any()


CAST = [(p, r) for p, r in product("few") if "own" not in (p, r.split()[0])]


@over(CAST)
def test_case_27_models_in_any_precision(place: str, rule: str) -> None:
    made = trial(place, rule, dtype=torch.float64, grad=False)
    exact = made().detach()
    assert exact.dtype == torch.float64
    scale = max(float(exact.abs().max()), 1e-3)
    for dtype, allowed in ((torch.float32, 1e-5), (torch.float16, 2**-7), (torch.bfloat16, 2**-4)):
        made.layer.to(dtype)
        cast = made.mapped(lambda _, t, dtype=dtype: t.to(dtype) if t.is_floating_point() else t)
        for kernel in [*cast.able(), "reference"]:
            with use_kernels(kernel):
                y = cast().detach()
            assert y.dtype == dtype, kernel
            assert (y.double() - exact).abs().max() <= allowed * scale if y.numel() else True, (kernel, dtype)


@over(CAST)
def test_case_27_autocast(place: str, rule: str) -> None:
    made = trial(place, rule, dtype=torch.float32)
    exact = made().detach()
    scale = max(float(exact.abs().max()), 1e-3)
    with torch.autocast("cpu", torch.bfloat16):
        wanted = nn.Linear(2, 2)(torch.zeros(2, 2)).dtype
        able_here = made.able()
    for kernel in [*able_here, "reference"]:
        with use_kernels(kernel), torch.autocast("cpu", torch.bfloat16):
            y = made()
        assert y.dtype == wanted == torch.bfloat16, kernel
        assert ((y.float() - exact).abs() <= 2**-4 * scale).all(), kernel
        found = torch.autograd.grad(y.float().sum(), list(made.leaves.values()), allow_unused=True)
        for leaf, gradient in zip(made.leaves.values(), found, strict=True):
            assert gradient is None or (gradient.dtype == leaf.dtype and gradient.isfinite().all()), kernel


EDGES = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]])
MODELS: dict[str, tuple[Any, tuple, dict]] = {
    "mlp": (lambda: MLP((5, 6, 3)), (2, 5), {}),
    "cnn": (lambda: CNN(2, (4, 4), 3, size=(4, 5)), (2, 20, 2), {}),
    "gnn": (lambda: GNN(2, (4, 4), 3), (2, 3, 2), {"edge_index": EDGES}),
    "transformer": (lambda: Transformer(2, 8, 2, 3, heads=2, position=Sinusoidal(8)), (2, 5, 2), {}),
    "rotary": (lambda: Transformer(2, 8, 1, 3, weight=lambda c: QKSoftmax(c, 2, position=Rotary(4))), (2, 5, 2), {}),
    "alibi": (lambda: Transformer(2, 8, 1, 3, weight=lambda c: QKSoftmax(c, 2, score_bias=ALiBi(2))), (2, 5, 2), {}),
    "t5": (
        lambda: Transformer(2, 8, 1, 3, weight=lambda c: QKSoftmax(c, 2, score_bias=RelativeBias.t5(2))),
        (2, 5, 2),
        {},
    ),
    "grid attention": (lambda: Transformer(2, 8, 1, 3, heads=2, neighbours=Grid((2, 3), 3)), (2, 6, 2), {}),
}


@pytest.mark.parametrize("name", MODELS)
def test_case_27_whole_models(name: str) -> None:
    make, shape, edges = MODELS[name]
    model, x = make(), torch.randn(shape)
    exact = model(x, **edges)
    with torch.autocast("cpu", torch.bfloat16):
        y = model(x, **edges)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), exact, rtol=0, atol=0.1)
    for cast, dtype, allowed in (
        ("double", torch.float64, 1e-5),
        ("half", torch.float16, 0.02),
        ("bfloat16", torch.bfloat16, 0.1),
    ):
        y = getattr(model, cast)()(x.to(dtype), **edges)
        assert y.dtype == dtype
        torch.testing.assert_close(y.float(), exact, rtol=0, atol=allowed)
        y.sum().backward()
        assert all(p.grad is None or p.grad.dtype == dtype for p in model.parameters())
        model.zero_grad()
