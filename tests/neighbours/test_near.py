"""KNN and Radius: against scikit-learn and a loop, on features and coordinates, and what no neighbour may change."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor
from torch.func import grad, jacrev, vmap

from mpnn import MessagePassing, Tokens, attend, nearness
from mpnn.neighbours import KNN, AllTokens, Edges, Full, Grid, Neighbours, Radius
from mpnn.weights import EdgeLearned, QKSoftmax, RadialFilter, SharedKernel


def ends(edges: Edges) -> list[tuple[int, int]]:
    return list(zip(edges.target.tolist(), edges.source.tolist(), strict=True))


def by_loop(rule: KNN | Radius, a: Tensor, b: Tensor | None = None) -> list[tuple[int, int]]:
    """Pairs of targets ``a`` and sources ``b``; of ``a`` alone, each with all others."""
    made, sources = [], a if b is None else b
    for i, p in enumerate(a.tolist()):
        found = [(math.dist(p, q), j) for j, q in enumerate(sources.tolist()) if b is not None or i != j]
        found = sorted(found)[: rule.k] if isinstance(rule, KNN) else [f for f in found if f[0] <= rule.r]
        made += sorted((i, j) for _, j in found)
    return made


RULES = [KNN(1), KNN(4), KNN(30), KNN(31), KNN(99), Radius(0.0), Radius(1.0), Radius(math.sqrt(2.0)), Radius(2.5)]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_ties_go_to_the_lower_index(rule: Neighbours, small: bool, dtype: torch.dtype, monkeypatch) -> None:
    """Whole points on a small grid, many of them equal: nearly every choice cuts a tie."""
    if small:
        monkeypatch.setattr(nearness, "_DISTANCES", 64)
    a, b = (torch.randint(0, 4, (n, 2)).to(dtype) for n in (31, 17))
    one, other = Tokens(torch.ones(31, 1), coordinates=a), Tokens(torch.ones(17, 1), coordinates=b)
    assert ends(rule.edges(31, 31, tokens=one)) == by_loop(rule, a)
    assert ends(rule.edges(31, 17, tokens=(other, one))) == by_loop(rule, a, b)
    assert ends(rule.edges(17, 31, tokens=(one, other))) == by_loop(rule, b, a)
    assert ends(rule.edges(17, 17, tokens=(other, other))) == by_loop(rule, b, b), "of two sets none is its own"


def test_equal_distances_in_any_direction_are_equal() -> None:
    """Points around the origin, far from it in units of their distance: (3, 4, 12) in every order and sign is 13."""
    steps = [(3.0, 4.0, 12.0), (12.0, 3.0, 4.0), (-4.0, 12.0, -3.0), (0.0, 5.0, 12.0), (13.0, 0.0, 0.0)]
    for scale, dtype in ((1.0, torch.float32), (0.1, torch.float32), (1.0, torch.float64)):
        at = torch.tensor([[1000.0] * 3] * 6, dtype=dtype)
        at[1:] += torch.tensor(steps, dtype=dtype)
        at = at * scale if scale == 1.0 else at
        made = KNN(3).edges(6, 6, tokens=Tokens(at)).source[:3]
        assert made.tolist() == [1, 2, 3]
        assert len(Radius(13.0).edges(1, 5, tokens=(Tokens(at[1:]), Tokens(at[:1])))) == 5


def test_a_distance_that_is_the_radius_in_the_dtype_of_the_coordinates() -> None:
    for dtype in (torch.float32, torch.float64):
        line = Tokens(torch.tensor([[0.0, 0.0], [0.3, 0.0], [0.3, 0.4]], dtype=dtype))
        assert ends(Radius(0.3).edges(3, 3, tokens=line)) == [(0, 1), (1, 0)]
        assert len(Radius(0.5).edges(3, 3, tokens=line)) == 6


@pytest.mark.parametrize("width", [1, 3, 20])
def test_scikit_learn(width: int) -> None:
    x = torch.randn(300, width)
    other = torch.randn(200, width)
    peer = NearestNeighbors(algorithm="brute").fit(other.double().numpy())
    nearest = torch.from_numpy(peer.kneighbors(x.double().numpy(), 7, return_distance=False)).sort(1).values
    two_sets = (Tokens(other), Tokens(x))
    assert torch.equal(KNN(7).edges(300, 200, tokens=two_sets).source.view(300, 7), nearest)
    r = math.sqrt(width)
    within = peer.radius_neighbors_graph(x.double().numpy(), r).toarray()
    made = torch.zeros(300, 200)
    edges = Radius(r).edges(300, 200, tokens=two_sets)
    made[edges.target, edges.source] = 1
    assert torch.equal(made, torch.from_numpy(within).float()) and len(edges) == int(within.sum())
    assert 0 < within.sum() < 300 * 200


@pytest.mark.parametrize("rule", [KNN(2), Radius(1.0)], ids=str)
@pytest.mark.parametrize("rows", [1, 3, 128])
def test_a_batch_is_its_graphs_one_by_one(rule: Neighbours, rows: int, monkeypatch) -> None:
    """Graphs of several sizes, an empty one and one of a single token among them, in blocks that cut them."""
    monkeypatch.setattr(nearness, "_ROWS", rows)
    sizes, others = [3, 0, 1, 7, 2], [2, 1, 0, 6, 4]
    x, y = torch.randn(13, 2), torch.randn(13, 2)
    batch, other = (torch.repeat_interleave(torch.arange(5), torch.tensor(t)) for t in (sizes, others))
    layer = MessagePassing(rule, QKSoftmax(2, 1))
    parts = [layer(x[batch == g]) for g in range(5)]
    torch.testing.assert_close(layer(x, batch=batch), torch.cat(parts))
    parts = [layer((y[other == g], x[batch == g])) for g in range(5)]
    torch.testing.assert_close(layer(x, source=Tokens(y, batch=other), batch=batch), torch.cat(parts))


@pytest.mark.parametrize("rule", [KNN(2), Radius(2.0)], ids=str)
@pytest.mark.parametrize("fill", [0.0, math.nan, math.inf, 1e10])
@pytest.mark.parametrize("where", ["features", "coordinates"])
def test_masked_tokens_take_no_place(rule: Neighbours, fill: float, where: str) -> None:
    """Case 11: as if the masked tokens were not there, whatever stands in them."""
    x, at = torch.randn(9, 4), torch.randn(9, 2)
    mask = torch.tensor([1, 1, 0, 1, 1, 0, 1, 1, 1]).bool()
    x[~mask], at[~mask] = fill, fill
    layer = MessagePassing(rule, EdgeLearned(4, 4, RadialFilter(4, cutoff=5.0), groups=4, value=True))
    if where == "features":
        layer = MessagePassing(rule, QKSoftmax(4, 2))
    brought = {} if where == "features" else {"coordinates": at}
    kept = {} if where == "features" else {"coordinates": at[mask]}
    x.requires_grad_()
    y, edges = layer(x, mask=mask, **brought, return_weights=True)
    torch.testing.assert_close(y[mask], layer(x[mask], **kept))
    assert mask[edges.source].all() and mask[edges.target].all()
    (slope,) = torch.autograd.grad(y[mask].sum(), x)
    assert slope.isfinite().all() and not slope[~mask].any()


def test_places_that_are_no_numbers_are_near_nothing() -> None:
    at = torch.tensor([[0.0], [math.nan], [1.0], [math.inf]])
    assert ends(KNN(3).edges(4, 4, tokens=Tokens(at))) == [(0, 2), (2, 0)]
    assert ends(Radius(math.inf).edges(4, 4, tokens=Tokens(at))) == [(0, 2), (2, 0)]


@pytest.mark.parametrize("rule", [Grid(7, 3, stride=2, padding=1) & KNN(2), Full(7, 4) - Radius(1.0)], ids=str)
def test_targets_of_a_rule_of_its_own_have_no_places(rule: Neighbours) -> None:
    """What has no token is near nothing, and not near what the token of its number is near."""
    layer, x, y = MessagePassing(rule, SharedKernel(2, 2)), torch.randn(7, 2), torch.randn(4, 2)
    with pytest.raises(ValueError, match=r"expected \(x_source, x_target\) .* compares its 4 targets with the sources"):
        layer(x)
    assert layer((x, y)).shape == (4, 2)


def test_neighbours_are_made_at_each_call() -> None:
    layer = MessagePassing(KNN(1), SharedKernel(1, 1, fixed=True, value=False))
    x = torch.tensor([[0.0], [1.0], [5.0]])
    assert layer(x).flatten().tolist() == [1.0, 0.0, 1.0]
    x[0] = 4.5
    assert layer(x).flatten().tolist() == [5.0, 4.5, 4.5]
    with torch.inference_mode():
        assert layer(x + 0).flatten().tolist() == [5.0, 4.5, 4.5]


@pytest.mark.parametrize("rule", [KNN(3), Radius(2.0)], ids=str)
def test_attend(rule: Neighbours) -> None:
    """The pairs of the loop as a mask of SDPA; one set where there is one tensor of coordinates."""
    q, k, v = torch.randn(3, 2, 8, 4)
    at, other = torch.randn(8, 2), torch.randn(8, 2)
    for places, pairs in (
        (at, by_loop(rule, at)),
        ((other, at), by_loop(rule, at, other)),
        ((at, at), by_loop(rule, at, at)),
    ):
        seen = torch.zeros(8, 8, dtype=torch.bool)
        seen[tuple(torch.tensor(pairs).t())] = True
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen).masked_fill(~seen.any(1)[:, None], 0)
        torch.testing.assert_close(attend(q, k, v, rule, coordinates=places), expected)
    fast = torch.compile(lambda q, at: attend(q, k, v, rule, coordinates=at), fullgraph=True, backend="eager")
    torch.testing.assert_close(fast(q, at), attend(q, k, v, rule, coordinates=at))


@pytest.mark.parametrize("rule", [KNN(2), Radius(2.0)], ids=str)
def test_no_gradient_through_the_choice(rule: Neighbours) -> None:
    """Of features: the gradient is that of the same edges given, also under transforms; vmap is refused."""
    layer = MessagePassing(rule, QKSoftmax(3, 1)).double()
    x = torch.randn(6, 3, dtype=torch.float64)
    edges = rule.edges(6, 6, tokens=Tokens(x))
    mask = torch.zeros(6, 6, dtype=torch.bool)
    mask[edges.target, edges.source] = True
    given = MessagePassing(AllTokens(), layer.weight)
    torch.testing.assert_close(
        grad(lambda x: layer(x).square().sum())(x), grad(lambda x: given(x, pair_mask=mask).square().sum())(x)
    )
    torch.testing.assert_close(jacrev(layer)(x), jacrev(lambda x: given(x, pair_mask=mask))(x))
    assert torch.autograd.gradcheck(layer, (x.requires_grad_(),))
    for mapped in (vmap(layer), vmap(grad(lambda x: layer(x).sum()))):
        with pytest.raises(ValueError, match=r"vmap does not map over for .*, got mapped ones; .*batch="):
            mapped(x.detach().expand(2, 6, 3))
    at = torch.randn(6, 2, dtype=torch.float64)
    several = torch.randn(2, 6, 3, dtype=torch.float64)
    one_by_one = torch.stack([layer(x, coordinates=at) for x in several])
    torch.testing.assert_close(vmap(lambda x: layer(x, coordinates=at))(several), one_by_one)


@pytest.mark.parametrize("rule", [KNN(2), KNN(9), Radius(1.0)], ids=str)
def test_compiled_with_ties(rule: Neighbours) -> None:
    layer = MessagePassing(rule, SharedKernel(2, 3))
    fast = torch.compile(layer, fullgraph=True, dynamic=True, backend="eager")
    for n in (7, 12):
        x = torch.randint(0, 3, (n, 2)).float()
        mask = torch.rand(n) < 0.8
        torch.testing.assert_close(fast(x, mask=mask), layer(x, mask=mask))
        batch = torch.arange(n) // 4
        torch.testing.assert_close(fast(x, batch=batch), layer(x, batch=batch))


def test_memory_is_bounded() -> None:
    """No tensor over all pairs: the largest that is made is a block."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, f, types, args=(), kwargs=None):
            nonlocal largest
            made = f(*args, **kwargs or {})
            largest = max(largest, made.numel() if isinstance(made, Tensor) else 0)
            return made

    x = Tokens(torch.randn(3000, 16))
    with Watch():
        KNN(4).edges(3000, 3000, tokens=x)
    assert 3000 * 16 <= largest <= nearness._DISTANCES < 3000**2
    with pytest.raises(ValueError, match=r"expected tokens= for the edges of KNN\(4\)"):
        KNN(4).edges(3, 3)
