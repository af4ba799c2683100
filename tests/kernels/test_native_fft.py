"""native_fft: against F.conv1d and torch.fft in float64, at every kind of length, layout and cut, and what it keeps."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from helpers.compare import agree, run
from mpnn import MessagePassing, use_kernels
from mpnn.native.long import Correlation, Long
from mpnn.neighbours import AllTokens, Full
from mpnn.weights import SharedKernel

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("numba") is None, reason="numba is not installed: pip install 'mpnn[native]'"
)
LENGTHS = [1, 2, 7, 8, 9, 12, 13, 16, 24, 25, 31, 33, 48, 64, 100, 128, 130]


def by_torch(x: Tensor, taps: Tensor, targets: int) -> Tensor:
    ahead = (targets - 1, taps.shape[0] - x.shape[1])
    return F.conv1d(F.pad(x.transpose(1, 2), ahead), taps.t()[:, None], groups=x.shape[2]).transpose(1, 2)


def compared(x: Tensor, taps: Tensor, targets: int) -> None:
    leaves = {"x": x.requires_grad_(), "taps": taps.requires_grad_()}
    ours = run(lambda: Correlation.apply(x, taps, targets), leaves, twice=True)
    agree(ours, run(lambda: by_torch(x, taps, targets), leaves, twice=True), x.dtype)
    with torch.no_grad():
        assert torch.equal(Long(x, taps, targets).forward(), ours["output"])


def numbers(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_lengths(length: int, causal: bool) -> None:
    """Powers of two and of four, three times these, and what lies between."""
    compared(numbers(1, length, 3), numbers(length if causal else 2 * length - 1, 3), length)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("targets", "sources"), [(3, 30), (30, 3), (1, 40), (40, 1)])
def test_two_lengths(targets: int, sources: int, causal: bool) -> None:
    compared(numbers(2, sources, 5), numbers(sources if causal else sources + targets - 1, 5), targets)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("channels", [1, 8, 15, 16, 17, 40])
@pytest.mark.parametrize("batch", [1, 3, 9, 20])
def test_blocks_of_channels_and_chunks_of_entries(batch: int, channels: int, dtype: torch.dtype) -> None:
    compared(numbers(batch, 20, channels, dtype=dtype), numbers(20, channels, dtype=dtype), 20)


def test_layouts() -> None:
    """Channels in lines, samples apart, one number for all channels or entries: read where they lie."""
    lines, taps = numbers(2, 16, 21).transpose(1, 2), numbers(16, 21).t()
    for x in (lines, numbers(4, 21, 16)[::2], numbers(2, 42, 32)[:, ::2, ::2]):
        assert not x.is_contiguous()
        compared(x, taps, 21)
    for x in (numbers(2, 21, 1).expand(2, 21, 16), numbers(1, 21, 16).expand(2, 21, 16)):
        torch.testing.assert_close(Long(x, taps, 21).forward(), by_torch(x, taps, 21))
    grad = numbers(2, 16, 21).transpose(1, 2)
    d_x, d_taps = Long(lines, taps, 21).backward(grad, (True, True))
    wanted = [lines.clone().requires_grad_(), taps.clone().requires_grad_()]
    torch.testing.assert_close((d_x, d_taps), torch.autograd.grad(by_torch(*wanted, 21), wanted, grad))
    assert d_taps is not None and d_taps.stride() == taps.stride()


def test_beyond_the_cache() -> None:
    """Blocks of so many rows are finished one after the other: 16,384 in all."""
    x, taps, grad = numbers(1, 8000, 16), numbers(8000, 16), numbers(1, 8000, 16)
    spectra = [torch.fft.rfft(t, 16384, dim=-2) for t in (x, taps.flip(0), grad)]
    torch.testing.assert_close(
        Long(x, taps, 8000).forward(), torch.fft.irfft(spectra[0] * spectra[1], 16384, dim=-2)[:, :8000]
    )
    d_x, d_taps = Long(x, taps, 8000).backward(grad, (True, True))
    made = [torch.fft.irfft(spectra[2] * spectra[k].conj(), 16384, dim=-2)[:, :8000] for k in (1, 0)]
    torch.testing.assert_close((d_x, d_taps), (made[0], made[1][0].flip(0)))


def test_the_rounding_is_that_of_torch() -> None:
    x, taps = numbers(1, 4096, 16, dtype=torch.float32), numbers(4096, 16, dtype=torch.float32)
    exact, theirs = (
        torch.fft.irfft(torch.fft.rfft(a, 8192, dim=1) * torch.fft.rfft(b.flip(0), 8192, dim=0), 8192, dim=1)[:, :4096]
        for a, b in ((x.double(), taps.double()), (x, taps))
    )
    assert (Long(x, taps, 4096).forward() - exact).abs().max() < 2 * (theirs - exact).abs().max()


@pytest.mark.parametrize("other", [1e6, 1e30, torch.inf, torch.nan])
def test_channels_and_entries_do_not_see_each_other(other: float) -> None:
    """Whatever stands in a channel of tokens, taps or gradient, the others are the same to the last bit."""
    given = [numbers(2, 50, 17, dtype=torch.float32), numbers(50, 17, dtype=torch.float32), numbers(2, 50, 17)]

    def found(x: Tensor, taps: Tensor, grad: Tensor) -> list[Tensor]:
        long = Long(x, taps, 50)
        return [long.forward(), *long.backward(grad.float(), (True, True))]  # type: ignore[list-item]

    alone = found(*given)
    for k in range(3):
        beside = [t.clone() for t in given]
        beside[k][..., 3] *= other
        for a, b in zip(alone, found(*beside), strict=True):
            assert torch.equal(a[..., :3], b[..., :3]) and torch.equal(a[..., 4:], b[..., 4:])
    one = Long(given[0][:1], given[1], 50).forward()
    assert torch.equal(one, alone[0][:1])


def test_threads_change_nothing() -> None:
    x, taps, grad = numbers(9, 400, 20), numbers(400, 20), numbers(9, 400, 20)
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        long = Long(x, taps, 400)
        found.append((long.forward(), *long.backward(grad, (True, True))))
    torch.set_num_threads(1)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("needed", [(True, False), (False, True)])
def test_one_gradient_alone(needed: tuple[bool, bool]) -> None:
    x, taps, grad = numbers(3, 30, 4), numbers(30, 4), numbers(3, 30, 4)
    both, one = (Long(x, taps, 30).backward(grad, n) for n in ((True, True), needed))
    for whole, found, need in zip(both, one, needed, strict=True):
        assert (found is None) != need
        assert not need or torch.equal(found, whole)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    layer = MessagePassing(AllTokens(max_tokens=64), SharedKernel(16, 16, groups=16), kernel="native_fft").to(dtype)
    x = torch.randn(2, 64, 16).to(dtype)
    expected = layer.float()(x.float()).to(dtype)
    torch.testing.assert_close(layer.to(dtype)(x), expected, rtol=1e-2, atol=1e-2)


def test_a_forward_keeps_its_inputs_alone() -> None:
    layer = MessagePassing(AllTokens(causal=True, max_tokens=300), SharedKernel(16, 16, groups=16, bias=False))
    x, kept = torch.randn(1, 300, 16, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = layer(x)
    assert layer.plan(x).kernel == "native_fft"
    assert {t.data_ptr() for t in kept} == {x.data_ptr(), layer.weight.weight.data_ptr()}
    y = layer(x)
    with torch.no_grad():
        layer.weight.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_when_it_is_chosen() -> None:
    def layer(channels: int, rule: object = None, **options: object) -> MessagePassing:
        place = AllTokens(max_tokens=200) if rule is None else rule
        return MessagePassing(place, SharedKernel(channels, channels, groups=channels, **options))

    plan = layer(16).plan(torch.zeros(1, 200, 16))
    assert plan.kernel == "native_fft"
    assert layer(16, Full(200)).plan(torch.zeros(200, 16)).kernel == "native_fft"
    for small, size, word in ((layer(16), (1, 63, 16), "128 sources"), (layer(3), (1, 200, 3), "4 channels")):
        plan = small.plan(torch.zeros(size))
        assert plan.kernel == "fft" and word in plan.reasons["native_fft"][0]
        with use_kernels("native_fft"):
            assert small.plan(torch.zeros(size)).kernel == "native_fft"
    wide = MessagePassing(AllTokens(max_tokens=200), SharedKernel(16, 16))
    with pytest.raises(ValueError, match="needs groups=channels"), use_kernels("native_fft"):
        wide(torch.zeros(1, 200, 16))
    assert layer(16)(torch.zeros(0, 200, 16, requires_grad=True)).shape == (0, 200, 16)


@pytest.mark.parametrize("kernel", ["fft", "native_fft"])
def test_transforms_and_batches_of_gradients(kernel: str) -> None:
    layer = MessagePassing(AllTokens(max_tokens=200), SharedKernel(16, 16, groups=16), kernel=kernel).double()
    x = numbers(2, 200, 16).requires_grad_()
    y = layer(x)
    torch.testing.assert_close(torch.func.vmap(layer)(x), y)
    (expected,) = torch.autograd.grad(y.square().sum(), x, retain_graph=True)
    torch.testing.assert_close(torch.func.grad(lambda x: layer(x).square().sum())(x), expected)
    ups, leaves = numbers(3, *y.shape), [x, *layer.parameters()]
    many = torch.autograd.grad(y, leaves, ups, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(y, leaves, up, retain_graph=True) for up in ups]
    for found, wanted in zip(many, zip(*each, strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(wanted))


def test_a_remembered_call_on_tokens_with_the_negative_bit() -> None:
    """Their memory holds other numbers than theirs, so that another kernel takes them."""
    layer, x = MessagePassing(AllTokens(causal=True, max_tokens=300), SharedKernel(8, 8, groups=8)), torch.randn(300, 8)
    assert layer.plan(x).kernel == "native_fft"
    layer(x)
    torch.testing.assert_close(layer(torch._neg_view(x)), layer(-x))
