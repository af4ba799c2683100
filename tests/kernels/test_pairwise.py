"""pairwise: all pairs in rows of targets, made again in the backward, whatever a person's network reads.

That it agrees with the reference on every pair of rules is in test_agreement.py, there also one row at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.calls import product, trial
from helpers.cases import PLACES
from helpers.compare import agree, run
from mpnn import MessagePassing, attend, use_kernels
from mpnn.binding import bind
from mpnn.kernels import pairwise
from mpnn.neighbours import AllTokens, Graph
from mpnn.pairs import Pairs
from mpnn.segments import row_softmax, segment_softmax
from mpnn.weights import AdditiveScore, EdgeLearned, EdgeNetwork

N, C = 7, 4
KERNELS = ("pairwise", "reference")


@pytest.fixture(autouse=True, params=["rows", "whole"])
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """One or two rows at a time, and all at once."""
    if request.param == "rows":
        monkeypatch.setattr(pairwise, "CACHED", 60)
        monkeypatch.setattr(pairwise, "LEAST", 1)
        with use_kernels(block=60):
            yield request.param
    else:
        yield request.param


def layer(network: Any, **given: Any) -> MessagePassing:
    made = {"heads": 1, "value": False, "bias": False} | given
    return MessagePassing(AllTokens(), EdgeLearned(C, C, network, **made)).double()


def tokens(seed: int = 0, count: int = N) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    make = lambda width: torch.randn(count, width, generator=generator, dtype=torch.float64).requires_grad_()  # noqa: E731
    return {"x": make(C), "p": make(3)}


def compared(
    mine: Callable[..., Tensor], theirs: Callable[..., Tensor], given: dict[str, Tensor], twice: bool = True
) -> None:
    expected = run(lambda: theirs(**given), given, twice)
    for kernel in KERNELS:
        with use_kernels(kernel):
            agree(run(lambda: mine(**given), given, twice), expected, torch.float64, kernel)


def test_gaussian_sums_are_those_of_the_matrix() -> None:
    rule = layer(lambda pairs: (-0.5 * pairs.offset.square().sum(-1, keepdim=True)).exp())
    assert rule.plan(torch.ones(N, C), coordinates=torch.ones(N, 3)).kernel == "pairwise"
    dense = lambda x, p: (-0.5 * (p[:, None] - p).square().sum(-1)).exp() @ x  # noqa: E731
    compared(lambda x, p: rule(x, coordinates=p), dense, tokens())


def test_a_function_may_read_what_has_a_gradient() -> None:
    """A parameter, a result of others, a module; each alone in the backward of the rest."""
    given = tokens() | {"width": torch.tensor(0.7, dtype=torch.float64, requires_grad=True)}
    net = nn.Linear(1, 1).double()
    given |= {"weight": net.weight, "shift": net.bias}

    def kernel(squared: Tensor, width: Tensor) -> Tensor:
        return torch.tanh(net(-squared * width)) + width

    def mine(x: Tensor, p: Tensor, width: Tensor, **_: Tensor) -> Tensor:
        made = torch.nn.functional.softplus(width)  # a tensor of this forward's graph
        rule = layer(lambda pairs: kernel(pairs.offset.square().sum(-1, keepdim=True), made))
        return rule(x, coordinates=p)

    def theirs(x: Tensor, p: Tensor, width: Tensor, **_: Tensor) -> Tensor:
        squared = (p[:, None] - p).square().sum(-1, keepdim=True)
        return kernel(squared, torch.nn.functional.softplus(width)).squeeze(-1) @ x

    compared(mine, theirs, given)


def test_a_function_may_read_the_tokens_by_itself() -> None:
    given = tokens()
    rule = layer(lambda pairs: pairs.x_source.sum(-1, keepdim=True) + given["x"].square().sum())
    dense = lambda x, p: (x.sum(-1) + x.square().sum()).expand(N, N) @ x  # noqa: E731
    compared(lambda x, p: rule(x), dense, given)


def test_gradients_may_be_mapped_over() -> None:
    """Rows of a Jacobian at once: a backward whose upstream gradient is a batch."""
    given = tokens()
    rule = layer(lambda pairs: (-0.5 * pairs.offset.square().sum(-1, keepdim=True)).exp())
    f = lambda x, p: rule(x, coordinates=p)  # noqa: E731
    expected = torch.autograd.functional.jacobian(f, tuple(given.values()))
    for kernel in KERNELS:
        with use_kernels(kernel):
            found = torch.autograd.functional.jacobian(f, tuple(given.values()), vectorize=True)
            torch.testing.assert_close(found, expected)


def test_a_gradient_of_what_is_not_read_is_none() -> None:
    given, rule = tokens(), layer(lambda pairs: pairs.x_source.detach().sum(-1, keepdim=True))
    x = given["x"].detach()
    for kernel in KERNELS:
        with use_kernels(kernel):
            y = rule((x, given["x"]))
            for twice in (True, False):
                (grad,) = (
                    torch.autograd.grad(y.sum(), given["x"], create_graph=twice, allow_unused=True)
                    if (y.requires_grad)
                    else (None,)
                )
                assert grad is None or not grad.any()


class Doubled(torch.autograd.Function):
    """A function of a person's own, into which no one sees."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return 2 * a * b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return 2 * grad * b, (2 * grad * a).sum()


def test_a_function_that_hides_what_it_reads() -> None:
    given = tokens() | {"width": torch.tensor(0.7, dtype=torch.float64, requires_grad=True)}
    rule = layer(lambda pairs: Doubled.apply(pairs.offset.square().sum(-1, keepdim=True), given["width"]))
    dense = lambda x, p, width: (2 * width * (p[:, None] - p).square().sum(-1)) @ x  # noqa: E731
    compared(lambda x, p, width: rule(x, coordinates=p), dense, given)


def test_a_function_that_differentiates_inside() -> None:
    """The slope of an energy, by a leaf that is made at every call."""

    def slope(pairs: Pairs) -> Tensor:
        squared = pairs.offset.detach().square().sum(-1, keepdim=True).requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(squared.pow(1.5).sum(), squared, create_graph=True)[0]

    rule = layer(slope)
    dense = lambda x, p: 1.5 * (p[:, None] - p).detach().square().sum(-1).sqrt() @ x  # noqa: E731
    compared(lambda x, p: rule(x, coordinates=p), dense, tokens(), twice=False)


def test_a_tensor_read_for_some_targets_only_is_told(rows: str) -> None:
    width = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def some(pairs: Pairs) -> Tensor:
        squared = pairs.offset.square().sum(-1, keepdim=True)
        return squared * width if int(pairs.target.max()) > 2 else squared

    given = tokens()
    for kernel in KERNELS:
        with use_kernels(kernel):
            y = layer(some)(given["x"], coordinates=given["p"])
        if rows == "rows":
            with pytest.raises(
                RuntimeError, match="reads the same tensors for all targets, got one that reads a tensor"
            ):
                y.sum().backward()
        else:
            y.sum().backward()


def test_a_tensor_replaced_before_the_backward_is_told(rows: str) -> None:
    read = {"width": torch.ones((), dtype=torch.float64, requires_grad=True)}
    given = tokens()
    with use_kernels("pairwise"):
        y = layer(lambda pairs: pairs.offset.square().sum(-1, keepdim=True) * read["width"])(
            given["x"], coordinates=given["p"]
        )
    read["width"] = torch.zeros((), dtype=torch.float64)
    if rows == "rows":
        with pytest.raises(RuntimeError, match="must not be replaced before the backward"):
            y.sum().backward()
    else:
        y.sum().backward()


class Drawn(EdgeNetwork):
    """A network with parameters that draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, pairs: Pairs) -> Tensor:
        return nn.functional.dropout(torch.tanh(self.layer(pairs.offset)), 0.5)


def test_what_is_made_again_draws_the_same_numbers() -> None:
    rule, given = layer(Drawn(), dropout=0.3), tokens()

    def drawn(*leaves: Tensor) -> Tensor:
        torch.manual_seed(1)
        return rule(leaves[0], coordinates=leaves[1])

    for kernel in KERNELS:
        with use_kernels(kernel):
            assert torch.autograd.gradcheck(drawn, (*given.values(), *rule.parameters()), fast_mode=True), kernel
            after = [(drawn(*given.values()), torch.rand(2))[1] for _ in range(2)]
            assert torch.equal(*after), kernel
            y = drawn(*given.values())
            state = torch.get_rng_state()
            y.sum().backward()
            assert torch.equal(torch.get_rng_state(), state), "a backward draws from a generator of its own"


def test_the_backward_runs_in_the_autocast_of_the_forward() -> None:
    seen: list[torch.dtype] = []

    def noted(pairs: Pairs) -> Tensor:
        found = pairs.x_source @ torch.ones(C, 1)
        seen.append(found.dtype)
        return found

    rule = MessagePassing(AllTokens(), EdgeLearned(C, C, noted, heads=1))
    for kernel in KERNELS:
        with use_kernels(kernel):
            with torch.autocast("cpu", torch.bfloat16):
                y = rule(torch.ones(N, C, requires_grad=True))
            y.sum().backward()
    assert set(seen) == {torch.bfloat16}


@pytest.mark.parametrize("kernel", KERNELS)
def test_memory_is_that_of_the_tokens(rows: str, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a forward keeps for its backward, of all pairs: nothing; and no list of them is made in the dense kernel."""
    if kernel == "pairwise":
        monkeypatch.setattr(AllTokens, "edges", None)
    given, kept = tokens(count=60), []
    rule = layer(lambda pairs: (-given["x"].square().mean() * pairs.offset.square().sum(-1, keepdim=True)).exp())
    with use_kernels(kernel), torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, nothing):
        y = rule(given["x"], coordinates=given["p"])
    y.sum().backward()
    assert (sum(kept) < 60 * 60) == (rows == "rows"), sum(kept)


def nothing(x: Tensor) -> Tensor:
    return x


@pytest.mark.parametrize("place", [p for p, made in PLACES.items() if made.make().complete and made.batch is None])
def test_dense_pairs_are_the_listed_ones(place: str) -> None:
    """Every field of a block of rows, as the reference gathers it."""
    for rule in ("own score", "CFConv", "GAT edges"):
        if (place, rule) not in product():
            continue
        call = trial(place, rule)
        x, given = call.bound()
        edges = {"edge_attr": given.pop("edge_attr", None)}
        bound = bind(call.layer.neighbours, call.layer.weight, False, x, edges, given)
        own = slice(1, 3)
        dense = pairwise._pairs(bound, own)
        made = bound.neighbours.edges(bound.targets, bound.sources, rows=own, tokens=bound.target_tokens)
        listed = bound.pairs(made, torch.arange(own.start * bound.sources, own.stop * bound.sources))
        assert dense.count == len(dense) == listed.count
        fields = ["source", "target", "relation", "x_source", "value_source", "offset"]
        fields += ["x_target", "value_target"] if "x_target" in bound.nodes else []
        fields += ["attr"] if rule == "GAT edges" else []
        for field in fields:
            assert torch.equal(getattr(dense, field), getattr(listed, field)), f"{place}, {rule}: {field}"
        numbers = torch.arange(bound.sources)
        assert torch.equal(dense.at_source(numbers, -1), listed.at_source(numbers, -1))
        assert torch.equal(dense.at_source(numbers, 0), listed.source)
        wide = torch.randn(bound.targets, 2, 3)
        assert torch.equal(dense.at_target(wide, 0), listed.at_target(wide, 0))


@pytest.mark.parametrize("keep", [None, torch.tensor([[True, False, True], [False] * 3, [True] * 3])])
def test_a_softmax_over_rows_is_that_over_edges(keep: Tensor | None) -> None:
    """Scores of -inf, as a cut-off gives, a row of them and masked rows have weight 0, and no gradient that is NaN."""
    scores = torch.randn(3, 3, dtype=torch.float64)
    scores[0, 0] = scores[2, :] = -torch.inf
    scores.requires_grad_()
    target = torch.arange(3).repeat_interleave(3)
    listed = None if keep is None else keep.flatten()[:, None]
    theirs = lambda: segment_softmax(scores.flatten()[:, None], listed, target, 3).view(3, 3)  # noqa: E731
    found = run(lambda: row_softmax(scores, keep), {"scores": scores})
    expected = run(theirs, {"scores": scores})
    agree(found, {k: torch.nan_to_num(t) for k, t in expected.items()}, torch.float64)
    assert not found["output"][2].any()


def test_attention_with_a_score_function_is_the_graph_of_all_pairs() -> None:
    q, k, v = (torch.randn(2, 4, N, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    tilt = torch.randn(4, dtype=torch.float64, requires_grad=True)
    index = torch.cartesian_prod(torch.arange(N), torch.arange(N)).t().flip(0)
    score = lambda scores, pairs: torch.tanh(scores) * tilt + (pairs.source - pairs.target)[:, None] / 9  # noqa: E731
    leaves = {"q": q, "k": k, "v": v, "tilt": tilt}
    expected = run(lambda: attend(q, k, v, Graph(index, N), score=score), leaves, True)
    agree(run(lambda: attend(q, k, v, AllTokens(), score=score, kernel="pairwise"), leaves, True), expected, q.dtype)


def test_additive_scores_are_made_once_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AdditiveScore, "forward", None)
    weight = EdgeLearned(C, 6, AdditiveScore(6, 2), heads=2, normalise="softmax")
    assert MessagePassing(AllTokens(), weight, kernel="pairwise")(torch.ones(N, C)).shape == (N, 6)


def test_an_infinite_value_reaches_those_that_see_it(rows: str) -> None:
    x = torch.ones(N, C, dtype=torch.float64)
    x[2, 1] = torch.inf
    seen = torch.ones(N, N, dtype=torch.bool)
    y = layer(lambda pairs: torch.ones(pairs.count, 1, dtype=torch.float64))(x, pair_mask=seen)
    assert torch.isinf(y[:, 1]).all() and torch.equal(y[:, 0], torch.full((N,), 7.0, dtype=torch.float64))
