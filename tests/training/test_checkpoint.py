"""Case 39 and case 42 of the cases that are known to go wrong."""

from __future__ import annotations

import itertools

import lightning.pytorch as L
import numpy as np
import pytest
import torch
from torch import nn

from mpnn.training import load_checkpoint, save_checkpoint


def plain() -> nn.Module:
    torch.manual_seed(0)
    # "module" and "_orig" are names that a person may well use.
    return nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ModuleDict({"module": nn.Linear(4, 2), "model": nn.PReLU()})
    )


class Lit(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model, self.loss = model, nn.CrossEntropyLoss()


def inner_compiled(model):
    model[0] = torch.compile(model[0])
    return model


WRAPPERS = {
    "plain": lambda model: model,
    "compiled": torch.compile,
    "parallel": nn.DataParallel,
    "lightning": Lit,
    "compiled parallel": lambda model: torch.compile(nn.DataParallel(model)),
    "parallel compiled": lambda model: nn.DataParallel(torch.compile(model)),
    "lightning compiled": lambda model: Lit(torch.compile(model)),
    "a compiled part": inner_compiled,
}


@pytest.mark.parametrize(("source", "target"), list(itertools.product(WRAPPERS, WRAPPERS)))
def test_any_wrapped_model_loads_into_any_other(source, target, tmp_path):
    original, other = plain(), plain()
    for parameter in other.parameters():
        nn.init.constant_(parameter, 7.0)
    save_checkpoint(tmp_path / "a.pt", WRAPPERS[source](original), {"step": 3})
    wrapped = WRAPPERS[target](other)
    loaded = load_checkpoint(tmp_path / "a.pt", wrapped)
    assert (loaded.notes, loaded.missing, loaded.unexpected) == ({"step": 3}, [], [])
    for ours, theirs in zip(wrapped.state_dict().values(), original.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_saved_names_are_the_models_own(wrapper, tmp_path):
    save_checkpoint(tmp_path / "a.pt", WRAPPERS[wrapper](plain()))
    file = torch.load(tmp_path / "a.pt", weights_only=True)
    assert list(file["model"]) == list(plain().state_dict())


def test_missing_and_unexpected_names_are_listed_and_nothing_is_loaded(tmp_path):
    save_checkpoint(tmp_path / "a.pt", nn.ModuleDict({"old": nn.Linear(2, 2), "both": nn.Linear(2, 2)}))
    model = nn.ModuleDict({"new": nn.Linear(2, 2), "both": nn.Linear(2, 2)})
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(
        RuntimeError, match=r"missing from the file: new\.bias, new\.weight; not in the model: old\.bias, old\.weight"
    ):
        load_checkpoint(tmp_path / "a.pt", torch.compile(model))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    loaded = load_checkpoint(tmp_path / "a.pt", model, strict=False)
    assert loaded.missing == ["new.bias", "new.weight"] and loaded.unexpected == ["old.bias", "old.weight"]
    assert not torch.equal(model["both"].weight, before["both.weight"])


@pytest.mark.parametrize("strict", [True, False])
def test_other_shapes_are_always_refused(strict, tmp_path):
    save_checkpoint(tmp_path / "a.pt", nn.Linear(2, 3))
    model = nn.Linear(2, 4)
    before = model.weight.clone()
    with pytest.raises(RuntimeError, match=r"bias: \(3,\) in the file, \(4,\) in the model, weight: \(3, 2\)"):
        load_checkpoint(tmp_path / "a.pt", model, strict=strict)
    assert torch.equal(model.weight, before)


def test_a_file_of_another_kind_is_refused(tmp_path):
    torch.save(nn.Linear(2, 3).state_dict(), tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"a\.pt: expected a checkpoint written by mpnn"):
        load_checkpoint(tmp_path / "a.pt", nn.Linear(2, 3))


@pytest.mark.parametrize("value", [np.float64(1.0), object(), {1.5: 2}, {"a": [{1, 2}]}])
def test_notes_that_would_not_be_read_back_are_refused(value, tmp_path):
    with pytest.raises(TypeError, match=r"notes\['value'\].*: expected"):
        save_checkpoint(tmp_path / "a.pt", nn.Linear(1, 1), {"value": value})
    assert not list(tmp_path.iterdir())


def test_notes_come_back(tmp_path):
    notes = {"step": 1, "names": ["a", "b"], "deep": {"x": None, 3: (1.5, True)}}
    save_checkpoint(tmp_path / "a.pt", nn.Linear(1, 1), {**notes, "order": torch.arange(3)})
    read = load_checkpoint(tmp_path / "a.pt", nn.Linear(1, 1)).notes
    assert torch.equal(read.pop("order"), torch.arange(3)) and read == notes


def test_shared_parameters_keep_both_names(tmp_path):
    def tied():
        model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
        model["b"].weight = model["a"].weight
        return model

    save_checkpoint(tmp_path / "a.pt", torch.compile(tied()))
    target = tied()
    load_checkpoint(tmp_path / "a.pt", target)
    assert target["a"].weight is target["b"].weight
