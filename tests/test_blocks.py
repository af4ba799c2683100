"""Blocks of targets: how the reference cuts a call, of which it then makes some targets at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mpnn import MessagePassing, limits, use_kernels
from mpnn.call import Call
from mpnn.kernels import reference
from mpnn.neighbours import AllTokens, Neighbours, Window
from mpnn.weights import AdditiveScore, EdgeLearned


@pytest.mark.parametrize("rule", [AllTokens(), AllTokens(causal=True), AllTokens() - Window(1)], ids=repr)
@pytest.mark.parametrize("sizes", [[5] * 40, [100] + [1] * 100, [0, 7, 0, 3]], ids=["even", "one large", "empty"])
def test_a_ragged_batch_is_cut_by_its_graphs(
    rule: Neighbours, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many blocks as the pairs within graphs fill, not as all pairs of tokens would; each graph as if alone."""
    seen: list[slice | None] = []
    whole = reference._block

    def noted(call: Call, rows: slice | None) -> Tensor:
        seen.append(rows)
        return whole(call, rows)

    layer = MessagePassing(rule, EdgeLearned(4, 4, AdditiveScore(4, 2), heads=2, normalise="softmax")).double()
    x, batch = torch.randn(sum(sizes), 4, dtype=torch.float64), torch.repeat_interleave(torch.tensor(sizes))
    monkeypatch.setattr(limits, "block", 2 * 10 * 200)  # 200 pairs of two heads of two channels
    monkeypatch.setattr(reference, "_block", noted)
    with torch.no_grad(), use_kernels("reference"):
        y = layer(x, batch=batch)
        rows = [r or slice(0, len(x)) for r in seen]
        assert [r.start for r in rows] == [0, *(r.stop for r in rows[:-1])] and rows[-1].stop == len(x)
        assert len(rows) <= 2 + 2 * sum(n * n for n in sizes) // 200
        alone = [layer(part) for part in x.split(sizes) if len(part)]
    torch.testing.assert_close(y, torch.cat(alone))
