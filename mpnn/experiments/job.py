"""What a comparison was asked for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mpnn.data import SOURCES, UsageError
from mpnn.data.errors import one_of
from mpnn.experiments.recipes import MODELS, PUBLISHED
from mpnn.kernels import KERNELS


@dataclass(frozen=True)
class Job:
    """The fields of a comparison, checked; the models are put into the order of `MODELS`.

    Raises:
        UsageError: an unknown dataset, model or kernel, a number below 1, a protocol that was not published.
    """

    dataset: str
    models: tuple[str, ...]
    steps: int
    seeds: int
    budget: int | None = None
    shuffle_positions: bool = False
    published: bool = False
    kernel: str | None = None

    def __post_init__(self) -> None:
        self._check_switches()
        one_of(self.dataset, SOURCES, "dataset")
        chosen = {one_of(model, MODELS, "model") for model in self.models}
        if not chosen:
            raise UsageError(f"models: expected at least one of {', '.join(MODELS)}")
        object.__setattr__(self, "models", tuple(model for model in MODELS if model in chosen))
        if self.kernel is not None:
            one_of(self.kernel, [kernel.name for kernel in KERNELS], "kernel")
        if self.published and self.dataset not in PUBLISHED:
            raise UsageError(f"published: there is a protocol for {', '.join(PUBLISHED)}, not for {self.dataset}")
        for field in ("steps", "seeds", "budget"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise UsageError(f"{field}: expected at least 1, got {value}")

    def _check_switches(self) -> None:
        for field in ("shuffle_positions", "published"):
            if not isinstance(getattr(self, field), bool):
                raise UsageError(f"{field}: expected true or false, got {getattr(self, field)!r}")

    def config(self) -> dict[str, Any]:
        """The options of the command that repeats it."""
        return {**asdict(self), "models": list(self.models)}

    def command(self) -> str:
        """The command line that asks for it."""
        words = [f"--dataset {self.dataset}", f"--steps {self.steps}", f"--seeds {self.seeds}"]
        words += [f"--models {','.join(self.models)}"] if self.models != MODELS else []
        words += ["--published"] if self.published else []
        words += ["--shuffle-positions"] if self.shuffle_positions else []
        words += [f"--budget {self.budget}"] if self.budget is not None else []
        words += [f"--kernel {self.kernel}"] if self.kernel is not None else []
        return " ".join(["mpnn compare", *words])

    def name(self) -> str:
        """A name that says what differs from the default, so that two comparisons do not meet in one folder."""
        parts = [self.dataset, f"{self.steps}steps", f"{self.seeds}seeds"]
        parts += ["published"] if self.published else []
        parts += ["shuffled"] if self.shuffle_positions else []
        parts += [f"budget{self.budget}"] if self.budget is not None else []
        parts += [self.kernel] if self.kernel is not None else []
        parts += self.models if self.models != MODELS else []
        return "-".join(parts)
