from __future__ import annotations

import random
import sys
import types

import numpy as np
import pytest
import torch

from mpnn.data import SOURCES, UsageError, load


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def test_mnist1d_is_what_its_package_makes(folder):
    package = pytest.importorskip("mnist1d.data", reason="mnist1d is not installed")
    ours = load("mnist1d", folder=folder)
    made = package.make_dataset(package.get_dataset_args())
    assert ours.grid == (40,) and (ours.tokens, ours.channels, ours.classes) == (40, 1, 10)
    torch.testing.assert_close(ours.x_train[..., 0], torch.from_numpy(made["x"]).float(), rtol=0, atol=0)
    torch.testing.assert_close(ours.x_test[..., 0], torch.from_numpy(made["x_test"]).float(), rtol=0, atol=0)
    assert ours.y_train.tolist() == made["y"].tolist() and ours.y_test.tolist() == made["y_test"].tolist()


def test_second_load_reads_what_the_first_made(folder, monkeypatch):
    first = load("digits", folder=folder)
    monkeypatch.setitem(SOURCES, "digits", types.SimpleNamespace(**(vars(SOURCES["digits"]) | {"make": None})))
    second = load("digits", folder=folder)
    assert torch.equal(first.x_train, second.x_train) and torch.equal(first.y_test, second.y_test)


@pytest.mark.parametrize(
    ("name", "grid", "sizes"), [("digits", (8, 8), (1437, 360)), ("mnist5k", (28, 28), (4000, 1000))]
)
def test_images_are_standardised_by_the_training_samples(name, grid, sizes, folder):
    data = load(name, folder=folder)
    assert data.grid == grid and (len(data.x_train), len(data.x_test)) == sizes
    assert abs(float(data.x_train.mean())) < 1e-5 and abs(float(data.x_train.std()) - 1) < 1e-5
    assert float(data.x_test.mean()) != pytest.approx(0, abs=1e-6)
    shares = data.y_test.bincount() / len(data.y_test)
    assert shares.min() > 0.09 and shares.max() < 0.11


def test_tokens_are_the_pixels_row_by_row(folder):
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
    data = load("digits", folder=folder)
    everything = torch.cat([data.x_train, data.x_test])
    images = torch.from_numpy(datasets.load_digits().images).float().flatten(1)
    # The split reorders the samples; the set of them stays.
    ours = everything[..., 0] - everything.min()
    ours = (ours / ours.max() * 16).round().int()
    assert sorted(map(tuple, ours.tolist())) == sorted(map(tuple, images.int().tolist()))


def test_making_data_leaves_the_random_states_alone(tmp_path):
    pytest.importorskip("mnist1d", reason="mnist1d is not installed")
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    expected = random.random(), np.random.rand(), torch.rand(())
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    load("mnist1d", folder=tmp_path)
    assert (random.random(), np.random.rand(), torch.rand(())) == expected


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(
        UsageError, match=r"unknown dataset 'mnist-1d': did you mean 'mnist1d'\? Known: mnist1d, mnist5k"
    ):
        load("mnist-1d")


def test_missing_library_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "mnist1d", None)
    monkeypatch.setitem(sys.modules, "mnist1d.data", None)
    with pytest.raises(UsageError, match=r"mnist1d needs mnist1d, which is not installed; pip install 'mpnn\[train\]'"):
        load("mnist1d", folder=tmp_path)


def test_torchvision_missing_says_so(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    with pytest.raises(UsageError, match=r"pip install torchvision, or take mnist1d, mnist5k or digits"):
        load("cifar10", folder=tmp_path)


class _Torchvision:
    """The little of torchvision's interface that is used, with four samples a part and no network."""

    def __init__(self, root, train, download):
        assert download and root.name == "torchvision"
        self.data = np.arange(4 * 32 * 32 * 3, dtype=np.uint8).reshape(4, 32, 32, 3)
        self.targets = [0, 1, 2, 3]


def test_torchvision_images_become_tokens(monkeypatch, tmp_path):
    module = types.ModuleType("torchvision.datasets")
    module.CIFAR10 = _Torchvision
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.datasets", module)
    data = load("cifar10", folder=tmp_path)
    assert data.grid == (32, 32) and data.x_train.shape == (4, 1024, 3)
    raw = torch.arange(4 * 32 * 32 * 3, dtype=torch.uint8).reshape(4, 1024, 3) / 255
    torch.testing.assert_close(data.x_train, (raw - raw.mean((0, 1))) / raw.std((0, 1)))


def test_failed_download_is_a_mistake_not_a_traceback(monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise RuntimeError("Error downloading train-images-idx3-ubyte.gz")

    module = types.ModuleType("torchvision.datasets")
    module.MNIST = refuse
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.datasets", module)
    with pytest.raises(UsageError, match=r"could not be downloaded .*train-images.*; put it there"):
        load("mnist", folder=tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    load("digits", folder=tmp_path)
    (kept,) = tmp_path.glob("*.npz")
    kept.write_bytes(kept.read_bytes()[:1000])
    with pytest.raises(UsageError, match=r"cannot read .*digits.*\.npz .*delete it"):
        load("digits", folder=tmp_path)
