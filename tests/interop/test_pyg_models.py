"""PyG's models, and PyG as people use it, before and after conversion: loaders, heterogeneous graphs, compilers."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.explain import AttentionExplainer, Explainer, GNNExplainer
from torch_geometric.loader import DataLoader
from torch_geometric.nn.models import GAT, GCN, GIN, GraphSAGE

from mpnn.interop import convert, revert
from mpnn.interop.drop_in import DropIn


class Stack(nn.Module):
    """Three GPS blocks with a read-out, as in PyG's example."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.convs = nn.ModuleList()
        for _ in range(3):
            net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
            self.convs.append(pyg.GPSConv(8, pyg.GINConv(net), heads=2))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        x = self.embed(x)
        for conv in self.convs:
            x = conv(x, edge_index, batch)
        return self.head(x)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "GCN": lambda: GCN(4, 8, 3, 3, norm="batch_norm"),
    "GraphSAGE": lambda: GraphSAGE(4, 8, 3, 3, jk="cat"),
    "GraphSAGE projected": lambda: GraphSAGE(4, 8, 2, 3, project=True, normalize=True, aggr="max"),
    "GAT": lambda: GAT(4, 8, 3, 3, heads=2, norm="layer_norm"),
    "GATv2": lambda: GAT(4, 8, 3, 3, heads=2, v2=True, residual=True),
    "GIN": lambda: GIN(4, 8, 3, 3, train_eps=True, norm="batch_norm"),
    "GPS": Stack,
}
INDEX = torch.tensor([[0, 1, 1, 2, 2, 3, 4, 5, 5, 0, 5], [1, 0, 2, 2, 3, 1, 4, 0, 3, 5, 0]])


def batch_of_two() -> Data:
    """Two graphs, of 6 and 4 nodes."""
    parts = [
        Data(x=torch.randn(6, 4).double(), edge_index=INDEX),
        Data(x=torch.randn(4, 4).double(), edge_index=INDEX[:, :4]),
    ]
    return Batch.from_data_list(parts)


def logits_and_gradients(model: nn.Module, data: Data) -> tuple[Tensor, list[Tensor]]:
    x = data.x.clone().requires_grad_()
    given = (data.batch,) if isinstance(model, Stack) else ()
    y = model(x, data.edge_index, *given)
    return y, list(torch.autograd.grad(y.square().sum(), [x, *model.parameters()]))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", MODELS)
def test_models_give_the_same_before_and_after(name: str, training: bool) -> None:
    model = MODELS[name]().double().train(training)
    ours, data = copy.deepcopy(model), batch_of_two()
    report = convert(ours, example=(data.x, data.edge_index))
    assert not report.left and all(row.kernel for row in report.converted)
    assert len(report.converted) == len(model.convs)  # type: ignore[arg-type]
    for found in (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours), ours):
        torch.testing.assert_close(
            logits_and_gradients(found, data), logits_and_gradients(copy.deepcopy(model), data), rtol=1e-10, atol=1e-10
        )
    logits_and_gradients(model, data)
    torch.testing.assert_close(ours.state_dict(), model.state_dict(), rtol=1e-10, atol=1e-10)  # running statistics too
    assert len(revert(ours)) == len(report.converted) and not any(isinstance(m, DropIn) for m in ours.modules())


def test_a_loader_trains_a_converted_model() -> None:
    model = GCN(4, 8, 2, 3).double()
    ours = copy.deepcopy(model)
    convert(ours)
    graphs = [Data(x=torch.randn(n, 4).double(), edge_index=INDEX % n) for n in (6, 4, 5, 3)]
    for each in (model, ours):
        optimiser = torch.optim.SGD(each.parameters(), 0.1)
        for data in DataLoader(graphs, batch_size=2):
            optimiser.zero_grad()
            each(data.x, data.edge_index).square().mean().backward()
            optimiser.step()
    torch.testing.assert_close(ours.state_dict(), model.state_dict(), rtol=1e-10, atol=1e-10)


def hetero() -> HeteroData:
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.randn(5, 4).double(), torch.randn(3, 4).double()
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 2, 0], [0, 0, 3, 4]])
    data["paper", "written_by", "author"].edge_index = torch.tensor([[0, 0, 3, 4], [0, 1, 2, 0]])
    data["paper", "cites", "paper"].edge_index = torch.tensor([[0, 1, 4], [1, 2, 4]])
    return data


def test_hetero_conv() -> None:
    data = hetero()
    conv = pyg.HeteroConv(
        {
            ("author", "writes", "paper"): pyg.SAGEConv((4, 4), 6),
            ("paper", "written_by", "author"): pyg.GATConv((4, 4), 6, add_self_loops=False),
            ("paper", "cites", "paper"): pyg.GCNConv(4, 6),
        }
    ).double()
    ours = copy.deepcopy(conv)
    assert len(convert(ours).converted) == 3
    torch.testing.assert_close(
        ours(data.x_dict, data.edge_index_dict), conv(data.x_dict, data.edge_index_dict), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("convert_first", [True, False])
@pytest.mark.parametrize("make", [lambda: GraphSAGE(4, 8, 2, 3), lambda: GAT((4, 4), 8, 2, 3, add_self_loops=False)])
def test_to_hetero(make: Callable[[], nn.Module], convert_first: bool) -> None:
    data, model = hetero(), make()
    ours = copy.deepcopy(model)
    if convert_first:
        convert(ours)
    theirs, ours = (pyg.to_hetero(m, data.metadata()).double() for m in (model, ours))
    if not convert_first:
        convert(ours)
    ours.load_state_dict(theirs.state_dict())
    assert sum(isinstance(m, DropIn) for m in ours.modules()) == 6
    torch.testing.assert_close(
        ours(data.x_dict, data.edge_index_dict), theirs(data.x_dict, data.edge_index_dict), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("name", ["GCN", "GAT", "GIN"])
def test_compiled_and_exported(name: str) -> None:
    model = {"GCN": pyg.GCNConv(4, 5), "GAT": pyg.GATConv(4, 5, heads=2), "GIN": pyg.GINConv(nn.Linear(4, 5))}[
        name
    ].eval()
    x = torch.randn(6, 4)
    expected = model(x, INDEX)
    convert(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, INDEX), expected)
    exported = torch.export.export(model, (x, INDEX)).module()
    torch.testing.assert_close(exported(x, INDEX), expected)


@pytest.mark.parametrize("name", ["GCN", "GAT"])
def test_explainers_of_a_converted_model_say_the_same(name: str) -> None:
    model, x, found = MODELS[name]().eval(), torch.randn(6, 4), []
    ours = copy.deepcopy(model)
    convert(ours)
    config = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
    algorithms = [lambda: GNNExplainer(epochs=4)] + [AttentionExplainer] * (name == "GAT")
    for algorithm in algorithms:
        for each in (model, ours):
            torch.manual_seed(0)
            explainer = Explainer(each, algorithm(), "model", config, edge_mask_type="object")
            found.append(explainer(x, INDEX, index=1).edge_mask)
    for one, other in zip(found[::2], found[1::2], strict=True):
        assert one.any()
        torch.testing.assert_close(one, other)


def test_graphs_that_share_their_edges_in_one_tensor() -> None:
    x = torch.randn(2, 6, 4)
    for layer in (pyg.GCNConv(4, 5), pyg.SAGEConv(4, 5), pyg.GINConv(nn.Linear(4, 5)), pyg.TAGConv(4, 5, K=2)):
        expected = layer(x, INDEX)
        convert(layer)
        torch.testing.assert_close(layer(x, INDEX), expected)


def test_summary_counts_the_layers_own_parameters_once() -> None:
    pytest.importorskip("tabulate", reason="PyG prints its summary with tabulate")
    model, x = GCN(4, 8, 2, 3), torch.randn(6, 4)
    convert(model)
    rows = [
        [cell.strip() for cell in line.split("|")] for line in pyg.summary(model, x, INDEX, max_depth=2).splitlines()
    ]
    counted = {row[1].strip("─├└│ "): row[-2] for row in rows if len(row) > 3}
    assert counted["GCN"] == "67" and counted["(0)GCNConv"] == "40" and counted["(1)GCNConv"] == "27"
