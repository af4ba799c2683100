"""Pictures of the models that a comparison trained: what a target hears, and how far its field reaches."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mpnn import EdgeWeights, MessagePassing, capture_weights, use_kernels
from mpnn.data import Dataset, load
from mpnn.experiments import Comparison, Contestant
from mpnn.experiments.recipes import recipe
from mpnn.neighbours import Full
from mpnn.report.captured import numbers
from mpnn.report.field import receptive_field
from mpnn.report.field_gradients import field_by_gradients
from mpnn.report.maps import attention_maps
from mpnn.report.parts import Picture, Section, Sheet, Text
from mpnn.report.plans import COLUMNS, plan_rows, plans_of
from mpnn.report.style import called
from mpnn.report.target import weights_of_target
from mpnn.tokens import Tokens
from mpnn.training import load_checkpoint


def trained_maps(result: Comparison) -> list[Section]:
    """A section for each model whose first run left its parameters in the folder: a test sample goes through it."""
    data = load(result.config["dataset"])
    if result.config["shuffle_positions"]:
        data = data.shuffle_positions()
    kernel = result.config.get("kernel")
    with use_kernels(kernel) if kernel is not None else nullcontext():
        return [_section(result, one, data) for one in result.contestants if _file(result, one).exists()]


def _file(result: Comparison, one: Contestant) -> Any:
    return result.folder / "models" / f"{one.model}-{one.runs[0].seed}.pt"


def _section(result: Comparison, one: Contestant, data: Dataset) -> Section:
    found = recipe(one.model, data, published=result.config["published"])
    with torch.random.fork_rng(devices=[]):
        model = replace(found, width=one.recipe["width"]).model(data).eval()
    load_checkpoint(_file(result, one), model)
    x, label = data.x_test[:1], int(data.y_test[0])
    batch = min(100, len(data.x_train))
    shuffled = " The inputs stand in the order in which they were shuffled." * result.config["shuffle_positions"]
    parts: list[Any] = [Text(f"{one.rule}. {_sample(label, one, data)}{shuffled}")]
    parts += _heard(model, x, data)
    if not any(isinstance(layer.neighbours, Full) for layer in _layers(model)):
        parts += _field(model, x, data)
    plans = plans_of(model, data.x_train[:batch])
    parts.append(
        Sheet(f"How each layer runs on a batch of {batch}; FLOPs and bytes are estimates", COLUMNS, plan_rows(plans))
    )
    return Section(f"What {called(one.model)} hears", parts)


def _sample(label: int, one: Contestant, data: Dataset) -> str:
    of = f"class {label} of {data.classes}"
    return f"The pictures are of the first test sample ({of}) and the run of seed {one.runs[0].seed}."


def _layers(model: nn.Module) -> list[MessagePassing]:
    return [module for module in model.modules() if isinstance(module, MessagePassing)]


def _heard(model: nn.Module, x: Tensor, data: Dataset) -> list[Picture]:
    """The weights of one target of the layer that says most: of attention the last, of the others the first."""
    grids: list[tuple[int, ...]] = [data.grid]

    def note(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tokens) and output.grid is not None:
            grids.append(output.grid)

    hooks = [module.register_forward_hook(note) for module in model.modules()]
    try:
        with torch.no_grad(), capture_weights(model) as weights:
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    calls = [(name, found[0]) for name, found in weights.items()]
    name, edges = calls[-1] if calls[-1][1].family == "heads" else calls[0]
    over = next((grid for grid in reversed(grids) if math.prod(grid) == edges.size[1]), None)
    if over is None:  # units of several channels stand nowhere on the grid
        return []
    units = isinstance(model.get_submodule(name).neighbours, Full)
    middle = over if edges.size[0] == edges.size[1] else tuple(_shape(edges.size[0], data.grid))
    target = _loudest(edges) if units else _middle(middle)
    which = "the unit with the largest weights" if units else "the token in the middle"
    held = x[0, :, 0] if math.prod(data.grid) == edges.size[1] and x.shape[-1] == 1 else None
    drawn = weights_of_target(edges, target, over=over, x=held, title=f"layer {name}, target {target}")
    says = f"The weights of target {target} ({which}) of layer {name} over its {edges.size[1]} sources"
    maps = []
    if edges.family == "heads" and max(edges.size) <= 256:
        seen = f"Who hears whom in layer {name}: the weights of all {edges.size[0]} targets, a map for each head"
        maps.append(Picture(attention_maps(edges, title=f"layer {name}, all targets"), seen, f"{seen}."))
    more = "; a matrix counts as its norm" if edges.family == "groups" and edges.weight.shape[-2:].numel() > 1 else ""
    return [Picture(drawn, says, f"{says}{more}."), *maps]


def _field(model: nn.Module, x: Tensor, data: Dataset) -> list[Picture]:
    sizes: list[int] = []
    hooks = [layer.register_forward_hook(lambda *call: sizes.append(call[-1].shape[-2])) for layer in _layers(model)]
    try:
        with torch.no_grad():
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    middle = [_middle(tuple(_shape(size, data.grid))) for size in sizes]
    field = field_by_gradients(model, x, middle, over=data.grid)
    reached = [int((row > 0).sum()) for row in field.values]
    counts = ", ".join(map(str, reached))
    says = f"The inputs that move the token in the middle after each layer: {counts} of {data.tokens}"
    caption = f"{says}, by gradients at this sample; the colour is the share of the largest in the layer."
    return [Picture(receptive_field(field, over=data.grid), says, caption)]


def _shape(count: int, grid: tuple[int, ...]) -> list[int]:
    """The grid of a layer with so many cells: of one axis their number, of a square image the root."""
    if len(grid) == 1:
        return [count]
    side = math.isqrt(count * grid[0] // grid[1])
    return [side, count // max(1, side)]


def _middle(grid: tuple[int, ...]) -> int:
    """The cell in the middle, in row-major order.

    >>> _middle((3, 3)), _middle((40,))
    (4, 20)
    """
    number = 0
    for size in grid:
        number = number * size + size // 2
    return number


def _loudest(edges: EdgeWeights) -> int:
    """The target whose weights have the largest norm."""
    squares = numbers(edges).square().sum(-1)
    return int(torch.zeros(edges.size[0]).index_add_(0, edges.target.cpu(), squares).argmax())
