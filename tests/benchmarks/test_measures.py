"""What is measured beside time: memory by its pages, roofs, training steps."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
import torch

from benchmarks import memory, roofs, steps
from benchmarks.case import Work


def test_the_size_of_tensors_counts_each_storage_once() -> None:
    x = torch.zeros(1000)
    assert memory.size([x, x[:10], x.view(10, 100)]) == 4000
    assert memory.size([]) == 0


def test_the_peak_is_that_of_the_pages() -> None:
    if not memory.supported():
        pytest.skip("needs /proc/self/clear_refs, of Linux")
    code = """if True:
        import torch
        from benchmarks import memory
        memory.exact_allocator()
        torch.set_num_threads(1)
        def call():
            a = torch.ones(8 << 20)
            b = torch.ones(4 << 20) * 2
            del a
            return b
        call()
        grown, _ = memory.peak_of(call)
        print(grown / 2**20)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(64, abs=2), "32 MiB of a, 16 of the ones, 16 of b"


def test_the_roof_is_the_longer_of_computing_and_reading() -> None:
    made = roofs.Roofs(100.0, 10.0, {64: 50.0, 1024: 5.0})
    assert made.seconds(Work(flops=200.0)) == 2.0
    assert made.seconds(Work(flops=200.0, streamed=40.0)) == 4.0
    assert made.seconds(Work(gathers=((100.0, 32.0), (100.0, 4096.0)))) == 2.0 + 20.0
    assert Work(1.0, 2.0, ((3.0, 4.0),)).times(2) + Work(1.0) == Work(3.0, 4.0, ((6.0, 4.0),))


def test_a_step_trains_the_parameters_that_are_compared() -> None:
    model = torch.nn.Linear(3, 5)
    x, labels = torch.ones(4, 3), torch.tensor([0, 1, 2, 3])
    made = steps.side("mpnn", dict(model.named_parameters()), lambda: model(x), labels)
    before = model.weight.detach().clone()
    assert made.step is not None
    made.step()
    assert model.weight.grad is not None and not torch.equal(model.weight, before)
    with pytest.raises(ValueError, match="expected numbers for"):
        steps.copied(model, {"weight": torch.zeros(5, 3)})


@pytest.mark.parametrize("name", memory.IMPORTED)
def test_what_the_server_imports_is_there(name: str) -> None:
    """It says nothing where a name is wrong, and each process imports for itself."""
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        pytest.skip(f"needs {name}, which is not installed")
    assert importlib.util.find_spec(name) is not None
