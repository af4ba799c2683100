"""What is added to the scores at edges: a module's bias, the caller's and masks, against a loop over pairs."""

from __future__ import annotations

import pytest
import torch

from mpnn import MessagePassing, attend
from mpnn.attend import bind_attention
from mpnn.kernels import edge_softmax
from mpnn.neighbours import AllTokens, Graph
from mpnn.positions import ALiBi
from mpnn.scores import edge_bias
from mpnn.weights import QKSoftmax

EDGES = torch.tensor([[0, 1, 2, 3, 1, 4], [0, 0, 1, 2, 4, 4]])


@pytest.mark.parametrize("given", [None, "module", "pairs", "edges"])
@pytest.mark.parametrize("masked", [False, True])
def test_the_bias_at_edges(given: str | None, masked: bool) -> None:
    q = torch.randn(2, 2, 5, 4)
    module = given == "module"
    tensor = {"pairs": torch.randn(2, 5, 5), "edges": torch.randn(6, 2)}.get(given or "")
    mask = torch.tensor([[True] * 5, [True, False, True, True, True]]) if masked else None
    call, _ = bind_attention(q, q, q, Graph(EDGES, 5), mask=mask, score_bias=ALiBi(2) if module else tensor)
    found = edge_bias(call, call.all_edges(), None, torch.float32)
    if not (given or masked):
        assert found is None
        return
    assert found is not None
    slopes = ALiBi(2).slopes.flatten().tolist()
    wanted = torch.zeros(2, 2, 6)
    for b in range(2):
        for head in range(2):
            for e, (j, i) in enumerate(EDGES.T.tolist()):
                if module:
                    wanted[b, head, e] -= slopes[head] * abs(i - j)
                if tensor is not None:
                    wanted[b, head, e] += tensor[e, head] if given == "edges" else tensor[head, i, j]
                if mask is not None and not mask[b, j]:
                    wanted[b, head, e] = -torch.inf
    torch.testing.assert_close(found.expand(2, 2, 6), wanted)


@pytest.mark.parametrize("part", [False, True])
def test_a_product_that_overflows_at_a_masked_pair_is_not_seen(part: bool) -> None:
    """In float32 the score of that pair is inf, and inf + -inf would be no number."""
    q, v = torch.randn(1, 4, 4), torch.randn(1, 4, 4)
    q[:, 1] = 1e20
    graph, kept = Graph(torch.tensor([[0, 1, 2], [1, 1, 3]]), 4), ~torch.eye(4, dtype=torch.bool)
    call, _ = bind_attention(q, q, v, graph, pair_mask=kept)
    found = edge_softmax.partial(call).forward(q[None], q[None], v[None])[0][0] if part else None
    if found is None:
        found = attend(q, q, v, graph, pair_mask=kept, kernel="edge_softmax")
    torch.testing.assert_close(found[:, 1], v[:, 0])


@pytest.mark.parametrize("kernel", ["reference", "edge_softmax", "sdpa"])
def test_a_module_and_a_tensor_add_up(kernel: str) -> None:
    dense, x, given = kernel == "sdpa", torch.randn(5, 8), torch.randn(2, 5, 5)
    rule = AllTokens() if dense else Graph(EDGES, 5)
    one = MessagePassing(rule, QKSoftmax(8, 2, score_bias=ALiBi(2)), kernel=kernel)
    other = MessagePassing(rule, QKSoftmax(8, 2), kernel=kernel)
    other.load_state_dict(one.state_dict(), strict=False)
    at = torch.arange(5)
    both = given + ALiBi(2)(at[:, None], at).movedim(-1, 0)
    torch.testing.assert_close(one(x, score_bias=given), other(x, score_bias=both))
