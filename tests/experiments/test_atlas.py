"""The atlas: every cell equals its published layer on every kernel, and the table says so, or says that it does not."""

from __future__ import annotations

import dataclasses
import io
import itertools
from collections.abc import Callable

import pytest
import torch
from rich.console import Console

from kernel_choice import on_each
from mpnn.experiments import atlas
from mpnn.experiments.atlas_case import TOLERANCE, Case, build, copied, measure
from mpnn.experiments.atlas_cells import CELLS, Reference
from mpnn.plan import NAMES

REFERENCES = {f"{c.neighbours}-{c.weight}-{r.name}": r for c in CELLS for r in c.references}


def test_the_cells_are_four_by_four() -> None:
    neighbours, weights = ("Full", "Grid", "Graph", "AllTokens"), ("Static", "SharedKernel", "EdgeLearned", "QKSoftmax")
    assert [(c.neighbours, c.weight) for c in CELLS] == list(itertools.product(neighbours, weights))
    named = [r.name for r in CELLS[9].references + CELLS[10].references]
    assert named == ["GCNConv", "GraphConv", "SAGEConv", "RGCNConv", "NNConv", "CFConv", "GATConv", "GATv2Conv"]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", REFERENCES)
def test_each_kernel_equals_the_reference(name: str, dtype: torch.dtype) -> None:
    case = build(REFERENCES[name].case, dtype)
    for kernel, errors in on_each(lambda: measure(case)):
        assert errors.kernel == kernel
        assert max(errors.value, errors.gradient) <= TOLERANCE[dtype], (kernel, errors)


def test_the_cells_of_the_layers_are_the_named_ones() -> None:
    for cell, reference in ((c, r) for c in CELLS for r in c.references):
        layer = build(reference.case).layer
        layer = getattr(layer, "layer", layer)  # the block of a Transformer
        assert (type(layer.neighbours).__name__, type(layer.weight).__name__) == (cell.neighbours, cell.weight)


def wrong(change: Callable[[Case], Case]) -> Reference:
    case = REFERENCES["Full-Static-nn.Linear"].case
    return Reference("a wrong one", lambda: change(case()))


def shifted(case: Case) -> Case:
    return dataclasses.replace(case, reference=lambda x: case.reference(x) + 1e-3)


def bent(case: Case) -> Case:
    """Only the gradient of the input differs."""
    return dataclasses.replace(case, reference=lambda x: case.reference(x + 1e-3 * (x - x.detach())))


def undefined(case: Case) -> Case:
    """The gradient of the input is NaN."""
    return dataclasses.replace(case, call=lambda x: case.call(x) + 0 * (x * 0).square().sum().sqrt())


def printed(references: tuple[Reference, ...], width: int = 80) -> tuple[bool, str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    agrees = atlas.show(console, (dataclasses.replace(CELLS[0], references=references),))
    return agrees, console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("change", [shifted, bent, undefined])
def test_a_difference_is_seen(change: Callable[[Case], Case]) -> None:
    agrees, text = printed((CELLS[0].references[0], wrong(change)))
    assert not agrees
    assert "✗ Full × Static" in text and "0 of 1 cells agree" in text
    assert [e.value > 1e-5 for e in atlas.check(wrong(change)).errors.values()] == [change is shifted] * 2


def test_a_difference_ends_with_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(atlas, "CELLS", (dataclasses.replace(CELLS[0], references=(wrong(shifted),)),))
    with pytest.raises(SystemExit, match="1"):
        atlas.atlas()
    assert "✗" in capsys.readouterr().out


def test_a_missing_library_is_named() -> None:
    agrees, text = printed((Reference("SomeConv", REFERENCES["Full-Static-nn.Linear"].case, "no_such_library"),))
    assert not agrees
    assert "SomeConv needs no_such_library, which is not installed; pip install no_such_library" in " ".join(
        text.split()
    )


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    assert atlas.show(console, CELLS)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= width
    assert sum(line.startswith("✓") for line in lines) == 16
    rows = [line for line in lines if line.startswith("    ")][2:]
    assert len(rows) == len(REFERENCES)
    for row, name in zip(rows, REFERENCES, strict=True):
        assert row.strip().startswith(name.split("-", 2)[2])
        assert row.split()[-1] in NAMES


def test_the_process_is_as_before() -> None:
    state = torch.random.get_rng_state()
    build(REFERENCES["Graph-SharedKernel-GCNConv"].case, torch.float64)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_default_dtype() == torch.float32


def test_no_parameter_is_left_out() -> None:
    layer, linear = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"expected names for \['bias', 'weight'\], got \['weight'\]"):
        copied(layer, linear, {"weight": "weight"})
    for name, reference in REFERENCES.items():
        case = build(reference.case)
        assert {id(t.ours) for t in case.ties} == {id(p) for p in case.layer.parameters()}, name
