from __future__ import annotations

import csv
import dataclasses
import importlib
import json
import math
import os
import signal

import pytest
import torch
import yaml

from mpnn.data import UsageError, load
from mpnn.experiments.recipes import grid_graph
from mpnn.experiments.sweep import SETTINGS, Stopped, sweep
from mpnn.experiments.sweep_result import Cell, Place, Sweep, t_half, t_interval, wilson
from mpnn.experiments.sweep_rules import build
from mpnn.models import Transformer
from mpnn.neighbours import AllTokens, Window
from mpnn.positions import LaplacianEigenvectors, RandomWalk, Rotary, Sinusoidal
from mpnn.report.heat import heat_map
from mpnn.report.sweep_report import caption, show_sweep, sweep_table, title
from mpnn.training import fit, seeded
from mpnn.weights import QKSoftmax, SharedKernel

MODULE = importlib.import_module("mpnn.experiments.sweep")
SMALL = {"channels": 8, "depth": 1, "heads": 2, "steps": 3, "quiet": True}
GRID = {
    "neighbours": "Window(2), AllTokens()",
    "weight": "SharedKernel, QKSoftmax",
    "positions": "none,rotary",
    "seeds": 2,
}


@pytest.fixture(scope="module", autouse=True)
def data_folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPNN_DATA", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return sweep(**SMALL, **GRID, folder=tmp_path_factory.mktemp("runs"), name="a")


def test_it_trains_the_allowed_and_lists_the_refused(finished):
    trained = {(c.place.neighbours, c.place.weight, c.place.position) for c in finished.cells}
    assert trained == {
        ("Window(2)", "SharedKernel", "none"),
        ("Window(2)", "QKSoftmax", "none"),
        ("Window(2)", "QKSoftmax", "rotary"),
        ("AllTokens()", "QKSoftmax", "none"),
        ("AllTokens()", "QKSoftmax", "rotary"),
    }
    reasons = {(r.place.neighbours, r.place.position): r.reason for r in finished.refused}
    assert len(finished.refused) == 3 and finished.complete
    assert reasons["AllTokens()", "none"].startswith("expected AllTokens(max_tokens=m) for SharedKernel")
    assert (
        reasons["Window(2)", "rotary"]
        == "Rotary turns queries and keys, which only QKSoftmax has; SharedKernel has none"
    )


def test_a_cell_is_the_model_that_one_writes_by_hand(finished):
    data = load("digits")
    made = {
        ("Window(2)", "SharedKernel", "none"): lambda: Transformer(
            1, 8, 1, 10, neighbours=Window(2), weight=lambda c: SharedKernel(c, c), hidden=16
        ),
        ("AllTokens()", "QKSoftmax", "rotary"): lambda: Transformer(
            1, 8, 1, 10, neighbours=AllTokens(), weight=lambda c: QKSoftmax(c, 2, position=Rotary(4)), hidden=16
        ),
    }
    for cell in finished.cells:
        key = (cell.place.neighbours, cell.place.weight, cell.place.position)
        if key not in made:
            continue
        for seed, run in enumerate(cell.runs):
            with seeded(seed):
                by_hand = fit(made[key](), data, SETTINGS, steps=3, seed=seed, evaluations=3)
            assert run.curve == by_hand.curve and run.accuracy == by_hand.accuracy


def test_positions_are_where_they_belong():
    data = load("digits")
    assert isinstance(build("AllTokens", "QKSoftmax", "sinusoidal", data, 8, 1, 2).position, Sinusoidal)
    model = build("AllTokens", "QKSoftmax(heads=4)", "ALiBi(4)", data, 8, 2, 2)
    first, second = (block.layer.weight for block in model.blocks)
    assert model.position is None and first.heads == 4 and first.score_bias is not second.score_bias


@pytest.mark.parametrize(
    "weight", ["Static", "SharedKernel", "EdgeLearned", "QKSoftmax", "EdgeLearned(AdditiveScoreV2)"]
)
@pytest.mark.parametrize(
    "neighbours", ["Full(tokens)", "Grid(grid, 3)", "grid_graph(grid)", "AllTokens(max_tokens=tokens)"]
)
def test_the_atlas_can_be_swept(neighbours, weight):
    data = load("digits")
    y = build(neighbours, weight, "none", data, 8, 1, 2)(data.x_train[:3])
    assert y.shape == (3, 10) and torch.isfinite(y).all()


CODES = ["Rotary(channels // heads, axes=2)", "Sinusoidal(channels, axes=2)", "Learned(channels, grid)"]


@pytest.mark.parametrize("code", CODES)
def test_codes_of_two_axes_know_the_cells(code):
    data = load("digits")
    model = build("AllTokens", "QKSoftmax", code, data, 8, 1, 2).eval()
    x = data.x_train[:2]
    turned = x.unflatten(1, (8, 8)).transpose(1, 2).flatten(1, 2)
    assert not torch.allclose(model(x), model(turned), atol=1e-6)
    places = model.tokens(x).positions
    assert places.shape == (64, 2) and places[10].tolist() == [1, 2]


@pytest.mark.parametrize(("name", "kind"), [("laplacian", LaplacianEigenvectors), ("random_walk", RandomWalk)])
@pytest.mark.parametrize("neighbours", ["Window(2)", "grid_graph(grid)", "AllTokens()"])
def test_codes_of_nodes_are_those_of_the_grid(name, kind, neighbours):
    data = load("digits")
    model = build(neighbours, "QKSoftmax", name, data, 8, 1, 2).eval()
    row, column = torch.arange(64) // 8, torch.arange(64) % 8
    near = ((row[:, None] - row).abs() + (column[:, None] - column).abs()) == 1
    want = kind(8, 8).table(near.nonzero().t(), 64)
    code = model.position.code
    assert type(code) is kind and "position.edge_index" not in model.state_dict()
    torch.testing.assert_close(model.position(torch.zeros(64, 8)), code.add(torch.zeros(64, 8), want))
    y = model(data.x_train[:2])
    assert y.shape == (2, 10) and torch.isfinite(y).all()


def test_a_code_of_nodes_may_be_written_with_a_dash(tmp_path):
    rules = {
        "neighbours": "Window(2)",
        "weight": "QKSoftmax",
        "positions": "random-walk,LaplacianEigenvectors(channels, 2)",
    }
    result = sweep(**SMALL, **rules, seeds=1, folder=tmp_path)
    assert [cell.place.position for cell in result.cells] == ["random_walk", "LaplacianEigenvectors(channels, 2)"]


def test_the_default_grid_has_nothing_that_is_refused(tmp_path):
    result = sweep(**{**SMALL, "steps": 1}, seeds=1, folder=tmp_path)
    assert len(result.cells) == 12 and not result.refused


def test_a_network_of_the_offset():
    data = load("digits")
    with pytest.raises(ValueError, match="which the edges of a graph do not have"):
        build("grid_graph(grid)", "EdgeLearned(OffsetMLP)", "none", data, 8, 1, 2)
    layer = build("Grid(grid, 3)", "EdgeLearned(OffsetMLP(hidden=(4,)))", "none", data, 8, 1, 2).blocks[0].layer
    assert layer.weight.groups == 8 and layer.weight.network.axes == 2
    assert layer.weight.network.layers[0].out_features == 4


def test_the_graph_of_the_grid_is_that_of_the_comparison():
    data = load("digits")
    rule = build("grid_graph(grid)", "SharedKernel", "none", data, 8, 1, 2).blocks[0].layer.neighbours
    assert torch.equal(rule.edges(64, 64).source, grid_graph((8, 8)).edges(64, 64).source)


def test_it_leaves_files_that_are_read_back(finished):
    assert Sweep.read(finished.folder) == finished
    rows = list(csv.DictReader((finished.folder / "results.csv").read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 5 * 2 + 3 and sum(row["refused"] != "" for row in rows) == 3
    assert float(rows[0]["accuracy"]) == finished.cells[0].runs[0].accuracy
    file = json.loads((finished.folder / "results.json").read_text())
    assert file["cells"][0]["interval"] == list(finished.cells[0].interval)
    assert file["about"]["command"].startswith('mpnn sweep --neighbours "Window(2), AllTokens()"')


def test_the_written_configuration_asks_for_the_same(finished, tmp_path):
    config = yaml.safe_load((finished.folder / "config.yaml").read_text())
    assert config["neighbours"] == ["Window(2)", "AllTokens()"] and config["dataset"] == ["digits"]
    again = sweep(**config, folder=finished.folder.parent, name="a", quiet=True)
    assert again.cells == finished.cells


def test_a_second_run_reads_what_is_finished(finished, monkeypatch, capsys):
    monkeypatch.setattr(MODULE, "fit", None)
    again = sweep(**{**SMALL, "quiet": False}, **GRID, folder=finished.folder.parent, name="a")
    said = "".join(capsys.readouterr().err.split())
    assert f"10of10runsarereadfrom{finished.folder}" in said and said.count("sread") == 10
    assert again.cells == finished.cells and again.refused == finished.refused


def test_another_grid_in_the_same_folder_is_refused(finished):
    with pytest.raises(UsageError, match=r"holds a run with positions \['none', 'rotary'\] \(asked for: \['none'\]\)"):
        sweep(**SMALL, **{**GRID, "positions": "none"}, folder=finished.folder.parent, name="a")


def test_ctrl_c_leaves_what_is_finished_and_the_next_run_goes_on(finished, tmp_path, monkeypatch):
    calls = []

    def stop_in_the_third(*arguments, advance, **options):
        calls.append(1)

        def stopping(step, accuracy):
            if len(calls) == 3 and step == 2:
                os.kill(os.getpid(), signal.SIGINT)
            advance(step, accuracy)

        return fit(*arguments, advance=stopping, **options)

    with monkeypatch.context() as patch:
        patch.setattr(MODULE, "fit", stop_in_the_third)
        with pytest.raises(Stopped) as stopped:
            sweep(**SMALL, **GRID, folder=tmp_path, name="a")
    partly = stopped.value.result
    assert not partly.complete and [len(cell.runs) for cell in partly.cells] == [1, 1]
    assert Sweep.read(tmp_path / "a") == partly and "not all finished" in caption(partly)
    show_sweep(partly)
    assert (tmp_path / "a" / "index.html").exists()
    again = sweep(**SMALL, **GRID, folder=tmp_path, name="a")
    assert again.complete
    for one, other in zip(again.cells, finished.cells, strict=True):
        assert [run.curve for run in one.runs] == [run.curve for run in other.runs]


def test_a_budget_narrows_every_cell(tmp_path):
    result = sweep(**SMALL, neighbours="Window(1),Window(4)", weight="SharedKernel", positions="none", budget=3000,
                   seeds=1, folder=tmp_path)  # fmt: skip
    wide, narrow = result.cells
    assert wide.channels > narrow.channels and all(2000 < cell.parameters <= 3000 for cell in result.cells)


def test_a_budget_below_the_smallest_is_a_reason(tmp_path):
    result = sweep(**SMALL, neighbours="Window(1),Window(400)", weight="SharedKernel", positions="none", budget=1000,
                   seeds=1, folder=tmp_path)  # fmt: skip
    assert len(result.cells) == 1 and "budget: expected at least" in result.refused[0].reason


def test_several_data_sets_fit_their_rules_to_each(tmp_path):
    result = sweep("digits,mnist1d", **SMALL, neighbours="Grid(grid, 3),Grid((8, 8), 3)", weight="QKSoftmax",
                   positions="Learned(channels, tokens)", seeds=1, folder=tmp_path)  # fmt: skip
    assert [str(cell.place).split(" × ")[0] for cell in result.cells] == [
        "digits: Grid(grid, 3)", "digits: Grid((8, 8), 3)", "mnist1d: Grid(grid, 3)",
    ]  # fmt: skip
    assert (
        result.refused[0].place.dataset == "mnist1d"
        and "expected tokens of shape (..., 64, C)" in result.refused[0].reason
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"neighbours": "Windo(2)"}, "unknown name in neighbours 'Windo': did you mean 'Window'"),
        ({"neighbours": "Window(channels)"}, "unknown name in neighbours 'channels'"),
        ({"weight": "SharedKernel(32, 32)"}, r"are those of --channels; .* SharedKernel\(heads=2\)"),
        ({"weight": "QKSoftmax(head=2)"}, "QKSoftmax has no option 'head'; did you mean heads"),
        ({"positions": "sinusoid"}, "unknown name in positions 'sinusoid': did you mean 'sinusoidal'"),
        ({"dataset": "digit"}, "unknown dataset 'digit': did you mean 'digits'"),
        ({"seeds": 0}, "seeds: expected at least 1, got 0"),
        ({"channels": 7}, "channels: expected a multiple of the 2 heads, got 7"),
        ({"threads": 0}, "threads: expected at least 1"),
        ({"name": "a/b"}, "name: expected the name of a folder"),
        ({"weight": "Static", "neighbours": "AllTokens()"}, r"every combination is refused:\n  digits: AllTokens\(\)"),
        ({"neighbours": "Graph()", "weight": "QKSoftmax"}, r"every combination is refused:\n.*edge_index"),
        ({"neighbours": "tokens", "weight": "QKSoftmax"}, "expected neighbours, got tokens, which is 64"),
        ({"weight": "AdditiveScore"}, "expected a weight, got AdditiveScore"),
        ({"neighbours": "Window(-1)"}, "every combination is refused"),
    ],
)  # fmt: skip
def test_mistakes_are_told_before_anything_runs(options, message, tmp_path, monkeypatch):
    monkeypatch.setattr(MODULE, "fit", None)
    with pytest.raises(UsageError, match=message):
        sweep(**{**SMALL, "positions": "none", **options}, folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_intervals_are_those_of_the_textbook():
    from scipy import stats

    values = [0.91, 0.93, 0.90, 0.95]
    low, high = t_interval(values)
    t = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (low, high) == pytest.approx((t.low, t.high))
    assert all(math.isnan(end) for end in t_interval([0.5])) and t_interval([0.1, 0.9]) == (0, 1)
    proportion = stats.binomtest(324, 360).proportion_ci(method="wilson")
    assert wilson(0.9, 360) == pytest.approx((proportion.low, proportion.high))


def test_the_heat_map_holds_the_means(finished):
    drawn = heat_map(finished)
    none, rotary, _ = drawn.axes
    want = {(c.place.neighbours, c.place.weight, c.place.position): 100 * c.mean for c in finished.cells}
    for axes, position in ((none, "none"), (rotary, "rotary")):
        shown = axes.images[0].get_array().filled(math.nan)
        for row, neighbours in enumerate(("Window(2)", "AllTokens()")):
            for column, weight in enumerate(("SharedKernel", "QKSoftmax")):
                mean = want.get((neighbours, weight, position), math.nan)
                assert shown[row, column] == pytest.approx(mean, nan_ok=True)
    assert [text.get_text() for text in rotary.texts].count("refused") == 2
    cell = finished.cells[0]
    assert f"{100 * cell.mean:.1f}\n± {100 * t_half(cell.accuracies):.1f}" in [t.get_text() for t in none.texts]


def test_the_table_says_which_interval_and_the_best_comes_first(finished):
    table = sweep_table(dataclasses.replace(finished, config={**finished.config, "steps": 500}))
    means = [float(text.split()[0]) for text in table.columns[1]._cells]
    assert means == sorted(means, reverse=True) and table.row_count == 5
    assert "Student's t over the seeds, n − 1 degrees of freedom" in caption(finished)
    assert title(finished) == "2 neighbourhoods × 2 weights × 2 positions on digits; 3 of 8 combinations refused"


@pytest.mark.parametrize(("steps", "seeds"), [(100, 2), (500, 1)])
def test_what_is_too_young_or_alone_is_not_ranked(steps, seeds, finished, tmp_path, capsys):
    cells = sorted(finished.cells, key=lambda one: one.mean)
    config = {**finished.config, "steps": steps, "seeds": seeds}
    young = dataclasses.replace(finished, folder=tmp_path, cells=cells, config=config)
    assert not young.ranks and dataclasses.replace(young, config={**config, "steps": 500, "seeds": 2}).ranks
    assert [text.split()[0] for text in sweep_table(young).columns[1]._cells] == [
        f"{100 * one.mean:.1f}" for one in young.cells
    ]
    show_sweep(young)
    page = (tmp_path / "index.html").read_text()
    assert "too short to rank" in capsys.readouterr().out and "too short to rank" in page
    assert "The highest mean accuracy" not in page and "Framed" not in page


def test_refused_and_not_run_have_marks_of_their_own(finished):
    some = dataclasses.replace(finished, cells=finished.cells[1:], config={**finished.config, "steps": 500})
    first = heat_map(some).axes[0]
    texts = [text.get_text() for text in first.texts]
    assert texts.count("not run") == 1 and texts.count("refused") == 1
    assert sorted(patch.get_hatch() for patch in first.patches if patch.get_hatch()) == ["..", "////"]


def test_one_cell_is_drawn_without_a_warning(finished, tmp_path):
    from mpnn.report.style import save

    config = {**finished.config, "neighbours": ["Window(2)"], "weight": ["QKSoftmax"], "positions": ["none"]}
    one = [c for c in finished.cells if c.place.rule == "Window(2) × QKSoftmax"]
    drawn = heat_map(dataclasses.replace(finished, cells=one, refused=[], config=config))
    save(drawn, tmp_path / "a.png")
    low, high = drawn.axes[-1].get_ylim()
    assert low < 100 * one[0].mean < high and high - low == pytest.approx(1)


def test_the_page_has_everything(finished, capsys):
    show_sweep(finished)
    text = (finished.folder / "index.html").read_text()
    for part in ("Rotary turns queries and keys", "Window(2)", "Student&#x27;s t", "mpnn sweep --neighbours", "<svg"):
        assert part.replace("&#x27;", "'") in text.replace("&#x27;", "'"), part
    out = capsys.readouterr().out
    assert "index.html, heatmap.png" in out and "refused  digits: AllTokens() × SharedKernel" in out


def test_places_name_themselves():
    assert str(Place("digits", "Window(2)", "QKSoftmax", "none")) == "digits: Window(2) × QKSoftmax"
    assert Cell(Place("d", "n", "w", "p"), 8, 1, 1, {}, []).accuracies == []
