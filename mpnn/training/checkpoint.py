"""Checkpoints that know the model's own names only, whatever is wrapped around it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from mpnn.data.files import replacing

FORMAT = "mpnn-1"


@dataclass(frozen=True)
class Loaded:
    """What a checkpoint brought: its notes, and the names that did not fit when `strict` is off."""

    notes: dict[str, Any]
    missing: list[str]
    unexpected: list[str]


def save_checkpoint(path: str | Path, model: nn.Module, notes: Mapping[str, Any] | None = None) -> None:
    """Write a model's state, under its own names, and notes beside it, atomically.

    `torch.compile`, `DataParallel`, `DistributedDataParallel` and a `LightningModule` around the model, or around a
    part of it, leave no trace in the names.

    Args:
        notes: numbers, texts, tensors, and lists and dicts of them: what `torch.load(weights_only=True)` reads.

    Raises:
        TypeError: notes of another type.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_checkpoint(folder + "/a.pt", nn.DataParallel(nn.Linear(2, 3)), {"step": 5})
    ...     load_checkpoint(folder + "/a.pt", nn.Linear(2, 3)).notes
    {'step': 5}
    """
    notes = dict(notes or {})
    _check_plain(notes, "notes")
    names = own_names(model)
    state = {names[name]: value for name, value in model.state_dict().items()}
    with replacing(path) as new:
        torch.save({"format": FORMAT, "model": state, "notes": notes}, new)


def load_checkpoint(path: str | Path, model: nn.Module, *, strict: bool = True) -> Loaded:
    """Read a checkpoint into a model, plain or wrapped, on the devices where its parameters are.

    Raises:
        RuntimeError: with `strict`, names that are missing or unexpected; always, shapes that differ; all are listed,
            and the model is left as it was.
        ValueError: a file that `save_checkpoint` did not write.
    """
    # weights_only: a checkpoint is data, and must not be able to run code.
    file = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(file, dict) or file.get("format") != FORMAT:
        raise ValueError(f"{path}: expected a checkpoint written by mpnn.training.save_checkpoint")
    state: dict[str, Tensor] = file["model"]
    names = own_names(model)
    current = {names[name]: value for name, value in model.state_dict().items()}
    missing, unexpected = sorted(current.keys() - state.keys()), sorted(state.keys() - current.keys())
    shapes = [
        f"{name}: {tuple(state[name].shape)} in the file, {tuple(current[name].shape)} in the model"
        for name in current.keys() & state.keys()
        if state[name].shape != current[name].shape
    ]
    faults = [
        f"{what}: {', '.join(found)}"
        for what, found in (
            ("missing from the file", missing if strict else []),
            ("not in the model", unexpected if strict else []),
            ("different shapes", sorted(shapes)),
        )
        if found
    ]
    if faults:
        raise RuntimeError(f"{path} does not fit the model; {'; '.join(faults)}")
    outer = {own: name for name, own in names.items()}
    model.load_state_dict({outer[name]: state[name] for name in current.keys() & state.keys()}, strict=False)
    return Loaded(file["notes"], missing, unexpected)


def own_names(model: nn.Module) -> dict[str, str]:
    """Each name in the state dict of a wrapped model, and the model's own name for it.

    >>> own_names(nn.Sequential(nn.DataParallel(nn.Linear(2, 3, bias=False))))
    {'0.module.weight': '0.weight'}
    """
    wrappers = {
        f"{prefix}{'.' if prefix else ''}{child}"
        for prefix, module in model.named_modules(remove_duplicate=False)
        if (child := _wrapped(module)) is not None
    }
    names = {}
    for name in model.state_dict():
        parts = name.split(".")
        kept = [part for depth, part in enumerate(parts) if ".".join(parts[: depth + 1]) not in wrappers]
        names[name] = ".".join(kept)
    return names


def _wrapped(module: nn.Module) -> str | None:
    """The name under which a wrapper keeps what it wraps."""
    if "_orig_mod" in module._modules:  # torch.compile; its class lives in a module that is slow to import
        return "_orig_mod"
    if isinstance(module, DataParallel | DistributedDataParallel):
        return "module"
    lightning = sys.modules.get("lightning.pytorch")
    if lightning is not None and isinstance(module, lightning.LightningModule):
        children = [name for name, child in module.named_children() if child.state_dict()]
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        return children[0] if len(children) == 1 and not own else None
    return None


def _check_plain(value: Any, place: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str | int):
                raise TypeError(f"{place}: expected str or int keys, got {key!r}")
            _check_plain(item, f"{place}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_plain(item, f"{place}[{index}]")
    # Exactly these: a subclass, as numpy's float64 is one of float, is not read back with weights_only.
    elif value is not None and type(value) not in (bool, int, float, str, Tensor):
        raise TypeError(
            f"{place}: expected numbers, texts, tensors, lists and dicts of them, got {type(value).__name__}"
        )
