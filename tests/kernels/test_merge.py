"""merge: the published patterns as one expression each against masked attention, and what a part must leave out."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mpnn import MessagePassing, attend
from mpnn.kernels import merge
from mpnn.neighbours import AllTokens, Blocks, Edges, Global, Graph, Grid, Neighbours, Random, Union, Window
from mpnn.positions import ALiBi
from mpnn.weights import QKSoftmax

N = 48
EDGES = torch.stack([torch.arange(N), (torch.arange(N) * 7 + 3) % N])
CELLS = [(i // 8, i % 8) for i in range(N)]


def by(rule) -> Tensor:  # type: ignore[no-untyped-def]
    """A pattern as its paper says it, pair by pair."""
    return torch.tensor([[bool(rule(i, j)) for j in range(N)] for i in range(N)])


def edge(i: int, j: int) -> bool:
    return i == (j * 7 + 3) % N


def same_block(i: int, j: int, size: int, shift: int = 0) -> bool:
    return all((a - shift) // size == (b - shift) // size for a, b in zip(CELLS[i], CELLS[j], strict=True))


def halo(i: int, j: int, size: int, more: int) -> bool:
    lows = [a // size * size for a in CELLS[i]]
    return all(low - more <= b < low + size + more for low, b in zip(lows, CELLS[j], strict=True))


PATTERNS: dict[str, tuple[Neighbours, Tensor, str]] = {
    "Longformer": (Window(4) | Global(2), by(lambda i, j: abs(i - j) <= 4 or i < 2 or j < 2), "merge"),
    "Longformer, dilated": (
        Window(4, dilation=3) | Global(2),
        by(lambda i, j: (abs(i - j) <= 12 and (i - j) % 3 == 0) or i < 2 or j < 2),
        "merge",
    ),
    "BigBird": (
        Blocks(8, halo=8) | Global(4) | Graph(EDGES, N),
        by(lambda i, j: abs(i // 8 - j // 8) <= 1 or i < 4 or j < 4 or edge(i, j)),
        "merge",
    ),
    "Swin": (Blocks(4, grid=(6, 8)), by(lambda i, j: same_block(i, j, 4)), "tiles"),
    "Swin, shifted": (Blocks(4, grid=(6, 8), shift=2), by(lambda i, j: same_block(i, j, 4, 2)), "tiles"),
    "HaloNet": (Blocks(4, grid=(6, 8), halo=1), by(lambda i, j: halo(i, j, 4, 1)), "tiles"),
    "Sparse Transformer, strided": (
        Window(8, 0) | (Window(8, 0, dilation=6) & AllTokens(causal=True)),
        by(lambda i, j: 0 <= i - j <= 8 or (0 <= i - j <= 48 and (i - j) % 6 == 0)),
        "merge",
    ),
    "Exphormer": (
        Graph(EDGES, N) | Graph(EDGES.flip(0), N) | Global(1),
        by(lambda i, j: edge(i, j) or edge(j, i) or i < 1 or j < 1),
        "merge",
    ),
    "GPS": (Graph(EDGES, N) | AllTokens(), by(lambda i, j: True), "sdpa"),
    "grid with a graph": (
        Grid((6, 8), 3) | Graph(EDGES, N),
        by(lambda i, j: edge(i, j) or all(abs(a - b) <= 1 for a, b in zip(CELLS[i], CELLS[j], strict=True))),
        "merge",
    ),
    "causal Longformer": (
        (Window(6, 0) | Global(2)) & AllTokens(causal=True),
        by(lambda i, j: i - j >= 0 and (i - j <= 6 or i < 2 or j < 2)),
        "",
    ),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_published_patterns_are_one_expression(name: str) -> None:
    rule, mask, kernel = PATTERNS[name]
    q, k, v = (torch.randn(2, 2, N, 4, dtype=torch.float64).requires_grad_() for _ in range(3))
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    grad = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (q, k, v), grad)
    plan = MessagePassing(rule, QKSoftmax(8, 2)).plan(torch.ones(2, N, 8))
    assert not kernel or plan.kernel == kernel, plan
    for forced in (None, "edge_softmax", "reference"):
        if forced == "edge_softmax" and not rule.listed:
            continue
        y = attend(q, k, v, rule, kernel=forced)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(torch.autograd.grad(y, (q, k, v), grad), wanted)


ORDERS = [*itertools.permutations((Window(3), Global(2), Graph(EDGES, N), Blocks(5)))]


@pytest.mark.parametrize("operands", ORDERS, ids=repr)
def test_parts_are_disjoint_and_whole(operands: tuple[Neighbours, ...]) -> None:
    first, *others = operands
    rule = first
    for other in others:
        rule = rule | other
    assert isinstance(rule, Union)
    count = torch.zeros(N, N, dtype=torch.int64)
    for part in rule.parts():
        edges = part.edges(N, N)
        count.index_put_((edges.target, edges.source), torch.ones_like(edges.source), accumulate=True)
    whole = rule.edges(N, N)
    expected = torch.zeros_like(count)
    expected[whole.target, whole.source] = 1
    assert torch.equal(count, expected)


TWICE = torch.tensor([[0, 0, 1, 2, 2], [3, 3, 3, 4, 4]])


class Doubled(Neighbours):
    """A person's own rule that names each of its pairs twice."""

    listed = True

    def edges(self, targets, sources, *, rows=None, tokens=None):  # type: ignore[no-untyped-def]
        i = torch.arange(targets).repeat(2)
        return Edges(i, i)


@pytest.mark.parametrize(
    "rule",
    [
        Graph(TWICE, N) | Random(1, 0),
        Graph(TWICE, N) | Graph(EDGES, N),
        Grid(N, 5, border="replicate") | Random(1, 0),
        Grid(N, 5, border="reflect") | Graph(TWICE, N),
        Doubled() | Graph(TWICE, N),
    ],
    ids=repr,
)
def test_what_a_part_names_twice_counts_once(rule: Neighbours) -> None:
    q, k, v = (torch.randn(1, N, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = torch.zeros(N, N, dtype=torch.bool)
    found = rule.edges(N, N)
    mask[found.target, found.source] = True
    assert int(mask.sum()) == len(found)
    blank = ~mask.any(-1, keepdim=True)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask | blank).masked_fill(blank, 0)
    y, grad = attend(q, k, v, rule, kernel="merge"), torch.randn(1, N, 4, dtype=torch.float64)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(*(torch.autograd.grad(t, (q, k, v), grad) for t in (y, expected)))


def test_a_part_without_sources_changes_nothing() -> None:
    """Rows that only one part reaches, rows that none does, and masks that empty a part."""
    q, k, v = (torch.randn(2, 2, N, 4, dtype=torch.float64).requires_grad_() for _ in range(3))
    rule = (Window(2) - Window(1)) | (Graph(EDGES, N) - Window(5))
    mask = torch.ones(2, N, dtype=torch.bool)
    mask[0], mask[1, :30] = False, False
    found = []
    for name in ("merge", "reference"):
        y = attend(q, k, v, rule, mask=mask, kernel=name)
        found.append([y, *torch.autograd.grad(y.square().sum(), (q, k, v))])
        assert all(t.isfinite().all() for t in found[-1])
    torch.testing.assert_close(*found)
    assert not found[0][0][0].any()


def test_reasons_name_what_no_part_knows() -> None:
    q = torch.randn(1, 2, N, 4)
    rule = Window(1) | Global(1)
    bias = torch.zeros(1, 1, N, N, requires_grad=True)
    for given, text in (({"dropout": 0.5}, "joint weights"), ({"score_bias": bias}, "a learned score bias")):
        with pytest.raises(ValueError, match=text):
            attend(q, q, q, rule, kernel="merge", **given)
    plan = MessagePassing(rule | Graph(EDGES, N), QKSoftmax(8, 2)).plan(torch.ones(N, 8))
    assert [p.kernel for p in plan.parts][:2] == ["tiles", "tiles"] and sum(p.edges for p in plan.parts) == plan.edges
    assert "edges → tiles" in str(plan)


LISTED = [k for k in merge.PARTS if k.name in ("native", "edge_softmax")]
RULES = {
    "window and graph": Window(2) | Graph(EDGES, N),
    "two graphs": Graph(EDGES, N) | Graph(EDGES.flip(0), N),
    "all three": Blocks(7, shift=2) | Global(1) | Graph(EDGES, N),
}
MASKS = {
    "plain": {},
    "masked": {"mask": torch.rand(2, N) < 0.7, "pair_mask": torch.rand(2, 4, N, N) < 0.8},
    "biased": {"score_bias": torch.randn(4, N, N, dtype=torch.float64), "mask": torch.arange(N) > 3},
    "ALiBi": {"score_bias": ALiBi(4), "scale": 0.3},
}


@pytest.mark.parametrize("listed", LISTED, ids=lambda k: k.name)
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("given", MASKS)
def test_each_kernel_of_a_listed_part(listed, name: str, given: str, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """The best of them hides the others, so each is the only one in its turn: values, gradients, a vmapped axis."""
    monkeypatch.setattr(merge, "PARTS", [*(k for k in merge.PARTS if k.name == "tiles"), listed])
    shapes = ((2, 4, N, 3), (2, 2, N, 3), (2, 2, N, 3))  # two query heads for each key
    q, k, v = (torch.randn(*s, dtype=torch.float64).requires_grad_() for s in shapes)
    upstream = torch.randn_like(q)
    found = []
    for kernel in ("merge", "reference"):
        y = attend(q, k, v, RULES[name], kernel=kernel, **MASKS[given])
        found.append([y, *torch.autograd.grad(y, (q, k, v), upstream)])
    torch.testing.assert_close(*found)
    if given == "plain":
        many = [torch.stack([t, 2 * t]).detach() for t in (q, k, v)]
        mapped = torch.func.vmap(lambda *t: attend(*t, RULES[name], kernel="merge"))(*many)
        torch.testing.assert_close(mapped[0], found[0][0])
