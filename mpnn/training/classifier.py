"""Lightning's view of a run: what a step is, and what is noted. Imported only by `fit`."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.nn import functional as F

from mpnn.training.settings import Settings


class Classifier(LightningModule):
    """Cross-entropy of a model's outputs against labels."""

    def __init__(self, model: nn.Module, settings: Settings, steps: int) -> None:
        super().__init__()
        self.model, self.settings, self.steps = model, settings, steps

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.model(x), y, label_smoothing=self.settings.label_smoothing)

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> dict[str, Tensor]:
        x, y = batch
        output = self.model(x)
        right = (output.argmax(-1) == y).sum()
        return {"right": right, "loss": F.cross_entropy(output, y, reduction="sum")}

    def configure_optimizers(self) -> dict[str, Any]:
        optimiser, scheduler = self.settings.make_optimiser(self.model.parameters(), self.steps)
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Recorder(Callback):
    """Notes the curve and the time of each step, and tells a listener how far the run is.

    Plain lists: Lightning's own logging costs more than a small model's step.
    """

    def __init__(self, samples: int, every: int, advance: Any) -> None:
        self.samples, self.advance = samples, advance
        self.steps: list[int] = []
        self.train_loss: list[float] = []
        self.test_loss: list[float] = []
        self.test_accuracy: list[float] = []
        self.seconds: list[float] = []
        self._losses: deque[Tensor] = deque(maxlen=every)
        self._right = self._loss = torch.zeros(())
        self._started = 0.0

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: Any, index: int) -> None:
        self._started = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        self.seconds.append(time.perf_counter() - self._started)
        self._losses.append(outputs["loss"].detach())
        self.advance(trainer.global_step, self.test_accuracy[-1] if self.test_accuracy else None)

    def on_validation_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._right = self._loss = torch.zeros((), device=module.device)

    def on_validation_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, index: int, loader: int = 0
    ) -> None:
        self._right, self._loss = self._right + outputs["right"], self._loss + outputs["loss"]

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        self.steps.append(trainer.global_step)
        self.train_loss.append(float(torch.stack(tuple(self._losses)).mean()))
        self.test_loss.append(float(self._loss) / self.samples)
        self.test_accuracy.append(float(self._right) / self.samples)
