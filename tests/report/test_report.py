from __future__ import annotations

import dataclasses
import io
import math
import struct

import pytest
from rich.console import Console

from mpnn.experiments import Comparison, Contestant, Trained
from mpnn.report import accuracies, curves, show, table
from mpnn.report.table import accuracy, amount, caption, kernels, title
from mpnn.training import Curve


def contestant(model, accuracies, kernels):
    curve = Curve([5, 10], [2.0, 1.0], [2.1, 1.5], [0.3, 0.5])
    runs = [Trained(model, seed, value, 0.5, 0.001 * (seed + 1), 1.0, curve) for seed, value in enumerate(accuracies)]
    kernels = {f"layers.{index}": name for index, name in enumerate(kernels)}
    return Contestant(model, "Full × Static", {"width": 5}, 12_345, 678_901, kernels, runs)


ABOUT = {
    "machine": "a machine",
    "command": "mpnn compare",
    "python": "3.11",
    "versions": {"mpnn": "0.1.0"},
}


@pytest.fixture
def result(tmp_path):
    config = {
        "dataset": "digits",
        "steps": 10,
        "seeds": 3,
        "shuffle_positions": True,
        "published": False,
        "models": ["mlp", "cnn"],
    }
    data = {"name": "digits", "train": 1437, "test": 360, "grid": [8, 8], "channels": 1, "classes": 10}
    contestants = [
        contestant("mlp", [0.90, 0.92, 0.94], ["linear", "linear"]),
        contestant("cnn", [0.5, 0.7, 0.6], ["conv", "conv", "linear"]),
    ]
    return Comparison(tmp_path, config, data, ABOUT, contestants, complete=True)


def test_mean_and_spread_are_the_sample_ones(result):
    one = result.contestants[0]
    assert one.mean == pytest.approx(0.92) and one.sd == pytest.approx(0.02)  # sqrt((0.02² + 0 + 0.02²) / 2)
    assert one.seconds_a_step == pytest.approx(0.002)
    assert accuracy(one) == "92.0 ± 2.0 %"


def test_one_seed_has_no_spread():
    one = contestant("mlp", [0.5], ["linear"])
    assert math.isnan(one.sd) and accuracy(one) == "50.0 %"


def test_the_table_has_every_number_in_eighty_columns(result):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table(result))
    text = console.export_text()
    for part in ("mlp", "12,345", "92.0 ± 2.0 %", "679 k", "2.0", "2 linear", "2 conv, linear", "60.0 ± 10.0 %"):
        assert part in text
    assert "…" not in text and "digits, positions shuffled: 1,437 training and 360 test samples" in text


def test_the_caption_says_what_is_missing(result):
    assert caption(result) == "10 steps, 3 seeds; accuracy after the last step, mean ± sd"
    short = dataclasses.replace(result.contestants[1], runs=result.contestants[1].runs[:1])
    partly = dataclasses.replace(result, contestants=[result.contestants[0], short], complete=False)
    assert caption(partly).startswith("10 steps, 1 to 3 seeds of 3, not all finished")


def test_kernels_are_counted_in_the_order_of_the_layers():
    assert kernels(contestant("cnn", [0.5], ["conv", "conv", "spmm", "conv"])) == "2 conv, spmm, conv"


def test_amounts():
    assert [amount(n) for n in (0, 999, 1000, 1_234_567, 5e9)] == ["0", "999", "1 k", "1.23 M", "5 G"]


def test_files_hold_everything_and_are_read_back(result):
    result.save()
    again = Comparison.read(result.folder)
    assert again == result
    rows = (result.folder / "results.csv").read_text().splitlines()
    assert rows[0] == "model,seed,accuracy,train_loss,seconds_a_step,parameters,flops,kernels"
    assert rows[1] == "mlp,0,0.9,0.5,0.001,12345,678901,linear linear" and len(rows) == 7


def png_size(path):
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:24])


def test_show_writes_the_pictures(result, capsys):
    show(result)
    assert png_size(result.folder / "curves.png")[0] > 1000 and png_size(result.folder / "accuracy.png")[0] > 700
    out = capsys.readouterr().out
    assert "92.0 ± 2.0 %" in out and "curves.png" in out


def test_curves_show_the_mean_and_the_range_over_seeds(result):
    one = result.contestants[0]
    runs = [
        dataclasses.replace(run, curve=Curve([5, 10], [2.0, 1.0], [0, 0], [0.1 * run.seed, 0.2 * run.seed]))
        for run in one.runs
    ]
    drawn = curves(dataclasses.replace(result, contestants=[dataclasses.replace(one, runs=runs)]))
    _, right = drawn.axes
    (line,) = right.get_lines()
    assert line.get_xdata().tolist() == [5, 10] and line.get_ydata() == pytest.approx([10, 20])
    band = right.collections[0].get_paths()[0].vertices
    assert band[:, 1].min() == pytest.approx(0) and band[:, 1].max() == pytest.approx(40)


def test_no_two_texts_of_a_picture_overlap(result):
    for drawn in (accuracies(result), curves(result)):
        drawn.canvas.draw()
        texts = [text for axes in drawn.axes for text in axes.texts if text.get_text()]
        boxes = [text.get_window_extent() for text in texts]
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])


def test_published_figures_stand_beside_ours(result):
    config = {**result.config, "dataset": "mnist1d", "published": True}
    (axes,) = accuracies(dataclasses.replace(result, config=config)).axes
    (marks,) = [found for found in axes.collections if found.get_label() == "published figure"]
    assert marks.get_offsets()[:, 0].tolist() == [68, 56]  # the MLP's and the CNN's with shuffled positions


def test_nothing_finished_shows_nothing(result, capsys):
    show(dataclasses.replace(result, contestants=[], complete=False))
    assert capsys.readouterr().out == "" and not list(result.folder.iterdir())


def test_title_without_shuffling(result):
    plain = dataclasses.replace(result, config={**result.config, "shuffle_positions": False})
    assert title(plain) == "digits: 1,437 training and 360 test samples"
