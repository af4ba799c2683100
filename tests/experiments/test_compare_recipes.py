"""Each recipe against the same model in plain torch, and the costs against counts by hand."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mpnn.data import Dataset, UsageError
from mpnn.experiments.measure import cost, count_parameters
from mpnn.experiments.recipe import within
from mpnn.experiments.recipes import MODELS, PUBLISHED, grid_graph, recipe


def dataset(name, grid, channels=1):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.Size(grid).numel()
    x = torch.randn(12, tokens, channels, generator=generator)
    return Dataset(name, x, torch.arange(12) % 10, x[:4], torch.arange(4), grid, 10)


SIGNAL = dataset("mnist1d", (40,))
SHAPES = [SIGNAL, dataset("digits", (8, 8)), dataset("mnist5k", (28, 28)), dataset("cifar10", (32, 32), 3)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("data", SHAPES, ids=lambda data: data.name)
def test_each_model_on_each_kind_of_data_trains(model, data):
    made = recipe(model, data).model(data)
    loss = F.cross_entropy(made(data.x_train), data.y_train)
    loss.backward()
    assert made(data.x_test).shape == (4, 10)
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in made.parameters())


class PublishedMLP(nn.Module):
    """models.py of the MNIST-1D repository."""

    def __init__(self):
        super().__init__()
        self.linear1, self.linear2, self.linear3 = nn.Linear(40, 100), nn.Linear(100, 100), nn.Linear(100, 10)

    def forward(self, x):
        h = self.linear1(x).relu()
        h = h + self.linear2(h).relu()
        return self.linear3(h)


class PublishedCNN(nn.Module):
    """models.py of the MNIST-1D repository."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(1, 25, 5, stride=2, padding=1)
        self.conv2 = nn.Conv1d(25, 25, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(25, 25, 3, stride=2, padding=1)
        self.linear = nn.Linear(125, 10)

    def forward(self, x):
        h = self.conv3(self.conv2(self.conv1(x.view(-1, 1, 40)).relu()).relu()).relu()
        return self.linear(h.view(h.shape[0], -1))


def copy_parameters(ours, theirs):
    for kind in ("weight", "bias"):
        sides = [[part for name, part in side.named_parameters() if name.endswith(kind)] for side in (ours, theirs)]
        for mine, other in zip(*sides, strict=True):
            mine.data.copy_(other.data.reshape(mine.shape))


@pytest.mark.parametrize(
    ("model", "published", "parameters"),
    [("mlp", PublishedMLP, 15_210), ("cnn", PublishedCNN, 5_210), ("logistic", lambda: nn.Linear(40, 10), 410)],
)
def test_the_published_models_are_the_published_ones(model, published, parameters):
    found = recipe(model, SIGNAL, published=True)
    ours, theirs = found.model(SIGNAL), published()
    assert count_parameters(ours) == count_parameters(theirs) == parameters
    copy_parameters(ours, theirs)
    x = SIGNAL.x_train.clone().requires_grad_()
    y = theirs(x.squeeze(-1))
    torch.testing.assert_close(ours(x), y, rtol=1e-5, atol=1e-5)
    (ours_grad,) = torch.autograd.grad(ours(x).square().sum(), x)
    (theirs_grad,) = torch.autograd.grad(theirs(x.squeeze(-1)).square().sum(), x)
    torch.testing.assert_close(ours_grad, theirs_grad, rtol=1e-4, atol=1e-5)
    settings = found.settings
    assert (settings.optimiser, settings.learning_rate, settings.schedule) == ("adam", 1e-2, "constant")
    assert (settings.batch_size, settings.shuffle, settings.weight_decay) == (100, False, 0)


@pytest.mark.parametrize("model", MODELS)
def test_published_models_stay_within_twenty_thousand_parameters(model):
    assert count_parameters(recipe(model, SIGNAL, published=True).model(SIGNAL)) <= 20_000


@pytest.mark.parametrize("grid", [(5,), (3, 4), (2, 3, 2)])
def test_a_grid_graph_joins_each_cell_to_the_next_along_the_axes(grid):
    graph = grid_graph(grid)
    cells = list(torch.cartesian_prod(*(torch.arange(size) for size in grid)).view(-1, len(grid)).unbind())
    number = {tuple(cell.tolist()): index for index, cell in enumerate(cells)}
    direction = {}
    for cell, target in number.items():
        for axis, step in itertools.product(range(len(grid)), (-1, 1)):
            other = tuple(place + step * (axis == a) for a, place in enumerate(cell))
            if other in number:
                direction[number[other], target] = (axis, step)
    edges = list(map(tuple, graph.edge_index.t().tolist()))
    assert sorted(edges) == sorted(direction) and graph.relations == 2 * len(grid)
    # A type is one direction, and a direction is one type.
    kinds = {(kind, direction[edge]) for edge, kind in zip(edges, graph.edge_type.tolist(), strict=True)}
    assert len(kinds) == len({kind for kind, _ in kinds}) == len({way for _, way in kinds}) == graph.relations


@pytest.mark.parametrize("data", SHAPES[:2], ids=lambda data: data.name)
def test_the_gnn_equals_pygs_rgcn(data):
    geometric = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")
    ours = recipe("gnn", data).model(data)
    graph = ours.blocks[0].layer.neighbours
    h = data.x_train[0]
    for index, block in enumerate(ours.blocks):
        weight = (block.block if index else block).layer.weight
        theirs = geometric.RGCNConv(h.shape[1], weight.out_channels, graph.relations)
        theirs.weight.data.copy_(weight.weight.data.transpose(1, 2))
        theirs.root.data.copy_(weight.root.weight.data.t())
        theirs.bias.data.copy_(weight.bias.data)
        y = theirs(h, graph.edge_index, graph.edge_type).relu()
        h = h + y if index else y
    torch.testing.assert_close(ours(data.x_train[:1])[0], ours.readout.linear(h.mean(0)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", ["mlp", "cnn", "gnn", "transformer"])
@pytest.mark.parametrize("budget", [3_000, 20_000])
def test_a_budget_is_used_and_never_exceeded(model, budget):
    found = within(recipe(model, SIGNAL), SIGNAL, budget, model)
    assert found.width % found.multiple == 0
    assert 0.5 * budget < count_parameters(found.model(SIGNAL)) <= budget
    wider = found.build(SIGNAL, found.width + found.multiple)
    assert count_parameters(wider) > budget


def test_a_budget_leaves_logistic_regression_as_it_is():
    assert within(recipe("logistic", SIGNAL), SIGNAL, 1000, "logistic") == recipe("logistic", SIGNAL)


@pytest.mark.parametrize(("model", "least"), [("logistic", "410"), ("mlp", "63")])
def test_a_budget_that_nothing_meets_is_refused(model, least):
    with pytest.raises(
        UsageError, match=rf"budget: expected at least {least}, .* smallest {model} on mnist1d .* got 50"
    ):
        within(recipe(model, SIGNAL), SIGNAL, 50, model)


def test_counting_leaves_the_random_state_alone():
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    within(recipe("cnn", SIGNAL), SIGNAL, 5000, "cnn")
    assert torch.equal(torch.rand(2), expected)


def test_costs_by_hand():
    x = SIGNAL.x_train
    assert cost(recipe("logistic", SIGNAL).model(SIGNAL), x).flops == 2 * 40 * 10
    assert cost(recipe("mlp", SIGNAL).model(SIGNAL), x).flops == 2 * (40 * 100 + 100 * 100 + 100 * 10)
    # A window that hangs over the edge has fewer cells: pairs are counted, not offsets.
    layers = ((40, 19, 5), (19, 10, 3), (10, 5, 3))
    pairs = [sum(0 <= 2 * i + k - 1 < n for i in range(m) for k in range(size)) for n, m, size in layers]
    measured = cost(recipe("cnn", SIGNAL).model(SIGNAL), x)
    assert measured.flops == 2 * (pairs[0] * 25 + (pairs[1] + pairs[2]) * 25 * 25 + 125 * 10)
    assert measured.parameters == 5_210 and list(measured.kernels.values()) == ["conv"] * 3
    rows = 2 * 39 + 40  # the edges, and the nodes themselves
    found = recipe("gnn", SIGNAL)
    width, depth = found.width, len(found.model(SIGNAL).blocks)
    assert cost(found.model(SIGNAL), x).flops == 2 * (rows * (width + (depth - 1) * width**2) + width * 10)


def test_the_cost_of_a_transformer_by_hand():
    found = recipe("transformer", SIGNAL)
    made = found.model(SIGNAL)
    network = made[1]
    tokens, width, depth = len(network.position.weight), found.width, len(network.blocks)
    attention = 2 * (4 * tokens * width**2 + 2 * tokens**2 * width)
    channel_mlp = 2 * 2 * tokens * width * 2 * width
    embedding = 2 * tokens * network.tokens.projection.weight.numel()
    expected = embedding + depth * (attention + channel_mlp) + 2 * width * 10
    assert cost(made, SIGNAL.x_train).flops == expected


def test_published_figures_are_of_known_models():
    assert all(set(figures) <= set(MODELS) for both in PUBLISHED.values() for figures in both.values())
