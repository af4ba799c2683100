"""Boxes against the pairs that a rule lists, and the blocks that they reach against all pairs, evaluated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mpnn import Tokens
from mpnn.cuda.boxes import Boxes, boxes_of, reached
from mpnn.neighbours import AllTokens, Blocks, Grid, Neighbours, Window

CPU = torch.device("cpu")
RULES: dict[str, tuple[Neighbours, int, int]] = {
    "window": (Window(3), 40, 40),
    "one-sided": (Window(0, 9), 33, 33),
    "causal": (Window(5, 0), 40, 40),
    "wider than the tokens": (Window(100), 20, 20),
    "itself": (Window(0), 16, 16),
    "dilated": (Window(2, dilation=3), 40, 40),
    "dilated beyond a block": (Window(1, dilation=19), 64, 64),
    "fewer targets": (Window(2, 1), 11, 30),
    "more targets": (Window(2, 1), 30, 11),
    "all": (AllTokens(), 20, 37),
    "causal all": (AllTokens(causal=True), 35, 35),
    "causal, fewer targets": (AllTokens(causal=True), 9, 35),
    "causal, more targets": (AllTokens(causal=True), 35, 9),
    "line": (Grid(30, 5), 30, 30),
    "line of an even kernel": (Grid(30, 4, dilation=3), 30, 30),
    "strided line": (Grid(30, 3, stride=2, padding=1), 15, 30),
    "plane": (Grid((7, 9), 3), 63, 63),
    "clamped plane": (Grid((7, 9), 5, border="clamp"), 63, 63),
    "dilated plane": (Grid((9, 10), (3, 5), dilation=(3, 2), border="clamp"), 90, 90),
    "dilated, cut off": (Grid((9, 10), 3, dilation=(1, 4)), 90, 90),
    "strided plane": (Grid((8, 6), 3, stride=2, padding=1), 12, 48),
    "windows in the padding": (Grid((4, 3), 1, padding=2), 56, 12),
    "space": (Grid((3, 4, 5), 3), 60, 60),
    "one cell wide": (Grid((20, 1), 3), 20, 20),
    "blocks": (Blocks(7), 40, 40),
    "shifted blocks": (Blocks(16, shift=5), 61, 61),
    "blocks with a halo": (Blocks(6, shift=-2, halo=3), 40, 40),
    "blocks of two lengths": (Blocks(8, halo=1), 20, 50),
    "blocks of a plane": (Blocks((3, 4), grid=(9, 10), shift=(1, 2), halo=1), 90, 90),
}


def dense(rule: Neighbours, targets: int, sources: int, tokens: Any = None) -> Tensor:
    """All pairs, from the list of edges."""
    found = torch.zeros(targets, sources, dtype=torch.bool)
    edges = rule.edges(targets, sources, tokens=tokens)
    found[edges.target, edges.source] = True
    return found


def inside(boxes: Boxes) -> Tensor:
    """All pairs, from the boxes."""
    at, found = boxes.places()[:, None], torch.ones((), dtype=torch.bool)
    for a, step in enumerate(boxes.steps):
        low, high = boxes.low[a, :, None], boxes.high[a, :, None]
        found = found & (at[a] >= low) & (at[a] < high) & ((at[a] - low) % step == 0)
    return found


def by_blocks(pairs: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """(some, every) of all pairs, evaluated."""
    n, m = (-(-s // block) * block for s in pairs.shape)
    padded = torch.zeros(n, m, dtype=torch.bool)
    padded[: pairs.shape[0], : pairs.shape[1]] = pairs
    tiles = padded.view(n // block, block, m // block, block)
    return tiles.any(3).any(1), tiles.all(3).all(1)


def check(boxes: Boxes, pairs: Tensor, block: int) -> None:
    assert torch.equal(inside(boxes), pairs)
    some, every = reached(boxes, block)
    wanted_some, wanted_every = by_blocks(pairs, block)
    assert not (wanted_some & ~some).any() and not (every & ~wanted_every).any()  # never a pair lost or added
    if boxes.steps[-1] == 1:
        assert torch.equal(some, wanted_some)
        if len(boxes.steps) == 1:
            assert torch.equal(every, wanted_every)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("block", [4, 16, 64])
def test_boxes_hold_the_pairs_of_the_rule(name: str, block: int) -> None:
    rule, targets, sources = RULES[name]
    grid = getattr(rule, "size" if isinstance(rule, Grid) else "grid", None)
    tokens = Tokens(torch.ones(sources, 1), grid=grid)
    check(boxes_of(rule, targets, sources, tokens, CPU), dense(rule, targets, sources, tokens), block)


@pytest.mark.parametrize(
    "rule", [AllTokens(), AllTokens(causal=True), Window(2), Window(4, 1, dilation=2), Blocks(3, halo=1)]
)
def test_ragged(rule: Neighbours) -> None:
    """Graphs of 3, 0, 9, 1 and 14 sources, with other numbers of targets."""
    source = torch.arange(5).repeat_interleave(torch.tensor([3, 0, 9, 1, 14]))
    target = torch.arange(5).repeat_interleave(torch.tensor([2, 4, 9, 3, 5]))
    tokens = (Tokens(torch.ones(27, 1), batch=source), Tokens(torch.ones(23, 1), batch=target))
    check(boxes_of(rule, 23, 27, tokens, CPU), dense(rule, 23, 27, tokens), 4)


def test_no_pair_is_evaluated() -> None:
    """A million tokens: a mask of all pairs would be a terabyte."""
    some, every = reached(boxes_of(Window(300, 0), 2**20, 2**20, None, CPU), 1024)
    assert int(some.sum()) == 2 * 1024 - 1 and not every.any()
