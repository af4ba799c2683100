"""attend beside torch's attention, whose mask says which pairs meet, on every kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kernel_choice import on_each
from mpnn import attend
from mpnn.experiments.atlas_case import TOLERANCE, error
from mpnn.neighbours import AllTokens, Full, Graph, Grid, Neighbours, Window

SIX = torch.arange(6)
SQUARE = {
    "all": (AllTokens(), torch.ones(6, 6, dtype=torch.bool)),
    "full": (Full(6), torch.ones(6, 6, dtype=torch.bool)),
    "causal": (AllTokens(causal=True), torch.ones(6, 6).tril().bool()),
    "window": (Window(2, 1), ((SIX - SIX[:, None]) >= -2) & ((SIX - SIX[:, None]) <= 1)),
    "dilated": (Window(1, dilation=2), (SIX - SIX[:, None]).abs().eq(2) | torch.eye(6, dtype=torch.bool)),
    "grid": (Grid((6,), 3), (SIX - SIX[:, None]).abs() <= 1),
    "graph": (Graph(torch.tensor([[0, 1, 2, 5, 4], [1, 1, 0, 2, 3]]), 6), torch.zeros(6, 6, dtype=torch.bool)),
}
SQUARE["graph"][1][[1, 1, 0, 2, 3], [0, 1, 2, 5, 4]] = True


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("given", ["nothing", "mask", "pair_mask", "score_bias", "all"])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("name", SQUARE)
def test_attend_equals_sdpa(name: str, kv_heads: int, given: str, dtype: torch.dtype) -> None:
    rule, meets = SQUARE[name]
    q, k, v = (torch.randn(2, h, 6, 3, dtype=dtype, requires_grad=True) for h in (4, kv_heads, kv_heads))
    options: dict[str, Any] = {}
    if given in ("mask", "all"):
        options["mask"] = torch.rand(2, 6) < 0.7
        meets = meets & options["mask"][:, None, None]
    if given in ("pair_mask", "all"):
        options["pair_mask"] = torch.rand(2, 4, 6, 6) < 0.7
        meets = meets & options["pair_mask"]
    bias = torch.zeros(1, 1, 1, 1, dtype=dtype)
    if given in ("score_bias", "all"):
        options["score_bias"] = bias = torch.randn(4, 6, 6, dtype=dtype, requires_grad=True)
    inputs = [q, k, v, *([bias] if bias.requires_grad else [])]
    alone = ~meets.expand(2, 4, 6, 6).any(-1, keepdim=True)  # SDPA has no answer for these; ours is 0
    mask = bias.masked_fill(~(meets | alone), -torch.inf)
    expected = F.scaled_dot_product_attention(q, k, v, mask, scale=0.7, enable_gqa=True).masked_fill(alone, 0)
    upstream = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, inputs, upstream)
    for kernel, y in on_each(lambda: attend(q, k, v, rule, scale=0.7, **options)):
        got = torch.autograd.grad(y, inputs, upstream)
        for ours, theirs in zip((y, *got), (expected, *wanted), strict=True):
            assert error(ours.detach(), theirs.detach(), floor=1.0) <= TOLERANCE[dtype], kernel


def lengths(rule: Neighbours, n: int, m: int) -> Tensor:
    """Which pairs meet, from the rule's own statement, target by target."""
    left, right = (rule.left, rule.right) if isinstance(rule, Window) else (m + n, 0 if rule.causal else m + n)
    rows = [[-left <= j - (i + m - n) <= right for j in range(m)] for i in range(n)]
    return torch.tensor(rows, dtype=torch.bool).view(n, m)


@pytest.mark.parametrize(("n", "m"), [(1, 5), (2, 5), (5, 2), (3, 1)])
@pytest.mark.parametrize("rule", [AllTokens(), AllTokens(causal=True), Window(2), Window(1, 0)], ids=str)
def test_attend_aligns_the_ends(rule: Neighbours, n: int, m: int) -> None:
    q, k, v = (torch.randn(2, count, 3, dtype=torch.float64, requires_grad=True) for count in (n, m, m))
    meets = lengths(rule, n, m)
    alone = ~meets.any(-1, keepdim=True)
    expected = F.scaled_dot_product_attention(q, k, v, meets | alone).masked_fill(alone, 0)
    upstream = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (q, k, v), upstream)
    for kernel, y in on_each(lambda: attend(q, k, v, rule)):
        got = torch.autograd.grad(y, (q, k, v), upstream)
        for ours, theirs in zip((y, *got), (expected, *wanted), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10, msg=kernel)
