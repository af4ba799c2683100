"""padded: where small graphs are cut, widths, parallel edges, empty rows, pieces, both ways of computing, reasons."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mpnn import MessagePassing, attend, limits, use_kernels
from mpnn.attend import bind_attention
from mpnn.edges import Edges
from mpnn.kernels import edge_softmax, padded
from mpnn.neighbours import Graph
from mpnn.positions import ALiBi
from mpnn.tiles.graphs import WIDTHS, SmallGraphs, padded_pairs, parts_of
from mpnn.weights import QKSoftmax

SIZES = [5, 1, 9, 3, 17, 1, 40, 8]  # two nodes stand alone


def molecules(sizes: list[int] = SIZES, loops: bool = True) -> tuple[Tensor, int]:
    """Connected graphs side by side, their edges in any order: a path one way, other pairs at random, some twice, and
    some loops; the first node of each is in no pair as a target but by chance."""
    ends, first = [], 0
    for n in sizes:
        path = torch.arange(n - 1)
        more = torch.randint(0, n, (2, 2 * n if n > 1 else 0))
        more = more if loops else more[:, more[0] != more[1]]
        ends += [torch.stack([path, path + 1]) + first, more + first, more[:, : n // 2] + first]
        first += n
    index = torch.cat(ends, 1)
    return index[:, torch.randperm(index.shape[1])], first


def components(index: Tensor, nodes: int) -> list[int]:
    """The first node of each node's component, by a loop; components of these graphs are ranges."""
    of = list(range(nodes))
    for _ in range(nodes):
        for s, t in index.t().tolist():
            of[s] = of[t] = min(of[s], of[t])
    return of


def dense(q: Tensor, k: Tensor, v: Tensor, index: Tensor, bias: Tensor | None = None) -> Tensor:
    """Attention by torch over all pairs, parallel edges as the sum of their weights; bias (E, heads)."""
    n = q.shape[-2]
    weight = torch.zeros(q.shape[-3], n, n, dtype=q.dtype)
    each = torch.ones(index.shape[1], q.shape[-3], dtype=q.dtype) if bias is None else bias.exp()
    for e, (s, t) in enumerate(index.t().tolist()):
        weight[:, t, s] += each[e]
    some = (weight > 0).any(-1, keepdim=True)
    mask = torch.where(some, weight.log(), 0)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).masked_fill(~some, 0)


def leaves(nodes: int, dtype: torch.dtype = torch.float64, lead: tuple[int, ...] = ()) -> list[Tensor]:
    return [torch.randn(*lead, 2, nodes, 4, dtype=torch.float64).to(dtype).requires_grad_() for _ in range(3)]


def test_cuts_are_where_graphs_end() -> None:
    for loops in (True, False):
        index, nodes = molecules(loops=loops)
        found = parts_of(Edges(index[0], index[1]), nodes)
        assert found.first[found.of].tolist() == components(index, nodes)
        size = torch.bincount(found.of)
        assert size.tolist() == SIZES and bool((found.width[size > 1] >= size[size > 1]).all())
    assert parts_of(Edges(torch.tensor([0]), torch.tensor([2])), 4).of.tolist() == [0, 0, 0, 1]  # 1 lies between


def test_an_edge_stands_in_the_row_of_its_target_and_the_column_of_its_source() -> None:
    index, nodes = molecules()
    made = SmallGraphs(Edges(index[0], index[1]), nodes)
    met = torch.zeros(nodes, nodes, dtype=torch.int64)
    count = made.added(None, torch.float64).exp()
    for b in made.buckets:
        assert b.width in WIDTHS
        rows = made.rows[b.first_row : b.first_row + b.graphs * b.width].view(b.graphs, b.width)
        home = made.home[b.first_row : b.first_row + b.graphs * b.width].view(b.graphs, b.width)
        assert torch.equal(rows[home < nodes], home[home < nodes]) and bool((home[:, 0] == rows[:, 0]).all())
        assert bool((rows[home == nodes] == rows[:, :1].expand_as(rows)[home == nodes]).all())
        pairs = count[b.first_pair : b.first_pair + b.graphs * b.width**2].view(b.graphs, b.width, b.width)
        for g, i, j in pairs.round().nonzero().tolist():
            assert home[g, i] < nodes and home[g, j] < nodes
            met[rows[g, i], rows[g, j]] += int(pairs[g, i, j].round())
    expected = torch.zeros_like(met).index_put((index[1], index[0]), torch.tensor(1), accumulate=True)
    assert torch.equal(met, expected) and expected.max() > 1
    homes = torch.cat([made.home[made.home < nodes], torch.arange(0) if made.outside is None else made.outside])
    assert homes.sort().values.tolist() == list(range(nodes))
    assert made.pairs == padded_pairs(Edges(index[0], index[1]), nodes)


def test_padding_is_a_quarter_at_most_and_shapes_are_few() -> None:
    sizes = torch.arange(1, 5000)
    width = torch.tensor(WIDTHS)[torch.bucketize(sizes, torch.tensor(WIDTHS))]
    assert bool((width >= sizes).all()) and bool((width % 8 == 0).all())
    assert bool((4 * width <= 5 * sizes + 3)[sizes >= 32].all()) and bool((width - sizes < 8)[sizes <= 64].all())
    assert len(width.unique()) < 35 and sorted(WIDTHS) == WIDTHS and WIDTHS[-1] >= 2**31


def test_a_large_graph_pads_no_other() -> None:
    index, nodes = molecules([6] * 50 + [1] * 30 + [200])  # and nodes without an edge take no room
    assert padded_pairs(Edges(index[0], index[1]), nodes) == 50 * 8**2 + 224**2


@pytest.mark.parametrize("fused", [("cpu",), ()], ids=["fused", "written out"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_values_and_gradients_are_masked_attention(
    dtype: torch.dtype, fused: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(padded, "FUSED", fused)
    index, nodes = molecules()
    q, k, v = leaves(nodes, dtype, (3,))
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    expected, grad = dense(*wide, index), torch.randn(3, 2, nodes, 4, dtype=torch.float64)
    y = attend(q, k, v, Graph(index, nodes), kernel="padded")
    mine, theirs = torch.autograd.grad(y, (q, k, v), grad.to(dtype)), torch.autograd.grad(expected, wide, grad)
    limit = {torch.float64: 1e-12, torch.float32: 2e-6}.get(dtype, 3e-2)
    for a, b in zip((y, *mine), (expected, *theirs), strict=True):
        assert a.dtype == dtype and (a.double() - b).abs().max() <= limit * b.abs().max()


@pytest.mark.parametrize("fused", [("cpu",), ()], ids=["fused", "written out"])
@pytest.mark.parametrize("parallel", [True, False])
def test_biases_of_edges_and_masks(parallel: bool, fused: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padded, "FUSED", fused)
    index, nodes = molecules()
    index = index if parallel else index.unique(dim=1)
    rule, leaf = Graph(index, nodes), leaves(nodes, lead=(2,))
    bias = 30 * torch.randn(index.shape[1], 2, dtype=torch.float64)
    y = attend(*leaf, rule, score_bias=bias, kernel="padded")
    torch.testing.assert_close(y, dense(*leaf, index, bias))
    given: list[dict[str, Any]] = [
        {"score_bias": bias, "mask": torch.rand(2, nodes) < 0.6},
        {"score_bias": 100 * bias},
        {"score_bias": ALiBi(2), "pair_mask": torch.rand(2, 2, nodes, nodes) < 0.5},
        {"score_bias": torch.randn(2, 1, nodes, nodes, dtype=torch.float64), "mask": torch.rand(nodes) < 0.5},
        {"score_bias": torch.full((nodes, nodes), -torch.inf, dtype=torch.float64)},
    ]
    for more in given:
        found = []
        for name in ("padded", "reference"):
            y = attend(*leaf, rule, kernel=name, **more)
            found.append([y, *torch.autograd.grad(y.square().sum(), leaf)])
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("fused", [("cpu",), ()], ids=["fused", "written out"])
def test_a_node_without_a_source_is_zero(fused: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padded, "FUSED", fused)
    rule = Graph(torch.tensor([[0, 3, 3, 4], [1, 4, 5, 5]]), 7)  # 0 and 3 hear none, 2 and 6 stand alone
    leaf = leaves(7)
    call, _ = bind_attention(*leaf, rule, kernel="padded")
    parts = [kernel.partial(call).forward(*(t.detach()[None] for t in leaf)) for kernel in (padded, edge_softmax)]
    torch.testing.assert_close(*parts)  # the log-sum-exp too, -inf where there is none
    y = attend(*leaf, rule, kernel="padded")
    assert y[:, [0, 2, 3, 6]].abs().max() == 0 and parts[0][1][0, :, [0, 2, 3, 6]].max() == -torch.inf
    grads = torch.autograd.grad(y.square().sum(), leaf)
    assert all(bool(g.isfinite().all()) for g in grads) and grads[0][:, [0, 2, 3, 6]].abs().max() == 0


def test_a_node_alone_with_a_loop_hears_itself() -> None:
    leaf = leaves(4)
    y = attend(*leaf, Graph(torch.tensor([[0, 1, 3], [1, 0, 3]]), 4), kernel="padded")
    torch.testing.assert_close(y[:, [0, 1, 3]], leaf[2][:, [1, 0, 3]])
    assert y[:, 2].abs().max() == 0


@pytest.mark.parametrize("fused", [("cpu",), ()], ids=["fused", "written out"])
@pytest.mark.parametrize("small", [1, 700])
def test_few_graphs_at_a_time_are_all_at_once(
    small: int, fused: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(padded, "FUSED", fused)
    index, nodes = molecules([4, 6, 5, 12, 3, 11, 7])
    leaf, rule, seen = leaves(nodes), Graph(index, nodes), []
    pieces = padded.Padded._pieces

    def counted(part: padded.Padded, query: Tensor) -> Any:
        for piece, mask in pieces(part, query):
            seen.append(len(mask))
            yield piece, mask

    monkeypatch.setattr(padded.Padded, "_pieces", counted)
    found = []
    for block in (limits.block, small):
        monkeypatch.setattr(padded, "COPIED", block)
        with use_kernels(block=block):
            y = attend(*leaf, rule, score_bias=ALiBi(2), kernel="padded")
            found.append([y, *torch.autograd.grad(y.square().sum(), leaf)])
    torch.testing.assert_close(*found)
    assert max(seen) == 5 and (small > 1 or seen[-7:] == [1] * 7)


def test_what_stands_in_other_graphs_is_not_seen() -> None:
    index, nodes = molecules([5, 6])
    q, k, v = (t.detach() for t in leaves(nodes))
    y = attend(q, k, v, Graph(index, nodes), kernel="padded")
    for here, there in ((slice(0, 5), slice(5, None)), (slice(5, None), slice(0, 5))):
        bad = k.clone(), v.clone()
        bad[0][:, there], bad[1][:, there] = torch.inf, torch.nan
        assert torch.equal(attend(q, *bad, Graph(index, nodes), kernel="padded")[:, here], y[:, here])


def test_the_layout_is_found_once_and_double_backward_works() -> None:
    index, nodes = molecules([5, 6, 9])
    rule, leaf = Graph(index, nodes), leaves(nodes)
    made = SmallGraphs.of(rule.edges(nodes, nodes), nodes)
    found = []
    for name in ("padded", "reference"):
        y = attend(*leaf, rule, kernel=name)
        first = torch.autograd.grad(y.square().sum(), leaf, create_graph=True)
        found.append([y, *first, *torch.autograd.grad(sum(f.square().sum() for f in first), leaf)])
    torch.testing.assert_close(*found)
    assert SmallGraphs.of(rule.edges(nodes, nodes), nodes) is made and torch.float64 in made.cache
    leaf32 = [t.detach().float() for t in leaf]
    for _ in range(2):
        attend(*leaf32, rule, kernel="padded")
    assert set(made.cache) == {torch.float64, torch.float32}


def test_a_batch_of_complete_graphs_is_a_dense_batch() -> None:
    """Chosen by itself, with ``batch`` or without; a graph of nodes that are far apart is not."""
    sizes, first, ends = [60, 61, 54, 70, 68, 62], 0, []
    for n in sizes:
        ends.append(torch.cartesian_prod(torch.arange(n), torch.arange(n)).t() + first)
        first += n
    index, batch = torch.cat(ends, 1), torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    layer = MessagePassing(Graph(), QKSoftmax(8, 2)).double()
    x = torch.randn(first, 8, dtype=torch.float64)
    plan = layer.plan(x, index)
    assert plan.kernel == "padded" and plan.spec.padded == padded_pairs(Graph().link(index, None, first, first), first)
    expected = layer(x, index)
    with use_kernels("reference"):
        torch.testing.assert_close(layer(x, index), expected)
    torch.testing.assert_close(layer(x, index, batch=batch), expected)
    assert layer.plan(x, index, batch=batch).kernel == "padded"
    mixed = torch.randperm(first)
    moved = layer.plan(x, mixed[index])
    assert moved.kernel != "padded" and "pairs as a dense batch" in moved.reasons["padded"][0]
    thin = torch.stack([torch.arange(first - 1), torch.arange(1, first)])
    with pytest.raises(ValueError, match="the nodes of one are not side by side"), use_kernels("padded"):
        layer(x, thin)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"score": lambda s, p: s}, "a score function"),
        ({"dropout": 0.1}, "take parallel edges, one pair here, together"),
        ({"score_bias": torch.zeros(2, 11, 11, requires_grad=True)}, "the gradient of a score bias"),
    ],
)
def test_reasons(given: dict[str, Any], text: str) -> None:
    index, nodes = molecules([5, 6])
    q = torch.randn(2, nodes, 4)
    with pytest.raises(ValueError, match=text):
        attend(q, q, q, Graph(index, nodes), kernel="padded", **given)


def test_reasons_of_edges() -> None:
    q, k = torch.randn(2, 4, 4), torch.randn(2, 3, 4)
    none = torch.zeros(2, 0, dtype=torch.int64)
    with pytest.raises(ValueError, match="no edges"):
        attend(q, q, q, Graph(none, 4), kernel="padded")
    with pytest.raises(ValueError, match="of different numbers"):
        attend(q, k, k, Graph(torch.tensor([[0], [1]]), (3, 4)), kernel="padded")
    empty = torch.randn(0, 2, 4, 4)
    assert attend(empty, empty, empty, Graph(torch.tensor([[0], [1]]), 4)).shape == (0, 2, 4, 4)
