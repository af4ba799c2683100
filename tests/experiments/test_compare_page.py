from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from mpnn import capture_weights
from mpnn.data import load
from mpnn.experiments import MODELS, compare
from mpnn.experiments.recipes import recipe
from mpnn.report import Picture, Sheet, dense, field_by_gradients, of_target
from mpnn.report.compare_page import compare_page
from mpnn.report.trained_maps import trained_maps
from mpnn.training import load_checkpoint


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPNN_DATA", str(tmp_path_factory.mktemp("data")))
        yield compare("digits", steps=2, seeds=1, quiet=True, folder=tmp_path_factory.mktemp("runs"), name="a")


def panels(figure):
    return [torch.tensor(axes.images[0].get_array().filled(math.nan)) for axes in figure.axes if axes.images]


def pictures(section):
    return [part.figure for part in section.parts if isinstance(part, Picture)]


def test_the_page_has_every_part(finished):
    text = compare_page(finished).read_text(encoding="utf-8")
    headings = (
        "Result",
        "Learning curves",
        "What logistic regression hears",
        "What the CNN hears",
        "Every run",
        "Machine",
    )
    assert all(f">{heading}</h2>" in text for heading in headings)
    assert "mpnn compare --dataset digits" in text and "shuffle_positions: false" in text
    assert finished.about["machine"] in text and torch.__version__ in text


def test_the_maps_are_those_of_the_trained_models(finished):
    sections = dict(zip(MODELS, trained_maps(finished), strict=True))
    data = load("digits")
    x = data.x_test[:1]
    for name in ("cnn", "transformer"):
        model = recipe(name, data).model(data).eval()
        load_checkpoint(finished.folder / "models" / f"{name}-0.pt", model)
        with capture_weights(model) as weights, torch.no_grad():
            model(x)
        # Attention's last layer on 3×3 patches, the convolution's first on 8×8 cells: the token in the middle.
        calls = list(weights.values())
        want = of_target(calls[-1][0], 4) if name == "transformer" else of_target(calls[0][0], 36)
        first, *maps, field = pictures(sections[name])
        if name == "transformer":
            for found, values in zip(panels(maps[0]), dense(calls[-1][0]), strict=False):
                torch.testing.assert_close(found, values)
        heads = panels(first)[-len(want) :]
        for found, values in zip(heads, want, strict=True):
            torch.testing.assert_close(found.flatten(), values, equal_nan=True)
        assert len(panels(field)) == len(weights)
    model = recipe("gnn", data).model(data).eval()
    load_checkpoint(finished.folder / "models" / "gnn-0.pt", model)
    field = field_by_gradients(model, x, 36, over=(8, 8)).values
    for found, values in zip(panels(pictures(sections["gnn"])[1]), field, strict=True):
        torch.testing.assert_close(found.nan_to_num(0).flatten(), values / values.max())


def test_of_a_dense_layer_the_unit_with_the_largest_weights_is_shown(finished):
    (section,) = trained_maps(dataclasses.replace(finished, contestants=finished.contestants[:1]))
    state = torch.load(finished.folder / "models" / "logistic-0.pt")["model"]
    (weight,) = [value.squeeze() for name, value in state.items() if name.endswith("weight.weight")]
    shown = panels(pictures(section)[0])[-1]
    torch.testing.assert_close(shown.flatten(), weight[weight.square().sum(-1).argmax()])
    (table,) = [part for part in section.parts if isinstance(part, Sheet)]
    assert table.rows[0][3] == "linear"


def test_other_options_reach_the_maps(tmp_path, finished):
    options = {"models": "cnn", "budget": 3000, "kernel": "reference", "shuffle_positions": True}
    result = compare("digits", steps=1, seeds=1, quiet=True, folder=tmp_path, **options)
    (section,) = trained_maps(result)
    (table,) = [part for part in section.parts if isinstance(part, Sheet)]
    assert {row[3] for row in table.rows} == {"reference"} and "shuffled" in section.parts[0].text
    shown = panels(pictures(section)[0])[0]
    torch.testing.assert_close(shown.flatten(), load("digits").shuffle_positions().x_test[0, :, 0])


def test_a_strided_layer_shows_the_cell_in_the_middle(tmp_path):
    result = compare("mnist1d", models="cnn", steps=1, seeds=1, quiet=True, folder=tmp_path)
    (section,) = trained_maps(result)
    heard = pictures(section)[0]
    assert heard.get_suptitle() == "layer blocks.0.layer, target 9"  # of 19 cells
    shaded = len(heard.axes[1].patches) - 40
    assert shaded == 35  # a window of five


def test_without_the_models_the_page_has_the_rest(finished, tmp_path):
    text = compare_page(dataclasses.replace(finished, folder=tmp_path)).read_text(encoding="utf-8")
    assert ">Result</h2>" in text and "hears</h2>" not in text
