"""tiles: covers of every tiled case, one mask for many tiles, slabs without a copy, long rows, dropout, chunks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from helpers.calls import fixed_targets
from helpers.cases import PLACES
from mpnn import MessagePassing, Tokens, attend, limits, use_kernels
from mpnn.kernels import tiles as kernel
from mpnn.neighbours import AllTokens, Blocks, Edges, Global, Grid, Neighbours, Window
from mpnn.positions import ALiBi, RelativeBias
from mpnn.tiles import Tiles, tiles_of
from mpnn.weights import QKSoftmax

TILED = [p for p, place in PLACES.items() if place.make().tiled]


def pairs(rule: Neighbours, n: int, m: int, tokens: Any = None) -> Tensor:
    """The rule as a bool matrix, from its list of edges."""
    edges = rule.edges(n, m, tokens=tokens)
    mask = torch.zeros(n, m, dtype=torch.bool)
    mask[edges.target, edges.source] = True
    return mask


def tokens_of(name: str) -> tuple[Any, int, int]:
    place = PLACES[name]
    n = place.targets or fixed_targets(place) or place.sources
    batch = place.batch or (None, None)
    source = Tokens(torch.ones(place.sources, 1), batch=batch[0], grid=place.call.get("grid"))
    return (source, Tokens(torch.ones(n, 1), batch=batch[1])), n, place.sources


def rebuilt(made: Tiles, n: int, m: int) -> Tensor:
    """How often each pair is met by the tiles with their masks."""
    met = torch.zeros(n, m, dtype=torch.int64)
    at = 0
    where = torch.arange(n) if made.place is None else made.place
    for group in made.groups:
        count, rows, _ = group.shape
        for t in range(count):
            mask = torch.ones(group.shape[1:], dtype=torch.bool)
            mask = mask if group.masks is None else group.masks[group.which[t]]
            for r in range(rows):
                target = (where == at + t * rows + r).nonzero().flatten()
                for i in target.tolist():
                    met[i].index_add_(0, group.sources.index[t], mask[r].long())
        at += count * rows
    return met


@pytest.mark.parametrize("name", TILED)
def test_tiles_meet_every_pair_once(name: str) -> None:
    rule = PLACES[name].make()
    tokens, n, m = tokens_of(name)
    made = tiles_of(rule, n, m, tokens, torch.device("cpu"))
    assert torch.equal(rebuilt(made, n, m), pairs(rule, n, m, tokens).long())


@pytest.mark.parametrize(
    "name", [p for p in PLACES if "edge_index" not in PLACES[p].call and p not in ("own", "own listed")]
)
def test_holds_is_the_list_of_edges(name: str) -> None:
    rule = PLACES[name].make()
    tokens, n, m = tokens_of(name)
    i, j = torch.arange(n)[:, None], torch.arange(m)[None]
    assert torch.equal(rule.holds(i, j, n, m, tokens).expand(n, m), pairs(rule, n, m, tokens))


LONG: list[Neighbours] = [
    Window(300, 20),
    Window(30, 0),
    Window(9, 40, dilation=7),
    Blocks(100, shift=33, halo=13),
    Global(37),
    Grid((34, 25), 7, border="clamp"),
    Grid((34, 25), (5, 9), border="circular"),
    Grid((34, 25), 3, dilation=4),
    Blocks((7, 6), grid=(34, 25), shift=(3, 2)),
    AllTokens(causal=True) - Window(700, 0),
    Window(64) & Blocks(48),
]


@pytest.mark.parametrize("rule", LONG, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_long_rows_are_masked_attention(rule: Neighbours, dtype: torch.dtype) -> None:
    """850 tokens: tiles, chunks and blocks of the fused kernel that none of these sizes divide; some rows are empty."""
    q, k, v = (torch.randn(2, 3, 850, 8, dtype=dtype).requires_grad_() for _ in range(3))
    mask = pairs(rule, 850, 850)
    some = mask.any(-1)
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    expected = F.scaled_dot_product_attention(*wide, attn_mask=mask | ~some[:, None]).masked_fill(~some[:, None], 0)
    y = attend(q, k, v, rule, kernel="tiles")
    grad = torch.randn(y.shape, dtype=torch.float64)
    mine, theirs = torch.autograd.grad(y, (q, k, v), grad.to(dtype)), torch.autograd.grad(expected, wide, grad)
    limit = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 3e-2}[dtype]
    for a, b in zip((y, *mine), (expected, *theirs), strict=True):
        assert (a.double() - b).abs().max() <= limit * b.abs().max()


def test_inner_tiles_of_a_window_share_a_mask_and_copy_nothing() -> None:
    made = tiles_of(Window(100, 99), 5000, 5000, None, torch.device("cpu"))
    largest = max(made.groups, key=lambda g: g.shape[0])
    assert made.place is None and largest.masks is not None and len(largest.masks) == 1
    x = torch.randn(5000, 2, 4)
    slab = largest.sources.take(x, slice(0, largest.shape[0]))
    assert slab.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert tiles_of(Window(100, 99), 5000, 5000, None, torch.device("cpu")) is made  # made once


@pytest.mark.parametrize("small", [1, 400])
@pytest.mark.parametrize("rule", [Window(2, 1), Grid((4, 5), 3), Blocks(6, halo=2), Global(2)], ids=repr)
def test_few_tiles_at_a_time_are_all_at_once(rule: Neighbours, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (torch.randn(2, 2, 20, 4, dtype=torch.float64).requires_grad_() for _ in range(3))
    masks = {"mask": torch.rand(2, 20) < 0.7, "pair_mask": torch.rand(2, 1, 20, 20) < 0.8, "score_bias": ALiBi(2)}
    for given in ({}, masks):
        whole = attend(q, k, v, rule, kernel="tiles", **given)
        grads = torch.autograd.grad(whole.square().sum(), (q, k, v))
        with monkeypatch.context() as patch:
            patch.setattr(limits, "block", small)
            parts = attend(q, k, v, rule, kernel="tiles", **given)
            torch.testing.assert_close(parts, whole)
            torch.testing.assert_close(torch.autograd.grad(parts.square().sum(), (q, k, v)), grads)


def test_dropout_is_the_same_in_the_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """y is linear in v, so the gradient to v times v gives y · g back, if the same weights are kept."""
    monkeypatch.setattr(limits, "block", 300)
    q, k, v = (torch.randn(2, 2, 40, 4, dtype=torch.float64).requires_grad_() for _ in range(3))
    g = torch.randn(2, 2, 40, 4, dtype=torch.float64)
    y = attend(q, k, v, Window(4), dropout=0.5, kernel="tiles")
    (dv,) = torch.autograd.grad(y, v, g)
    torch.testing.assert_close((dv * v).sum(), (y * g).sum())
    one = torch.ones_like(v)
    shares = torch.stack([attend(q, k, one, Window(4), dropout=0.5, kernel="tiles") for _ in range(300)])
    assert abs(shares.mean() - 1) < 0.02 and shares.std() > 0.1
    assert torch.equal(attend(q, k, v, Window(4), dropout=1.0, kernel="tiles"), torch.zeros_like(v))


@pytest.mark.parametrize("rule", [Window(3, 2), Grid((5, 4), 3, border="clamp")], ids=repr)
def test_a_learned_bias_has_its_gradient(rule: Neighbours) -> None:
    bias = RelativeBias.offsets(2, 3).double()
    dense = torch.randn(2, 1, 20, 20, dtype=torch.float64, requires_grad=True)
    q, k, v = (torch.randn(2, 2, 20, 4, dtype=torch.float64).requires_grad_() for _ in range(3))
    for given, leaves in ((bias, [*bias.parameters()]), (dense, [dense])):
        found = []
        for name in ("tiles", "reference"):
            y = attend(q, k, v, rule, score_bias=given, kernel=name)
            first = torch.autograd.grad(y.square().sum(), [q, *leaves], create_graph=True)
            found.append([y, *first, *torch.autograd.grad(sum(f.square().sum() for f in first), [k, *leaves])])
        torch.testing.assert_close(*found)


def test_reasons_name_what_tiles_cannot() -> None:
    q = torch.randn(1, 2, 6, 4)
    for given, text in (
        ({"score": lambda s, p: s}, "a score function"),
        ({"neighbours": Grid(6, 3, border="reflect")}, "tiles:"),
    ):
        with pytest.raises(ValueError, match=text):
            attend(q, q, q, given.pop("neighbours", Window(1)), kernel="tiles", **given)
    assert kernel.name == "tiles"


def test_memory_is_bounded_by_an_argument() -> None:
    """A person's own rule runs in blocks of targets of the size that is asked for."""
    seen: list[int] = []

    class Before(Neighbours):
        def edges(self, targets: int, sources: int, *, rows: slice | None = None, tokens: Any = None) -> Edges:
            i = torch.arange(targets)[rows or slice(None)]
            seen.append(len(i))
            target = i.repeat_interleave(i)
            return Edges(torch.cat([torch.arange(int(n)) for n in i]), target)

    q = torch.randn(1, 2, 40, 4, dtype=torch.float64, requires_grad=True)
    whole = attend(q, q, q, Before())
    seen.clear()
    with use_kernels(block=800):
        parts = attend(q, q, q, Before())
    assert max(seen) <= 2 < len(seen)
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(*(torch.autograd.grad(y.square().sum(), q) for y in (parts, whole)))
    with pytest.raises(ValueError, match="block ≥ 1"), use_kernels(block=0):
        pass


class Checkered(Neighbours):
    """Tokens of the same parity: half of all pairs."""

    def edges(self, targets: int, sources: int, *, rows: slice | None = None, tokens: Any = None) -> Edges:
        i = torch.arange(targets)[rows or slice(None)]
        target, source = torch.cartesian_prod(i, torch.arange(sources)).unbind(1)
        same = (target - source) % 2 == 0
        return Edges(source[same], target[same])

    def contains(self, target: Tensor, source: Tensor) -> Tensor:
        return (target - source) % 2 == 0


@pytest.mark.parametrize("rule", [Checkered(), Checkered() & Window(30), AllTokens() - Checkered()], ids=repr)
def test_contains_opens_the_fused_kernel_to_a_rule_of_ones_own(rule: Neighbours) -> None:
    q, k, v = (torch.randn(2, 2, 300, 4, dtype=torch.float64).requires_grad_() for _ in range(3))
    found = []
    for name in (None, "tiles", "reference"):
        y = attend(q, k, v, rule, kernel=name)
        found.append([y, *torch.autograd.grad(y.square().sum(), (q, k, v))])
    assert MessagePassing(rule, QKSoftmax(8, 2)).plan(torch.ones(2, 300, 8)).kernel == "tiles"
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[1], found[2])
