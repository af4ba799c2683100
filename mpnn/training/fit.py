"""Train one model on one dataset from one seed."""

from __future__ import annotations

import logging
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from mpnn.data import Batches, Dataset, StepSampler
from mpnn.data.errors import require
from mpnn.training.settings import Settings


@dataclass(frozen=True)
class Curve:
    """What was seen at each evaluation; the training loss is the mean over as many steps as lie between."""

    steps: list[int]
    train_loss: list[float]
    test_loss: list[float]
    test_accuracy: list[float]


@dataclass(frozen=True)
class Fit:
    """The outcome of one training run; the accuracy is the one after the last step, not the best one on the way."""

    accuracy: float
    train_loss: float
    seconds_a_step: float
    seconds: float
    curve: Curve

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _nobody(step: int, accuracy: float | None) -> None:
    pass


def fit(
    model: nn.Module,
    data: Dataset,
    settings: Settings,
    *,
    steps: int,
    seed: int = 0,
    evaluations: int = 15,
    advance: Callable[[int, float | None], None] = _nobody,
) -> Fit:
    """Train a classifier with Lightning on the CPU and note how it goes.

    The order of the samples follows from `seed`; for repeatable dropout, make and train the model inside
    `with mpnn.training.seeded(seed)`.

    Args:
        model: maps `(B, N, C)` to `(B, classes)`.
        evaluations: how often the test set is looked at, evenly spread and the last time after the last step; nothing
            is chosen by it.
        advance: called after each step with the number of steps done and the last test accuracy.

    Raises:
        ValueError: numbers below 1.
        KeyboardInterrupt: Ctrl-C; Lightning's own answer, to end the process, is undone.
    """
    require("lightning", purpose="training")
    from lightning.pytorch import Trainer

    from mpnn.training.classifier import Classifier, Recorder

    for name, value in (("steps", steps), ("evaluations", evaluations)):
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")
    # One epoch of all the steps: Lightning's work between epochs would cost as much as the steps of a small model.
    order = StepSampler(
        len(data.x_train), batch_size=settings.batch_size, steps=steps, shuffle=settings.shuffle, seed=seed
    )
    test = Batches(data.x_test, data.y_test, torch.arange(len(data.x_test)).split(500))
    every = _interval(steps, evaluations)
    recorder = Recorder(len(data.x_test), every, advance)
    with _quiet(), _interruptible():
        trainer = Trainer(
            accelerator="cpu",
            devices=1,
            max_steps=steps,
            max_epochs=-1,
            callbacks=[recorder],
            gradient_clip_val=settings.clip,
            val_check_interval=every,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            # Inference tensors have no version, which the caches of a graph go by.
            inference_mode=False,
        )
        started = time.perf_counter()
        classifier = Classifier(model, settings, steps)
        trainer.fit(classifier, Batches(data.x_train, data.y_train, order), test)
        if recorder.steps[-1:] != [steps]:  # the steps are no multiple of the interval
            trainer.validate(classifier, test, verbose=False)
        seconds = time.perf_counter() - started
    curve = Curve(recorder.steps, recorder.train_loss, recorder.test_loss, recorder.test_accuracy)
    return Fit(curve.test_accuracy[-1], curve.train_loss[-1], statistics.median(recorder.seconds), seconds, curve)


def _interval(steps: int, evaluations: int) -> int:
    """Steps between evaluations: a divisor of the steps if one gives about as many, so that the last is not crowded."""
    for number in range(evaluations, evaluations // 2, -1):
        if steps % number == 0:
            return steps // number
    return -(-steps // evaluations)


@contextmanager
def _quiet() -> Iterator[None]:
    """No notes about the devices, and no warning about Lightning's own use of torch."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated")
            yield
    finally:
        logger.setLevel(level)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C stays a KeyboardInterrupt: Lightning ends the process instead, and stops listening to the signal."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as stop:
        if isinstance(stop.__context__, KeyboardInterrupt):
            signal.signal(signal.SIGINT, before)
            raise stop.__context__ from None
        raise
