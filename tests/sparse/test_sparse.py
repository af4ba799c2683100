"""Sparse products against dense ones: values, derivatives of two orders, vmap; on small graphs and as on large ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from mpnn.edges import Edges
from mpnn.sparse.attention import EdgeAttention, TokenAttention, row_softmax
from mpnn.sparse.csr import Csr
from mpnn.sparse.fixed import Fixed, Product
from mpnn.sparse.products import Rows, Sddmm, SegmentMax, SegmentSum, Spmm, sddmm, spmm

N, M, E, K, D = 4, 5, 11, 3, 2  # rows, columns, edges, matrices, channels


@pytest.fixture(params=["together", "one by one", "more edges than pairs"])
def csr(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Csr:
    """Rows with duplicates, row 2 empty; as a small graph, or as a large one whose heads run one by one."""
    if request.param == "one by one":
        monkeypatch.setattr("mpnn.sparse.csr._TOGETHER", 0)
    count = 60 if request.param == "more edges than pairs" else E
    target = torch.randint(0, N - 1, (count,))
    return Csr.of(Edges(torch.randint(0, M, (count,)), target + (target >= 2)), N, M)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def dense(csr: Csr, weight: Tensor) -> Tensor:
    """(K, E) in the rows' order → (K, N, M)."""
    empty = weight.new_zeros(len(weight), csr.shape[0] * csr.shape[1])
    return empty.index_add(1, csr.row * csr.shape[1] + csr.col.long(), weight).unflatten(1, csr.shape)


def dense_attention(csr: Csr, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax of q·k over each row's edges, times v; 0 for a row without edges."""
    rows = [csr.col[csr.row == i].long() for i in range(N)]
    weights = [(q[:, i, None] * k[:, c]).sum(-1).softmax(-1) for i, c in enumerate(rows)]
    return torch.stack([torch.einsum("ke,ked->kd", w, v[:, c]) for w, c in zip(weights, rows, strict=True)], 1)


def _tokens(csr: Csr, scale: float, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    entries = [
        dense_attention(csr, *(t.transpose(0, 1) for t in (scale * a, b, c))) for a, b, c in zip(q, k, v, strict=True)
    ]
    return torch.stack([y.transpose(0, 1) for y in entries])


def products(csr: Csr) -> dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[Tensor, ...]]]:
    """name → (ours, dense, inputs)."""
    e = len(csr.row)
    col = csr.col.long()
    fixed = random(1, e).detach()
    return {
        "fixed": (
            lambda x: Product.apply(Fixed(csr, fixed), x),
            lambda x: dense(csr, fixed)[0] @ x,
            (random(M, D),),
        ),
        "attention of tokens": (
            lambda q, k, v: TokenAttention.apply(csr, 0.7, q, k, v)[0],
            lambda q, k, v: _tokens(csr, 0.7, q, k, v),
            (random(2, N, K, D), random(2, M, K, D), random(2, M, K, D + 1)),
        ),
        "spmm": (
            lambda w, x: spmm(csr, w, x),
            lambda w, x: dense(csr, w) @ x,
            (random(K, e), random(K, M, D)),
        ),
        "spmm of one matrix": (
            lambda w, x: spmm(csr, w, x),
            lambda w, x: dense(csr, w) @ x,
            (random(1, e), random(K, M, D)),
        ),
        "spmm of ones": (
            lambda x: spmm(csr, None, x),
            lambda x: dense(csr, torch.ones(1, e, dtype=x.dtype)) @ x,
            (random(K, M, D),),
        ),
        "sddmm": (
            lambda a, b: sddmm(csr, a, b),
            lambda a, b: (a[:, csr.row] * b[:, col]).sum(-1),
            (random(K, N, D), random(K, M, D)),
        ),
        "segment sum": (
            lambda x: SegmentSum.apply(csr, x),
            lambda x: dense(csr, x).sum(-1),
            (random(K, e),),
        ),
        "rows": (lambda x: Rows.apply(csr, x), lambda x: x[:, csr.row], (random(K, N),)),
        "attention": (
            lambda q, k, v: EdgeAttention.apply(csr, q, k, v)[0],
            lambda q, k, v: dense_attention(csr, q, k, v),
            (random(K, N, D), random(K, M, D), random(K, M, D + 1)),
        ),
        "softmax": (
            lambda s: row_softmax(csr, s),
            lambda s: torch.cat([s[:, csr.row == i].softmax(-1) for i in range(N)], 1),
            (random(K, e),),
        ),
    }


NAMES = (
    "fixed",
    "attention of tokens",
    "attention",
    "spmm",
    "spmm of one matrix",
    "spmm of ones",
    "sddmm",
    "segment sum",
    "rows",
    "softmax",
)


@pytest.mark.parametrize("name", NAMES)
def test_products_are_the_dense_ones(csr: Csr, name: str) -> None:
    ours, theirs, inputs = products(csr)[name]
    torch.testing.assert_close(ours(*inputs), theirs(*inputs))
    assert torch.autograd.gradcheck(ours, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(ours, inputs, fast_mode=True)
    up = torch.randn_like(theirs(*inputs))
    mine, expected = (torch.autograd.grad(f(*inputs), inputs, up) for f in (ours, theirs))
    torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("name", NAMES)
def test_products_under_vmap_and_grad(csr: Csr, name: str) -> None:
    ours, theirs, inputs = products(csr)[name]
    plain = [t.detach() for t in inputs]
    for where in range(1, 1 << len(plain)):  # every choice of the inputs that are mapped over, along another axis each
        dims = tuple(place if where >> place & 1 else None for place in range(len(plain)))
        mapped = [t if d is None else torch.stack([t, 2 * t, t - 1], d) for t, d in zip(plain, dims, strict=True)]
        torch.testing.assert_close(vmap(ours, dims)(*mapped), vmap(theirs, dims)(*mapped))
        totals = [lambda *t, f=f, dims=dims: vmap(f, dims)(*t).square().sum() for f in (ours, theirs)]
        mine, expected = (grad(f)(*mapped) for f in totals)
        torch.testing.assert_close(mine, expected)
    squared = [lambda *t, f=f: f(*t).pow(2).sum() for f in (ours, theirs)]
    twice = [grad(lambda *t, f=f: grad(f)(*t).pow(2).sum()) for f in squared]
    torch.testing.assert_close(twice[0](*plain), twice[1](*plain))
    each = [vmap(grad(f))(*[torch.stack([t, t + 1]) for t in plain]) for f in squared]
    torch.testing.assert_close(each[0], each[1])


def test_maximum_and_masked_softmax(csr: Csr) -> None:
    scores = random(K, len(csr.row)).detach()
    scores[:, csr.row == 1] = -torch.inf
    scores[0, csr.row == 0] = -torch.inf
    top = SegmentMax.apply(csr, scores)
    for k in range(K):
        for i in range(N):
            own = scores[k, csr.row == i]
            least = torch.finfo(own.dtype).min  # so that what is -inf stays that when it is taken off
            assert top[k, i] == (own.max() if len(own) and own.max() > -torch.inf else least)
    weight = row_softmax(csr, scores)
    assert bool(weight.isfinite().all()) and not weight[:, csr.row == 1].any() and not weight[0, csr.row == 0].any()
    expected = torch.full((K,), float((csr.row == 3).any()), dtype=torch.float64)
    torch.testing.assert_close(weight[:, csr.row == 3].sum(1), expected)


def test_the_transpose_is_the_other_way_round(csr: Csr) -> None:
    weight = torch.randn(1, len(csr.row), dtype=torch.float64)
    flipped = csr.transpose
    torch.testing.assert_close(dense(flipped, weight[:, flipped.order]), dense(csr, weight).transpose(1, 2))
    back = flipped.transpose
    assert torch.equal(weight[:, flipped.order][:, back.order], weight) and back.transpose is flipped
    assert csr.transpose is flipped  # made once


def test_rows_keep_the_order_of_edges() -> None:
    """Edges of a target stay in the caller's order; with relations a row for each (relation, target)."""
    edges = Edges(torch.tensor([3, 1, 2, 0]), torch.tensor([1, 0, 1, 1]), torch.tensor([1, 0, 0, 1]))
    one, two = Csr.of(edges, 2, 4), Csr.of(edges, 2, 4, 2)
    assert one.order.tolist() == [1, 0, 2, 3] and one.col.tolist() == [1, 3, 2, 0] and one.shape == (2, 4)
    assert two.row.tolist() == [0, 1, 3, 3] and two.order.tolist() == [1, 2, 0, 3] and two.shape == (4, 4)
    assert Csr.of(edges, 2, 4) is one


EMPTY = [(3, 3, 0, 2, 2), (0, 0, 0, 2, 2), (3, 0, 0, 1, 2), (3, 3, 4, 2, 0), (3, 3, 4, 0, 2)]


@pytest.mark.parametrize(("n", "m", "e", "k", "d"), EMPTY)
def test_nothing_to_add(n: int, m: int, e: int, k: int, d: int) -> None:
    csr = Csr.of(Edges(torch.zeros(e, dtype=torch.int64), torch.zeros(e, dtype=torch.int64)), n, m)
    w, x, a = random(k, e), random(k, m, d), random(k, n, d)
    for ours, shape, inputs in (
        (spmm, (k, n, d), (w, x)),
        (sddmm, (k, e), (a, x)),
        (lambda c, w: SegmentSum.apply(c, w), (k, n), (w,)),
        (lambda c, w: row_softmax(c, w), (k, e), (w,)),
    ):
        y = ours(csr, *inputs)
        assert y.shape == shape and bool(y.isfinite().all())
        grads = torch.autograd.grad(y.sum(), inputs, allow_unused=True)
        assert all(g is None or bool(g.isfinite().all()) for g in grads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_weight_that_was_written_to_is_read_again(dtype: torch.dtype) -> None:
    csr = Csr.of(Edges(torch.tensor([0, 1]), torch.tensor([1, 0])), 2, 2)
    weight, x = torch.ones(1, 2, dtype=dtype), torch.ones(1, 2, 1, dtype=dtype)
    assert spmm(csr, weight, x).sum() == 2
    weight.mul_(3)
    assert spmm(csr, weight, x).sum() == 6
    assert spmm(csr, torch.zeros(1, 2, dtype=dtype), x).sum() == 0


def test_functions_have_vmap_and_no_forward_mode() -> None:
    """What the kernels refuse under forward-mode is refused here too, and never 0 without a word."""
    csr = Csr.of(Edges(torch.tensor([0, 1]), torch.tensor([1, 0])), 2, 2)
    x = torch.ones(1, 2, 1)
    with pytest.raises(RuntimeError, match="jvp"):
        torch.func.jvp(lambda x: spmm(csr, None, x), (x,), (x,))
    for function in (Spmm, Sddmm, SegmentSum, Rows, SegmentMax, EdgeAttention, TokenAttention, Product):
        assert "vmap" in function.__dict__
