from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from mpnn.data import Batches, StepSampler


def test_each_epoch_sees_each_sample_once_in_its_own_order():
    steps = list(StepSampler(12, batch_size=4, steps=9, seed=1))
    epochs = [[*steps[start], *steps[start + 1], *steps[start + 2]] for start in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_the_seed_decides():
    runs = [list(StepSampler(50, batch_size=10, steps=12, seed=seed)) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("start", [0, 1, 4, 5, 7, 11])
def test_a_run_that_stopped_goes_on_as_if_it_had_not(start):
    arguments = {"batch_size": 3, "steps": 11, "seed": 2}
    whole, rest = StepSampler(14, **arguments), StepSampler(14, **arguments, start=start)
    assert list(rest) == list(whole)[start:] and len(rest) == 11 - start


def test_unshuffled_batches_walk_through_the_samples():
    assert list(StepSampler(6, batch_size=2, steps=4, shuffle=False)) == [[0, 1], [2, 3], [4, 5], [0, 1]]


def test_a_batch_is_never_larger_than_the_data():
    assert [sorted(batch) for batch in StepSampler(3, batch_size=100, steps=2)] == [[0, 1, 2]] * 2


def test_batches_equal_torchs_loader_with_workers():
    x, y = torch.randn(20, 3, 1), torch.arange(20)
    sampler = StepSampler(20, batch_size=4, steps=7, seed=3)
    loader = DataLoader(TensorDataset(x, y), batch_sampler=sampler, num_workers=2)
    ours = list(Batches(x, y, sampler))
    assert len(ours) == len(Batches(x, y, sampler)) == 7
    for (x_ours, y_ours), (x_torch, y_torch) in zip(ours, loader, strict=True):
        assert torch.equal(x_ours, x_torch) and torch.equal(y_ours, y_torch)


def test_making_batches_leaves_the_random_state_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    list(StepSampler(10, batch_size=2, steps=20))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("change", "name"), [({"batch_size": 0}, "batch_size"), ({"steps": 0}, "steps"), ({"start": 4}, "start")]
)
def test_bad_numbers_are_named(change, name):
    with pytest.raises(ValueError, match=f"{name}: expected"):
        StepSampler(**({"size": 5, "batch_size": 2, "steps": 3} | change))
