"""fft: against F.conv1d and torch.fft written by hand, its rounding, its memory, and the way that it takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, jvp, vmap
from torch.nn import functional as F

from helpers.compare import agree, run
from mpnn import MessagePassing, correlation, use_kernels
from mpnn.kernels import fft
from mpnn.neighbours import AllTokens, Full, Graph
from mpnn.weights import SharedKernel

WAYS = pytest.mark.parametrize("long", [True, False], ids=["FFT", "conv1d"])
KINDS: dict[str, dict[str, Any]] = {
    "one group": {},
    "two groups": {"groups": 2},
    "groups of one source": {"groups": 4, "out": 8},
    "depthwise": {"groups": 4, "out": 4},
    "heads": {"heads": 2, "out": 4, "value": False},
    "bases": {"bases": 3, "groups": 2},
}


def layer_of(rule: Any, kind: str) -> MessagePassing:
    options = dict(KINDS[kind])
    return MessagePassing(rule, SharedKernel(4, options.pop("out", 6), bias=False, **options), kernel="fft").double()


@pytest.fixture
def taken(long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the two ways, whatever the sizes; few channels at a time."""
    monkeypatch.setattr(fft, "by_fft", lambda *sizes: long)
    monkeypatch.setattr(correlation, "ROWS", 1)
    monkeypatch.setattr(correlation, "BLOCK", 64)


def by_hand(layer: MessagePassing, x: Tensor, n: int, causal: bool, limit: int) -> Tensor:
    """Target i at slot i + M - N meets source j through row j - slot + limit - 1 of the weight: a sum over all j."""
    weight, m = layer.weight.matrices(), x.shape[1]
    slot, source = torch.arange(n)[:, None] + m - n, torch.arange(m)
    row = source - slot + limit - 1
    matrix = weight[row.clamp(0, len(weight) - 1)]
    if causal:
        matrix = matrix.masked_fill((source > slot).view(n, m, *[1] * (weight.ndim - 1)), 0)
    if weight.ndim == 2:
        return torch.einsum("nmh,bmhd->bnhd", matrix, x.unflatten(2, (weight.shape[1], -1))).flatten(2)
    groups = layer.weight.groups
    blocks = matrix.unflatten(2, (groups, -1))
    return torch.einsum("nmgoi,bmgi->bngo", blocks, x.unflatten(2, (groups, -1))).flatten(2)


@WAYS
@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "m"), [(7, 7), (3, 7), (7, 3), (1, 5), (5, 1), (1, 1), (9, 9)])
@pytest.mark.parametrize("causal", [False, True])
def test_two_lengths(kind: str, n: int, m: int, causal: bool) -> None:
    layer = layer_of(AllTokens(causal=causal, max_tokens=9), kind)
    x, targets = (torch.randn(2, k, 4, dtype=torch.float64, requires_grad=True) for k in (m, n))
    leaves = {"x": x, **dict(layer.named_parameters())}
    agree(
        run(lambda: layer(targets, source=x), leaves, twice=True),
        run(lambda: by_hand(layer, x, n, causal, 9), leaves, twice=True),
        torch.float64,
    )
    with torch.no_grad():
        torch.testing.assert_close(layer(targets, source=x), by_hand(layer, x, n, causal, 9))


@WAYS
@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize("kind", KINDS)
def test_a_toeplitz_layer(kind: str) -> None:
    layer = layer_of(Full(6, 4), kind)
    x = torch.randn(2, 6, 4, dtype=torch.float64)
    torch.testing.assert_close(layer(x), by_hand(layer, x, 4, False, 6))
    assert layer.plan(x).kernel == "fft"


@WAYS
@pytest.mark.usefixtures("taken")
def test_conv1d() -> None:
    """A causal layer is torch's convolution, padded on the left; the last tap is the token itself."""
    layer = MessagePassing(AllTokens(causal=True, max_tokens=16), SharedKernel(6, 9, groups=3))
    x = torch.randn(2, 16, 6)
    for again in range(2):  # the second call is one that the layer remembers
        theirs = F.conv1d(
            F.pad(x.transpose(1, 2), (15, 0)), layer.weight.weight.permute(1, 2, 0), layer.weight.bias, groups=3
        )
        torch.testing.assert_close(layer(x), theirs.transpose(1, 2), msg=f"call {again}")
        x = x.flip(1)
    mask = torch.rand(2, 16) < 0.5
    with use_kernels("reference"):
        expected = layer(x, mask=mask)
    torch.testing.assert_close(layer(x, mask=mask), expected)
    with use_kernels("reference"):
        lone = layer(x[0])
    torch.testing.assert_close(layer(x[0]), lone)
    torch.testing.assert_close(layer(x[None, :, None])[0, :, 0], layer(x))


@WAYS
@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(long: bool, dtype: torch.dtype) -> None:
    layer = MessagePassing(AllTokens(max_tokens=64), SharedKernel(8, 8, groups=8, bias=False)).to(dtype)
    x = torch.randn(2, 64, 8).to(dtype)
    expected = layer.float()(x.float()).to(dtype)
    torch.testing.assert_close(layer.to(dtype)(x), expected, rtol=0, atol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_the_rounding_of_long_sequences(causal: bool) -> None:
    """4,096 tokens of 64 channels in float32, beside the same in float64."""
    layer = MessagePassing(AllTokens(causal=causal, max_tokens=4096), SharedKernel(64, 64, groups=64))
    x, up = torch.randn(1, 4096, 64, requires_grad=True), torch.randn(1, 4096, 64)
    leaves = [x, *layer.parameters()]
    y = layer(x)
    found = [y, *torch.autograd.grad(y, leaves, up)]
    with torch.no_grad():
        torch.testing.assert_close(layer(x), y)
    layer.double()
    z = layer(x.double())
    leaves = [x, *layer.parameters()]
    for ours, exact in zip(found, [z, *torch.autograd.grad(z, leaves, up.double())], strict=True):
        assert (ours - exact).abs().max() < 2e-6 * exact.abs().max()


@WAYS
@pytest.mark.usefixtures("taken")
def test_transforms() -> None:
    layer = layer_of(AllTokens(causal=True, max_tokens=6), "two groups")
    x, along = torch.randn(2, 6, 4, dtype=torch.float64), torch.randn(2, 6, 4, dtype=torch.float64)
    torch.testing.assert_close(vmap(layer)(x), layer(x))
    torch.testing.assert_close(jvp(layer, (x,), (along,))[1], layer(along))  # it is linear
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(layer(leaf).square().sum(), leaf)
    torch.testing.assert_close(grad(lambda x: layer(x).square().sum())(x), expected)
    torch.testing.assert_close(vmap(grad(lambda x: layer(x).square().sum()))(x), expected)
    several = {k: torch.stack([p, 2 * p]) for k, p in layer.named_parameters()}
    mapped = vmap(lambda p: functional_call(layer, p, (x,)))(several)
    torch.testing.assert_close(mapped, torch.stack([layer(x), 2 * layer(x)]))


def test_compiled() -> None:
    """Of fixed sizes the FFT, of dynamic ones the convolution."""
    layer = MessagePassing(AllTokens(causal=True, max_tokens=512), SharedKernel(4, 4, groups=4))
    x = torch.randn(2, 512, 4, requires_grad=True)
    for dynamic in (False, True):
        torch._dynamo.reset()
        fast = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
        ours = run(lambda fast=fast: fast(x), {"x": x, **dict(layer.named_parameters())})
        agree(ours, run(lambda: layer(x), {"x": x, **dict(layer.named_parameters())}), torch.float32)


def test_the_way_by_size() -> None:
    """Long kernels by the FFT; one token after many, and wide short ones, by a convolution."""
    assert fft.by_fft(1, 64, 1, 1024, 1024, 1024)
    assert fft.by_fft(8, 64, 64, 512, 512, 512)
    assert not fft.by_fft(1, 64, 1, 4096, 4096, 1)
    assert not fft.by_fft(1, 64, 64, 128, 128, 128)
    assert not fft.by_fft(1, 4, 4, 1, 1, 1)


def test_fast_lengths() -> None:
    smooth = sorted(2**a * 3**b * 5**c for a in range(11) for b in range(7) for c in range(5))
    for n in range(1, 1000):
        assert fft.fast_length(n) == next(k for k in smooth if k >= n)


def test_memory_is_linear() -> None:
    """What is made for 8,192 tokens holds fewer numbers than a fraction of their pairs."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, f, types, args=(), kwargs=None):
            nonlocal largest
            made = f(*args, **kwargs or {})
            largest = max(largest, made.numel() if isinstance(made, Tensor) else 0)
            return made

    layer = MessagePassing(AllTokens(max_tokens=8192), SharedKernel(4, 4, groups=4), kernel="fft")
    x = torch.randn(8192, 4, requires_grad=True)
    with Watch():
        layer(x).sum().backward()
    assert 0 < largest <= 4 * 16384 * 2


def test_one_matrix_for_all_pairs_is_no_correlation() -> None:
    """A weight that was built for edges has one relation; all tokens without max_tokens have one, too."""
    weight = SharedKernel(4, 6)
    MessagePassing(Graph(), weight)
    layer, x = MessagePassing(AllTokens(), weight), torch.randn(2, 5, 4)
    expected = (x @ weight.weight[0].T).sum(-2, keepdim=True).expand(2, 5, 6) + weight.bias
    torch.testing.assert_close(layer(x), expected)
    assert "max_tokens" in layer.plan(x).reasons["fft"][0]
