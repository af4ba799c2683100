"""Rows cut into pieces: every edge is in one line, in the rows' order, and no line is longer than it may be."""

from __future__ import annotations

import pytest
import torch

from mpnn.cuda import lines
from mpnn.edges import Edges
from mpnn.sparse.csr import Csr


@pytest.mark.parametrize("degrees", [[3, 0, 2], [0, 0], [], [10, 0, 4, 5, 9, 1], [40], [4, 4]])
def test_every_edge_is_in_one_line(degrees: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LONG", 4)
    target = torch.arange(len(degrees)).repeat_interleave(torch.tensor(degrees, dtype=torch.int64))
    csr = Csr.of(Edges(torch.zeros_like(target), target), len(degrees), 1)
    made = lines.Lines.of(csr)
    assert made is lines.Lines.of(csr)
    owner, start, stop, slot = (t.tolist() for t in made.tensors)
    long = [row for row, degree in enumerate(degrees) if degree > 4]
    if not long:
        assert made.count == len(degrees) and made.long is None
        assert [b - a for a, b in zip(start, stop, strict=False)] == degrees
        return
    assert made.long is not None and made.long.tolist() == long
    assert [(row, e) for row, a, b in zip(owner, start, stop, strict=True) for e in range(a, b)] == [
        *zip(target.tolist(), range(len(target)), strict=True)
    ]
    assert all(b - a <= 4 for a, b in zip(start, stop, strict=True)) and len(owner) == made.count
    pieces = [row for row, place in zip(owner, slot, strict=True) if place >= 0]
    assert [p for p in slot if p >= 0] == list(range(made.pieces)) and set(pieces) == set(long)
    assert made.first_piece is not None
    assert made.first_piece.tolist() == [*(pieces.index(row) for row in long), made.pieces]
