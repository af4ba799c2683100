"""What holds in every test: one thread, a seed of its own, fresh memory that is NaN, and a reason for every skip."""

from __future__ import annotations

import os

# Before torch is imported, so that the programs that a test starts inherit it: xdist's workers would share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import signal
import sys
from collections.abc import Iterator

import hypothesis
import pytest
import torch

from helpers.over import seeded

# One stream of examples, the same on every machine, and no clock: the suite runs beside other work.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)
    # A job in the background may come with Ctrl-C ignored, which the programs that a test starts would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and torch sees none"))


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    """A seed made from the test's name: the same alone, in any order and in any worker."""
    return seeded(request.node.nodeid)


@pytest.fixture(autouse=True)
def fresh_memory_is_nan(request: pytest.FixtureRequest) -> Iterator[None]:
    """`torch.empty` holds NaN, or the largest integer, so that a result that reads it is wrong every time.

    torch fills fresh memory only in its deterministic mode, which with `warn_only` forbids nothing. On CUDA it would
    choose other kernels than people run, so the tests marked gpu go without. Code that inductor has compiled does not
    fill its buffers.
    """
    if request.node.get_closest_marker("gpu"):
        yield
        return
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def no_compiled_code_left() -> Iterator[None]:
    """Forget what a test compiled: dynamo's limit on recompilations counts over the whole process."""
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
