"""What is shipped: one version everywhere, a licence, types, and a docstring on every public name."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PUBLIC = [
    name
    for name in (
        "mpnn",
        *(f"mpnn.{part}" for part in ("neighbours", "weights", "positions", "tokens", "models", "interop")),
    )
    if (ROOT / name.replace(".", "/") / "__init__.py").is_file()
]


def test_one_version() -> None:
    import mpnn

    released = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert mpnn.__version__ == PROJECT["version"]
    assert released[0] == PROJECT["version"]


def test_the_installed_version_is_this_one() -> None:
    try:
        installed = importlib.metadata.version("mpnn")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("mpnn runs from its folder here; make test installs it")
    assert installed == PROJECT["version"]


def test_licence_types_and_readme_are_shipped() -> None:
    """The wheel takes the folder mpnn whole, and what the metadata names."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert build["packages"] == ["mpnn"]
    assert (ROOT / "mpnn" / "py.typed").is_file()
    assert PROJECT["license"] == "MIT"
    assert PROJECT["license-files"] == ["LICENSE"]
    assert "MIT License" in (ROOT / "LICENSE").read_text()
    assert PROJECT.get("readme") == ("README.md" if (ROOT / "README.md").exists() else None)


def test_the_script_exists() -> None:
    module, _, function = PROJECT["scripts"]["mpnn"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_constraints_pin_every_direct_dependency_within_its_range() -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pins = {canonicalize_name(r.name): r.specifier for r in map(Requirement, filter(None, lines))}
    assert all(re.fullmatch(r"==[^*,]+", str(pin)) for pin in pins.values())
    wanted = [*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())]
    for requirement in map(Requirement, wanted):
        if requirement.name != "mpnn":
            pin = str(pins[canonicalize_name(requirement.name)]).removeprefix("==")
            assert requirement.specifier.contains(pin), f"{requirement} does not allow {pin}"


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_a_docstring(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    assert module.__all__
    for public in module.__all__:
        thing = getattr(module, public)
        if inspect.isclass(thing) or inspect.isroutine(thing):
            # Its own, not one that a class inherits; a dataclass without one gets its signature.
            text = thing.__dict__.get("__doc__") if inspect.isclass(thing) else thing.__doc__
            assert text, f"{name}.{public} has no docstring"
            assert not text.startswith(f"{public}("), f"{name}.{public} has no docstring but its signature"


def test_fresh_memory_is_nan() -> None:
    """The set-up of the tests itself: see conftest.py."""
    assert torch.empty(5).isnan().all()
    assert torch.ones(2).new_empty(3, 2).isnan().all()
    assert torch.empty(2, dtype=torch.int64).eq(torch.iinfo(torch.int64).max).all()
    assert torch.get_num_threads() == 1
