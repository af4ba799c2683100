from __future__ import annotations

import pytest
import torch

from mpnn.data import Dataset


def make(samples=10, grid=(2, 3), channels=2, classes=3):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, grid[0] * grid[1], channels, generator=generator)
    y = torch.arange(samples) % classes
    return Dataset("toy", x, y, x[:4] + 100, y[:4], grid, classes)


def test_shuffled_positions_are_one_permutation_of_train_and_test():
    data, moved = make(), make().shuffle_positions(3)
    order = [int((moved.x_train[0] == token).all(-1).nonzero()) for token in data.x_train[0]]
    assert sorted(order) == list(range(6)) and order != sorted(order)
    assert torch.equal(moved.x_train[:, order], data.x_train) and torch.equal(moved.x_test[:, order], data.x_test)
    assert torch.equal(moved.y_train, data.y_train)
    assert torch.equal(moved.x_train, make().shuffle_positions(3).x_train)
    assert not torch.equal(moved.x_train, make().shuffle_positions(4).x_train)


def test_held_out_samples_come_from_train_alone():
    data = make()
    part = data.hold_out(0.3, seed=1)
    assert len(part.x_train) == 7 and len(part.x_test) == 3
    together = torch.cat([part.x_train, part.x_test])
    assert sorted(map(tuple, together.flatten(1).tolist())) == sorted(map(tuple, data.x_train.flatten(1).tolist()))
    assert part.x_test.max() < 50  # the test samples are above


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1])
def test_hold_out_refuses(fraction):
    with pytest.raises(ValueError, match="fraction: expected a number between 0 and 1"):
        make().hold_out(fraction)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": torch.zeros(10, 5, 2)}, r"x_train: expected float32 of shape \(S, 6, C\) for grid \(2, 3\)"),
        ({"x_test": torch.zeros(4, 6, 2).double()}, r"x_test: .*float64"),
        ({"y_train": torch.zeros(9).long()}, r"y_train: expected int64 of shape \(10,\), got torch.int64 \(9,\)"),
        ({"y_test": torch.zeros(4)}, r"y_test: .*float32"),
        ({"y_test": torch.tensor([0, 1, 2, 3])}, r"y_test: .*all in 0 … 2"),
        ({"y_test": torch.tensor([0, -1, 2, 2])}, r"y_test: .*all in 0 … 2"),
    ],
)
def test_parts_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Dataset(**(vars(make()) | change))
