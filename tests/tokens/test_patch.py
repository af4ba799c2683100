"""PatchTokens and StepTokens against torch's convolutions and loops, and case 36."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from mpnn.tokens import PatchTokens, StepTokens

CONVOLUTIONS: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


@pytest.mark.parametrize(
    ("size", "patch", "stride"),
    [
        ((12,), (4,), None),
        ((10,), (4,), (3,)),
        ((8, 12), (4, 4), None),
        ((9, 6), (3, 2), None),
        ((7, 9), (3, 5), (2, 1)),
        ((4, 6, 2), (2, 3, 1), None),
        ((5, 5, 4), (3, 2, 2), (2, 1, 2)),
        ((3, 3), (1, 1), None),
    ],
)
def test_equals_a_strided_convolution(size: tuple[int, ...], patch: tuple[int, ...], stride: Any) -> None:
    tokens = PatchTokens(3, 5, patch, stride=stride).double()
    conv = CONVOLUTIONS[len(size)](3, 5, patch, stride=stride or patch).double()
    conv.weight.data.copy_(tokens.projection.weight.view_as(conv.weight))
    conv.bias.data.copy_(tokens.projection.bias)
    image = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
    t, expected = tokens(image), conv(image)
    assert t.grid == tuple(expected.shape[2:])
    expected = expected.flatten(2).mT
    torch.testing.assert_close(t.x, expected)
    up = torch.randn_like(expected)
    for mine, theirs in zip(
        torch.autograd.grad(t.x, [image, tokens.projection.bias], up),
        torch.autograd.grad(expected, [image, conv.bias], up),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(tokens(image[0]).x, expected[0])
    torch.testing.assert_close(tokens(image[:, None].expand(2, 4, 3, *size)).x[:, 1], expected)


def test_initialised_as_a_convolution() -> None:
    tokens, conv = PatchTokens(3, 4000, (4, 2)), nn.Conv2d(3, 4000, (4, 2))
    for mine, theirs in ((tokens.projection.weight, conv.weight), (tokens.projection.bias, conv.bias)):
        assert mine.abs().max().item() == pytest.approx(theirs.abs().max().item(), rel=1e-2)
        assert mine.std().item() == pytest.approx(theirs.std().item(), rel=5e-2)


def test_places_are_row_major_and_centres_in_pixels() -> None:
    t = PatchTokens(1, None, (2, 3), stride=(2, 1))(torch.zeros(1, 6, 5))
    assert t.grid == (3, 3)
    assert t.positions.tolist() == [[r, c] for r in range(3) for c in range(3)]
    assert t.coordinates.tolist() == [[2 * r + 0.5, c + 1.0] for r in range(3) for c in range(3)]
    assert t.coordinates.dtype == torch.float32
    one = PatchTokens(1, None, (4,))(torch.zeros(1, 8).bfloat16())
    assert one.positions.tolist() == [0, 1]
    assert one.coordinates.tolist() == [[1.5], [5.5]]
    assert one.x.dtype == torch.bfloat16


def test_pixels_as_tokens_are_the_image() -> None:
    image = torch.randn(2, 3, 4, 5)
    assert torch.equal(PatchTokens(3, None, (1, 1))(image).x, image.flatten(2).mT)


@pytest.mark.parametrize(
    ("size", "patch", "match"),
    [
        ((10, 7), (3, 3), r"size \(10, 7\) cannot be cut into patches of \(3, 3\): axis 0 of 10 is 1 too long"),
        ((9, 7), (3, 3), "axis 1 of 7 is 1 too long"),
        ((2, 9), (3, 3), "axis 0 of 2 is shorter than a patch of 3"),
    ],
)
def test_case_36_images(size: tuple[int, int], patch: tuple[int, int], match: str) -> None:
    image = torch.randn(1, 2, *size)
    with pytest.raises(ValueError, match=match):
        PatchTokens(2, 4, patch)(image)
    padded = PatchTokens(2, None, patch, pad="pad")(image)
    whole = torch.zeros(1, 2, *(-(-n // k) * k for n, k in zip(size, patch, strict=True)))
    whole[..., : size[0], : size[1]] = image
    assert torch.equal(padded.x, PatchTokens(2, None, patch)(whole).x)


@pytest.mark.parametrize(("length", "stride"), [(10, 4), (9, 3), (3, 4), (3, 1)])
def test_case_36_series(length: int, stride: int) -> None:
    series = torch.randn(2, length, 3)
    with pytest.raises(ValueError, match=rf"size \({length},\) cannot be cut into patches of \(4,\)"):
        StepTokens(3, 5, patch=4, stride=stride)(series)
    tokens = StepTokens(3, None, patch=4, stride=stride, pad="pad")
    t = tokens(series)
    covered = {n * stride + k for n in range(t.grid[0]) for k in range(4)}
    assert covered >= set(range(length))
    assert torch.equal(tokens.inverse(t.x, length), series)
    for n, k, c in itertools.product(range(t.grid[0]), range(4), range(3)):
        step = n * stride + k
        assert torch.equal(t.x[:, n, c * 4 + k], series[:, step, c] if step < length else torch.zeros(2))
    assert StepTokens(3, 5, patch=4, stride=3)(torch.randn(2, 10, 3)).grid == (3,)


def test_single_steps_are_the_series() -> None:
    series = torch.randn(2, 7, 3)
    t = StepTokens(3, None)(series)
    assert torch.equal(t.x, series)
    assert t.positions.tolist() == list(range(7))
    tokens = StepTokens(3, 6)
    torch.testing.assert_close(
        tokens(series).x, nn.functional.linear(series, tokens.patches.projection.weight, tokens.patches.projection.bias)
    )


@pytest.mark.parametrize(
    ("size", "patch", "stride"),
    [((8, 6), (4, 3), None), ((7, 9), (3, 5), (2, 2)), ((10,), (4,), (3,)), ((3, 4, 4), (3, 2, 2), (1, 2, 1))],
)
def test_inverse(size: tuple[int, ...], patch: tuple[int, ...], stride: Any) -> None:
    tokens = PatchTokens(2, None, patch, stride=stride)
    image = torch.randn(3, 2, *size, dtype=torch.float64)
    torch.testing.assert_close(tokens.inverse(tokens(image).x, size), image)
    ragged = PatchTokens(2, None, patch, stride=stride, pad="pad")
    image = torch.randn(3, 2, *(n + 1 for n in size), dtype=torch.float64)
    torch.testing.assert_close(ragged.inverse(ragged(image).x, image.shape[2:]), image)
    with pytest.raises(ValueError, match="expected patches of shape"):
        tokens.inverse(torch.zeros(1, 1, 7), size)


def test_class_and_register_tokens_come_first() -> None:
    tokens = PatchTokens(3, 5, (2, 2), class_tokens=1, register_tokens=2)
    image = torch.randn(4, 3, 4, 6)
    t = tokens(image)
    plain = PatchTokens(3, 5, (2, 2))
    plain.load_state_dict({k: v for k, v in tokens.state_dict().items() if k != "prefix"})
    p = plain(image)
    assert torch.equal(t.x[:, :3], tokens.prefix.expand(4, 3, 5))
    assert torch.equal(t.x[:, 3:], p.x)
    assert t.grid is None
    assert t.positions.tolist() == [[0, 0]] * 3 + p.positions.tolist()
    assert torch.equal(t.coordinates[3:], p.coordinates)
    assert torch.equal(t.coordinates[:3], p.coordinates.mean(0).expand(3, 2))
    t.x.sum().backward()
    assert torch.equal(tokens.prefix.grad, torch.full((3, 5), 4.0))
    assert StepTokens(3, 5, class_tokens=2)(torch.randn(4, 7, 3)).positions.tolist() == [0, 0, *range(7)]
    with pytest.raises(ValueError, match="pass channels="):
        PatchTokens(3, None, (2, 2), class_tokens=1)


@pytest.mark.parametrize("fill", [1e10, float("nan")])
def test_masked_values_count_as_zero_and_a_token_needs_one_real_one(fill: float) -> None:
    tokens = PatchTokens(2, 3, (2, 2), class_tokens=1)
    image, mask = torch.randn(3, 2, 4, 6), torch.ones(3, 4, 6, dtype=torch.bool)
    mask[0, :2, 3:] = False
    mask[1] = False
    spoilt = image.masked_fill(~mask[:, None], fill)
    t = tokens(spoilt, mask)
    assert t.mask.tolist() == [[True, True, True, False, True, True, True], [True] + [False] * 6, [True] * 7]
    assert torch.equal(t.x, tokens(image * mask[:, None]).x)
    series = StepTokens(2, 3, patch=2)(torch.randn(2, 6, 2), torch.tensor([[True] * 3 + [False] * 3, [True] * 6]))
    assert series.mask.tolist() == [[True, True, False], [True] * 3]
    with pytest.raises(TypeError, match="dtype bool"):
        tokens(image, mask.float())
    with pytest.raises(ValueError, match="expected mask of shape"):
        tokens(image, mask[..., :4])


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"patch": 4}, TypeError, r"patch to be a tuple .* as \(4, 4\) for images, got 4"),
        ({"patch": ()}, TypeError, "patch to be a tuple"),
        ({"patch": (0, 2)}, ValueError, "at least 1"),
        ({"patch": (2, 2), "stride": (3, 2)}, ValueError, "would skip values between patches"),
        ({"patch": (2, 2), "stride": (2,)}, ValueError, "stride to have 2 numbers"),
        ({"patch": (2, 2), "pad": "padd"}, ValueError, "did you mean 'pad'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        PatchTokens(3, 4, **arguments)


def test_wrong_data_is_refused() -> None:
    with pytest.raises(ValueError, match=r"image of shape \(..., 3, \*, \*\) .* got \(2, 4, 4, 3\)"):
        PatchTokens(3, 4, (2, 2))(torch.zeros(2, 4, 4, 3))
    with pytest.raises(ValueError, match=r"got \(4, 4\)"):
        PatchTokens(4, 4, (2, 2))(torch.zeros(4, 4))
    with pytest.raises(ValueError, match=r"series of shape \(..., L, 3\), got \(2, 3, 7\)"):
        StepTokens(3, 4)(torch.zeros(2, 3, 7))


@pytest.mark.parametrize("pad", ["refuse", "pad"])
def test_compiles_whole_and_maps(pad: str) -> None:
    tokens = PatchTokens(2, 3, (2, 2), pad=pad, class_tokens=1)
    compiled = torch.compile(tokens, fullgraph=True, dynamic=True, backend="aot_eager")
    for height, width in ((4, 6), (8, 10), (6, 6)):
        image, mask = torch.randn(2, 2, height, width), torch.rand(2, height, width) > 0.7
        mine, theirs = compiled(image, mask), tokens(image, mask)
        torch.testing.assert_close(mine.x, theirs.x)
        assert torch.equal(mine.mask, theirs.mask)
        assert torch.equal(mine.positions, theirs.positions)
        torch.testing.assert_close(torch.func.vmap(lambda i, m: tokens(i, m).x)(image, mask), theirs.x)
    series = torch.randn(2, 9, 3)
    steps = StepTokens(3, 4, patch=3)
    torch.testing.assert_close(torch.compile(steps, fullgraph=True, backend="aot_eager")(series).x, steps(series).x)
