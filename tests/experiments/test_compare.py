from __future__ import annotations

import importlib
import itertools
import json
import os
import signal

import pytest
import torch
import yaml

from mpnn.data import SOURCES, UsageError, load
from mpnn.experiments import Comparison, Interrupted, compare
from mpnn.experiments.job import Job
from mpnn.experiments.recipes import recipe
from mpnn.training import fit, load_checkpoint, seeded

# The package has a function of the same name.
MODULE = importlib.import_module("mpnn.experiments.compare")
QUICK = {"dataset": "digits", "models": "logistic,mlp", "steps": 8, "seeds": 2, "quiet": True}


@pytest.fixture(scope="module", autouse=True)
def data_folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPNN_DATA", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return compare(**QUICK, folder=folder, name="a")


def test_it_trains_what_the_recipes_say(finished):
    data = load("digits")
    for one, seed in itertools.product(finished.contestants, (0, 1)):
        found = recipe(one.model, data)
        with seeded(seed):
            model = found.model(data)
            by_hand = fit(model, data, found.settings, steps=8, seed=seed)
        assert one.runs[seed].curve == by_hand.curve and one.runs[seed].accuracy == by_hand.accuracy
        kept = found.model(data)
        load_checkpoint(finished.folder / "models" / f"{one.model}-{seed}.pt", kept)
        for name, value in model.state_dict().items():
            assert torch.equal(kept.state_dict()[name], value)


def test_it_leaves_its_files(finished):
    assert finished.complete and [one.model for one in finished.contestants] == ["logistic", "mlp"]
    assert Comparison.read(finished.folder) == finished
    assert len((finished.folder / "results.csv").read_text().splitlines()) == 5
    config = yaml.safe_load((finished.folder / "config.yaml").read_text())
    assert config == {
        "dataset": "digits",
        "models": ["logistic", "mlp"],
        "steps": 8,
        "seeds": 2,
        "budget": None,
        "shuffle_positions": False,
        "published": False,
        "kernel": None,
    }
    about = json.loads((finished.folder / "results.json").read_text())["about"]
    assert about["versions"]["torch"] == torch.__version__ and "cores" in about["machine"]


def test_a_second_run_reads_what_is_finished(finished, monkeypatch, capsys):
    monkeypatch.setattr(MODULE, "fit", None)
    again = compare(**{**QUICK, "quiet": False}, folder=finished.folder.parent, name="a")
    assert again.contestants == finished.contestants
    said = "".join(capsys.readouterr().err.split())
    assert f"4of4runsarereadfrom{finished.folder}" in said and said.count("sread") == 4


def test_it_repeats_to_the_last_bit_in_another_folder(finished, tmp_path):
    again = compare(**QUICK, folder=tmp_path)
    assert again.folder.name == "digits-8steps-2seeds-logistic-mlp"
    for one, other in zip(again.contestants, finished.contestants, strict=True):
        assert [run.curve for run in one.runs] == [run.curve for run in other.runs]


def test_ctrl_c_leaves_what_is_finished_and_the_next_run_goes_on(finished, tmp_path, monkeypatch):
    calls = []

    def stop_in_the_third(*arguments, advance, **options):
        calls.append(1)

        def stopping(step, accuracy):
            if len(calls) == 3 and step == 4:
                os.kill(os.getpid(), signal.SIGINT)
            advance(step, accuracy)

        return fit(*arguments, advance=stopping, **options)

    with monkeypatch.context() as patch:
        patch.setattr(MODULE, "fit", stop_in_the_third)
        with pytest.raises(Interrupted) as stopped:
            compare(**QUICK, folder=tmp_path, name="a")
    partly = stopped.value.result
    assert not partly.complete and [len(one.runs) for one in partly.contestants] == [1, 1]
    assert Comparison.read(tmp_path / "a") == partly
    again = compare(**QUICK, folder=tmp_path, name="a")
    assert again.complete
    for one, other in zip(again.contestants, finished.contestants, strict=True):
        assert [run.curve for run in one.runs] == [run.curve for run in other.runs]


def test_another_configuration_in_the_same_folder_is_refused(finished):
    with pytest.raises(UsageError, match=r"holds a run with steps 8 \(asked for: 9\)"):
        compare(**{**QUICK, "steps": 9}, folder=finished.folder.parent, name="a")


def test_runs_of_another_recipe_are_refused(finished, monkeypatch, tmp_path):
    def slower(model, data, *, published):
        found = recipe(model, data, published=published)
        return type(found)(**{**vars(found), "width": found.width and found.width - 1})

    compare(**QUICK, folder=tmp_path, name="a")
    monkeypatch.setattr(MODULE, "recipe", slower)
    with pytest.raises(UsageError, match=r"holds runs of mlp with width 100 \(asked for: 99\)"):
        compare(**QUICK, folder=tmp_path, name="a")
    assert compare(**QUICK, folder=tmp_path, name="a", restart=True).complete


def test_shuffled_positions_reach_the_models(tmp_path, monkeypatch):
    seen = []

    def watch(model, data, *arguments, **options):
        seen.append(data)
        return fit(model, data, *arguments, **options)

    monkeypatch.setattr(MODULE, "fit", watch)
    compare(**{**QUICK, "models": "logistic", "seeds": 1}, shuffle_positions=True, folder=tmp_path)
    assert torch.equal(seen[0].x_test, load("digits").shuffle_positions().x_test)
    assert not torch.equal(seen[0].x_test, load("digits").x_test)


def test_a_budget_reaches_the_models(tmp_path):
    result = compare(**{**QUICK, "models": ["mlp"], "seeds": 1}, budget=3000, folder=tmp_path)
    assert 2500 < result.contestants[0].parameters <= 3000


def test_a_kernel_reaches_the_layers(tmp_path):
    result = compare(**{**QUICK, "models": "cnn", "seeds": 1, "steps": 1}, kernel="reference", folder=tmp_path)
    assert set(result.contestants[0].kernels.values()) == {"reference"}


def test_threads_are_set_and_put_back(tmp_path, monkeypatch):
    before, seen = torch.get_num_threads(), []

    def watch(*arguments, **options):
        seen.append(torch.get_num_threads())
        return fit(*arguments, **options)

    monkeypatch.setattr(MODULE, "fit", watch)
    compare(**{**QUICK, "models": "logistic", "seeds": 1}, threads=before + 1, folder=tmp_path)
    assert seen == [before + 1] and torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": "mnist2d"}, r"unknown dataset 'mnist2d': did you mean 'mnist1d'\? Known: mnist1d, mnist5k"),
        ({"models": "mlp,transfomer"}, r"unknown model 'transfomer': did you mean 'transformer'\?"),
        ({"models": []}, r"models: expected at least one of logistic, mlp"),
        ({"kernel": "spm"}, r"unknown kernel 'spm': did you mean 'spmm'\? Known: .*reference"),
        ({"steps": 0}, r"steps: expected at least 1, got 0"),
        ({"seeds": -1}, r"seeds: expected at least 1, got -1"),
        ({"budget": 0}, r"budget: expected at least 1, got 0"),
        ({"budget": 100}, r"budget: expected at least 650"),
        ({"threads": 0}, r"threads: expected at least 1, got 0"),
        ({"published": True}, r"published: there is a protocol for mnist1d, not for digits"),
        ({"published": "maybe"}, r"published: expected true or false, got 'maybe'"),
        ({"name": "../a"}, r"name: expected the name of a folder, got '\.\./a'"),
        ({"name": ".."}, r"name: expected the name of a folder, got '\.\.'"),
        ({"name": ""}, r"name: expected the name of a folder, got ''"),
    ],
)
def test_mistakes_are_refused_before_anything_is_done(change, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        compare(**(QUICK | change), folder=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_names_tell_comparisons_apart():
    models = ("logistic", "mlp", "cnn", "gnn", "transformer")
    jobs = [
        Job("mnist1d", models, 1500, 2),
        Job("mnist1d", models, 1500, 2, shuffle_positions=True),
        Job("mnist1d", models, 1500, 2, budget=7),
        Job("mnist1d", models, 1500, 2, published=True),
        Job("mnist1d", models[:2], 1500, 2),
        Job("mnist1d", models, 1500, 2, kernel="reference"),
        Job("mnist1d", models, 1500, 3),
    ]
    assert len({job.name() for job in jobs}) == len(jobs) and jobs[0].name() == "mnist1d-1500steps-2seeds"


def test_models_are_put_in_order_and_named_once():
    assert Job("digits", ("cnn", "mlp", "cnn"), 1, 1).models == ("mlp", "cnn")


def test_every_dataset_has_a_line_of_text():
    assert all(source.says for source in SOURCES.values())
