"""Cases 21 to 24: grids, and tensors that are not contiguous, on every kernel that can run them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.calls import Trial, product, trial
from helpers.cases import PLACES
from helpers.over import over
from kernel_choice import able, on_each
from mpnn import MessagePassing, attend, use_kernels
from mpnn.experiments.atlas_grid import as_image, as_tokens
from mpnn.neighbours import AllTokens, Grid, Window
from mpnn.weights import QKSoftmax, SharedKernel, Static


@pytest.mark.parametrize(
    ("size", "padding", "pads"),
    [((20, 10), (0, 1), (1, 1, 0, 0)), ((5, 6, 7), (0, 1, 2), (2, 2, 1, 1, 0, 0)), ((9,), (2,), (2, 2))],
)
@pytest.mark.parametrize("border", ["circular", "reflect", "replicate", "zeros"])
def test_case_21_each_axis_has_its_own_padding(size: tuple, padding: tuple, pads: tuple, border: str) -> None:
    layer = MessagePassing(Grid(size, 3, padding=padding, border=border), SharedKernel(2, 3)).double()
    x = torch.randn(2, *size, 2, dtype=torch.float64).flatten(1, -2).requires_grad_()
    convolve: Any = (F.conv1d, F.conv2d, F.conv3d)[len(size) - 1]
    padded = F.pad(as_image(x, size), pads, "constant" if border == "zeros" else border)
    expected = convolve(padded, layer.weight.weight, layer.weight.bias)
    assert layer.neighbours.target_size(size) == tuple(n + 2 * p - 2 for n, p in zip(size, padding, strict=True))
    upstream = torch.randn_like(as_tokens(expected))
    wrt = (x, layer.weight.weight, layer.weight.bias)
    wanted = (as_tokens(expected), *torch.autograd.grad(as_tokens(expected), wrt, upstream))
    for kernel in able(layer, x):
        with use_kernels(kernel):
            y = layer(x)
        for ours, theirs in zip((y, *torch.autograd.grad(y, wrt, upstream)), wanted, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10, msg=kernel)


def test_case_22_same_keeps_the_shape() -> None:
    rule = Grid((28, 31), (3, 5), dilation=(2, 3))
    assert rule.target_size((28, 31)) == (28, 31)
    layer, x = MessagePassing(rule, SharedKernel(1, 2)), torch.randn(1, 28 * 31, 1)
    conv = nn.Conv2d(1, 2, (3, 5), dilation=(2, 3), padding="same")
    conv.load_state_dict({"weight": layer.weight.weight, "bias": layer.weight.bias})
    for kernel in able(layer, x):
        with use_kernels(kernel):
            torch.testing.assert_close(layer(x), as_tokens(conv(as_image(x, (28, 31)))), msg=kernel)


def test_case_22_an_even_kernel_pads_the_end() -> None:
    x = torch.tensor([[1.0], [2.0], [3.0]])
    shared = MessagePassing(Grid(3, 2), SharedKernel(1, 1, bias=False))
    static = MessagePassing(Grid(3, 2), Static(1, 1, bias=False))
    with torch.no_grad():
        shared.weight.weight.copy_(torch.tensor([[[1.0, 10.0]]]))
        static.weight.weight.copy_(torch.tensor([1.0, 10.0]).expand(3, 1, 1, 2))
    for layer in (shared, static):
        for kernel in able(layer, x):
            with use_kernels(kernel):
                assert layer(x).flatten().tolist() == [21, 32, 3], kernel


def test_case_22_same_with_a_stride() -> None:
    with pytest.raises(ValueError, match="padding='same' is not supported for strided"):
        nn.Conv1d(1, 1, 3, stride=2, padding="same")
    with pytest.raises(
        ValueError, match=r"padding='same' is not supported for strided grids, got stride=\(2,\); pass padding="
    ):
        Grid(8, 3, stride=2)
    with pytest.raises(ValueError, match=r"padding='same' is not supported for strided grids, got stride=\(1, 2\)"):
        Grid((8, 8), 3, stride=(1, 2))


def test_case_23_a_window_wider_than_the_grid() -> None:
    with pytest.raises(ValueError, match="needs length ≥ 14, got 10"):
        Grid(10, 7, dilation=2, border="clamp")
    with pytest.raises(ValueError, match="needs length ≥ 14, got 10"):
        Grid((20, 10), 7, dilation=2, border="clamp")
    layer = MessagePassing(Grid(axes=1, kernel_size=7, dilation=2, border="clamp"), QKSoftmax(4, 2))
    assert layer(torch.zeros(14, 4), grid=(14,)).shape == (14, 4)
    with pytest.raises(ValueError, match="needs length ≥ 14, got 10"):
        layer(torch.zeros(10, 4), grid=(10,))
    q = torch.zeros(2, 10, 3)
    with pytest.raises(ValueError, match="needs length ≥ 14, got 10"):
        attend(q, q, q, Grid(axes=1, kernel_size=7, dilation=2, border="clamp"), grid=(10,))


@pytest.mark.parametrize("kernel", [2, (3, 4)])
def test_case_23_an_even_kernel_has_no_middle(kernel: Any) -> None:
    with pytest.raises(ValueError, match=r"border='clamp' needs an odd kernel_size.*, got \(.*[24]\)"):
        Grid((8, 8), kernel, border="clamp")


@pytest.mark.parametrize("border", ["zeros", "clamp", "circular", "reflect", "replicate"])
def test_case_23_kernel_1_is_pointwise(border: str) -> None:
    layer, x = MessagePassing(Grid((2, 3), 1, border=border), SharedKernel(4, 5)), torch.randn(2, 6, 4)
    attention = MessagePassing(Grid((2, 3), 1, border=border), QKSoftmax(4, 2))
    expected = F.linear(x, layer.weight.weight.flatten(1), layer.weight.bias)
    for kernel in able(layer, x):
        with use_kernels(kernel):
            torch.testing.assert_close(layer(x), expected, msg=kernel)
    alone = attention.weight.output(attention.weight.value(x))
    for kernel in able(attention, x):
        with use_kernels(kernel):
            torch.testing.assert_close(attention(x), alone, msg=kernel)


def clamped(i: int, length: int, kernel: int, dilation: int) -> list[int]:
    """NATTEN's window: of the cells with i's remainder, the `kernel` nearest that are inside."""
    group = range(i % dilation, length, dilation)
    nearest = sorted(group, key=lambda j: (abs(j - i), j))
    windows = [group[a : a + kernel] for a in range(len(group) - kernel + 1)]
    return list(min(windows, key=lambda w: sum(abs(j - i) for j in w))) if nearest else []


@pytest.mark.parametrize(
    ("size", "kernel", "dilation"), [((7,), 3, 1), ((8,), 3, 2), ((5,), 5, 1), ((4, 6), 3, (1, 2))]
)
def test_case_23_clamp_shifts_the_window_inside(size: tuple, kernel: int, dilation: Any) -> None:
    dilations = dilation if isinstance(dilation, tuple) else (dilation,)
    rule = Grid(size, kernel, dilation=dilation, border="clamp")
    cells = list(itertools.product(*map(range, size)))
    meets = torch.zeros(len(cells), len(cells), dtype=torch.bool)
    for t, target in enumerate(cells):
        for source in itertools.product(
            *(clamped(*z) for z in zip(target, size, [kernel] * 3, dilations, strict=False))
        ):
            meets[t, cells.index(source)] = True
    assert meets.sum(1).eq(kernel ** len(size)).all()
    q, k, v = (torch.randn(2, len(cells), 3, dtype=torch.float64) for _ in range(3))
    expected = F.scaled_dot_product_attention(q, k, v, meets)
    for name, y in on_each(lambda: attend(q, k, v, rule)):
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-12, msg=name)


def transposed(x: Tensor) -> Tensor:
    return x.mT.contiguous().mT


def every_other(x: Tensor) -> Tensor:
    return torch.stack([x, torch.full_like(x, torch.nan)], -1).flatten(-2)[..., ::2]


def part_of_more(x: Tensor) -> Tensor:
    return F.pad(x, (3, 2, 1, 4), value=torch.nan)[..., 1:-4, 3:-2]


def batch_last(x: Tensor) -> Tensor:
    return x.movedim(0, -1).contiguous().movedim(-1, 0)


def backwards(x: Tensor) -> Tensor:
    """Rows in reverse order in memory."""
    count = x.shape[-2]
    return x.flip(-2)[..., torch.arange(count).flip(0), :]


LAYOUTS: tuple[Callable[[Tensor], Tensor], ...] = (transposed, every_other, part_of_more, batch_last, backwards)


def laid_out(made: Trial, layout: Callable[[Tensor], Tensor]) -> Trial:
    """The same call with every floating tensor laid out in another way."""
    others = {k: layout(t) if t.is_floating_point() and t.ndim >= 2 else t for k, t in made.tensors.items()}
    assert all(torch.equal(others[k], t) for k, t in made.tensors.items())
    return dataclasses.replace(made, tensors=others)


@over(product("few"))
def test_case_24_strides_do_not_matter(place: str, rule: str) -> None:
    made = trial(place, rule)
    leaves = list(made.leaves.values())
    for kernel in [*made.able(), "reference"]:
        with use_kernels(kernel):
            plain = made()
        wanted = (plain, *torch.autograd.grad(plain.sum(), leaves, materialize_grads=True))
        for layout in LAYOUTS:
            with use_kernels(kernel):
                y = laid_out(made, layout)()
            found = (y, *torch.autograd.grad(y.sum(), leaves, materialize_grads=True))
            for ours, theirs in zip(found, wanted, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10, msg=f"{kernel}, {layout.__name__}")


@over([p for p in product("few") if not PLACES[p[0]].alone])
def test_case_24_expanded_tokens(place: str, rule: str) -> None:
    """Three samples that are one in memory."""
    made = trial(place, rule, lead=(1,))
    leaves = list(made.leaves.values())
    wide = {k: t.expand(3, *t.shape[1:]) if t.ndim > 2 and len(t) == 1 else t for k, t in made.tensors.items()}
    for kernel in [*made.able(), "reference"]:
        with use_kernels(kernel):
            one, three = made(), dataclasses.replace(made, tensors=wide)()
        torch.testing.assert_close(three, one.expand(3, *one.shape[1:]), rtol=0, atol=1e-12, msg=kernel)
        single = torch.autograd.grad(one.sum(), leaves, materialize_grads=True)
        thrice = torch.autograd.grad(three.sum(), leaves, materialize_grads=True)
        for ours, theirs in zip(thrice, single, strict=True):
            torch.testing.assert_close(ours, 3 * theirs, rtol=0, atol=1e-10, msg=kernel)


@pytest.mark.parametrize("size", [(6,), (4, 5), (3, 4, 2)])
def test_case_24_images_in_both_memory_formats(size: tuple[int, ...]) -> None:
    layer = MessagePassing(Grid(size, 3), SharedKernel(3, 4)).double()
    image = torch.randn(2, 3, *size, dtype=torch.float64)
    last = image.movedim(1, -1).contiguous().movedim(-1, 1)
    for kernel in able(layer, as_tokens(image)):
        with use_kernels(kernel):
            torch.testing.assert_close(layer(as_tokens(last)), layer(as_tokens(image)), rtol=0, atol=1e-12, msg=kernel)


@pytest.mark.parametrize("rule", [AllTokens(), AllTokens(causal=True), Window(1), Grid((2, 3), 3)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_case_24_attend(rule: Any, layout: Callable[[Tensor], Tensor]) -> None:
    q, k, v = (torch.randn(2, 2, 6, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    for kernel, y in on_each(lambda: attend(q, k, v, rule)):
        with use_kernels(kernel):
            z = attend(layout(q), layout(k), layout(v), rule)
        torch.testing.assert_close(z, y, rtol=0, atol=1e-12, msg=kernel)
        pairs = zip(torch.autograd.grad(z.sum(), (q, k, v)), torch.autograd.grad(y.sum(), (q, k, v)), strict=True)
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12, msg=kernel)
