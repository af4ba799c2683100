"""Counted places, grid places and masks from lengths against loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mpnn.tokens import counted_positions, grid_positions, mask_from_lengths


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12))
def test_counted_positions_restart_in_each_graph(rows: list[tuple[int, bool]]) -> None:
    rows = sorted(rows, key=lambda row: row[0])
    batch = torch.tensor([g for g, _ in rows], dtype=torch.long)
    mask = torch.tensor([m for _, m in rows], dtype=torch.bool)
    seen: dict[int, int] = {}
    expected = []
    for g, m in rows:
        seen[g] = seen.get(g, 0) + m
        expected.append(max(seen[g] - 1, 0))
    assert counted_positions(mask, batch).tolist() == expected
    assert counted_positions(mask, batch.int()).tolist() == expected


def test_counted_positions_of_both_paddings() -> None:
    mask = torch.tensor([[True, True, False, False], [False, False, True, True], [False] * 4])
    assert counted_positions(mask).tolist() == [[0, 1, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]]


def test_case_34_grid_positions() -> None:
    assert grid_positions((3, 4)).tolist() == [[r, c] for r in range(3) for c in range(4)]
    assert grid_positions((2,)).tolist() == [[0], [1]]
    assert grid_positions((2, 1, 2)).tolist() == [[0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 1]]


def test_case_38_the_mask_comes_from_lengths() -> None:
    assert mask_from_lengths(torch.tensor([3, 0]), 5).tolist() == [[True] * 3 + [False] * 2, [False] * 5]
    assert mask_from_lengths(torch.tensor([3, 5]), 5, side="left").tolist() == [[False] * 2 + [True] * 3, [True] * 5]
    with pytest.raises(ValueError, match="side to be one of 'right', 'left', got 'lft'; did you mean 'left'"):
        mask_from_lengths(torch.tensor([3]), 5, side="lft")
