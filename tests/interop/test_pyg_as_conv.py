"""as_conv: our layers in PyG's containers, transforms and explainers."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.explain import AttentionExplainer, Explainer, GNNExplainer
from torch_geometric.loader import DataLoader

from mpnn import MessagePassing
from mpnn.interop import from_layer
from mpnn.interop.pyg import Conv, as_conv
from mpnn.neighbours import AllTokens, Graph
from mpnn.weights import AdditiveScore, EdgeLearned, EdgeMLP, QKSoftmax, SharedKernel

INDEX = torch.tensor([[0, 1, 1, 2, 2, 2, 3, 0, 5, 5, 4], [1, 0, 2, 2, 2, 3, 1, 5, 0, 3, 4]])  # 2 has two loops


def gcn(width: int = 4, out: int = 6) -> MessagePassing:
    return MessagePassing(Graph(self_loops="add"), SharedKernel(width, out, normalise="symmetric"))


def gat(width: int = 4, out: int = 6) -> MessagePassing:
    rule = EdgeLearned(width, out, AdditiveScore(out, heads=2), heads=2, normalise="softmax")
    return MessagePassing(Graph(self_loops="replace"), rule)


RULES: dict[str, tuple[Callable[[], MessagePassing], Callable[[], dict[str, Any]]]] = {
    "gcn": (gcn, dict),
    "gcn weighted": (gcn, lambda: {"edge_weight": torch.rand(11).double()}),
    "gat": (gat, dict),
    "mean": (lambda: MessagePassing(Graph(), SharedKernel(4, 6, reduce="mean", root=True)), dict),
    "max": (lambda: MessagePassing(Graph(), SharedKernel(4, 6, fixed=True, reduce="max", output=True)), dict),
    "groups": (lambda: MessagePassing(Graph(), SharedKernel(4, 6, groups=2)), dict),
    "relations": (
        lambda: MessagePassing(Graph(relations=3), SharedKernel(4, 6, normalise="relation")),
        lambda: {"edge_type": torch.arange(11) % 3},
    ),
    "network": (
        lambda: MessagePassing(Graph(), EdgeLearned(4, 6, EdgeMLP(2, 24))),
        lambda: {"edge_attr": torch.randn(11, 2).double()},
    ),
    "transformer": (
        lambda: MessagePassing(Graph(), QKSoftmax(4, 2, out_channels=6, edge_channels=2, root=True, kv_heads=1)),
        lambda: {"edge_attr": torch.randn(11, 2).double()},
    ),
    "points": (
        lambda: from_layer(pyg.PointTransformerConv(4, 6)), lambda: {"coordinates": torch.randn(6, 3).double()},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_edge_by_edge_equals_the_kernels(name: str) -> None:
    make, data = RULES[name]
    conv, given = as_conv(make()).double(), data()
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    found = []
    for looked_into in (False, True):
        hooks = [conv.register_message_forward_hook(lambda *_: None)] if looked_into else []
        y = conv(x, INDEX, **given)
        found.append((y, torch.autograd.grad(y.square().sum(), [x, *conv.parameters()])))
        for hook in hooks:
            hook.remove()
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found[0][0], conv.layer(x, INDEX, **given), rtol=0, atol=0)


@pytest.mark.parametrize("name", RULES)
def test_an_edge_mask_of_one_changes_nothing_and_of_zero_removes_the_message(name: str) -> None:
    make, data = RULES[name]
    conv, given, x = as_conv(make()).double(), data(), torch.randn(6, 4).double()
    conv.explain, conv._apply_sigmoid, conv._loop_mask = True, False, INDEX[0] != INDEX[1]
    conv._edge_mask = torch.ones(11).double()
    torch.testing.assert_close(conv(x, INDEX, **given), conv.layer(x, INDEX, **given), rtol=1e-10, atol=1e-10)
    conv._edge_mask = torch.ones(11).double().index_fill(0, torch.tensor([6]), 0.0)  # 3 → 1
    masked = conv(x, INDEX, **given)
    changed = (masked - conv.layer(x, INDEX, **given)).abs().sum(-1) > 1e-9
    assert not changed[[0, 2, 3, 4, 5]].any() and (changed[1] or name == "max")
    conv._edge_mask = None
    with pytest.raises(ValueError, match="expected an edge mask"):
        conv(x, INDEX, **given)


@pytest.mark.parametrize("name", RULES)
def test_leading_dimensions_edge_by_edge(name: str) -> None:
    make, data = RULES[name]
    conv, given, x = as_conv(make()).double(), data(), torch.randn(2, 6, 4).double()
    if "coordinates" in given:
        given["coordinates"] = given["coordinates"].expand(2, -1, -1)
    expected = conv(x, INDEX, **given)
    conv.register_message_forward_hook(lambda *_: None)
    torch.testing.assert_close(conv(x, INDEX, **given), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("step", ["edge_update", "message_and_aggregate"])
def test_a_hook_that_would_never_run_is_refused(step: str) -> None:
    for when in ("forward_pre", "forward"):
        conv = as_conv(gcn())
        hook = getattr(conv, f"register_{step}_{when}_hook")(lambda *_: None)
        with pytest.raises(ValueError, match=f"a hook of {step} would never run"):
            conv(torch.randn(6, 4), INDEX)
        hook.remove()
        conv(torch.randn(6, 4), INDEX)
    with pytest.raises(NotImplementedError, match="as_conv has no edge_update"):
        conv.edge_updater(INDEX)


def test_masks_mean_what_pygs_mean() -> None:
    layer = pyg.GATConv(4, 3, heads=2).double().eval()
    ours, x = as_conv(from_layer(layer)), torch.randn(6, 4).double()
    for conv in (layer, ours):
        conv.explain, conv._edge_mask = True, torch.linspace(-2, 2, 11).double()
        conv._loop_mask = INDEX[0] != INDEX[1]
    torch.testing.assert_close(ours(x, INDEX), layer(x, INDEX), rtol=1e-10, atol=1e-10)


def model(make: Callable[..., MessagePassing]) -> nn.Module:
    return pyg.Sequential(
        "x, edge_index",
        [(as_conv(make(4, 8)), "x, edge_index -> x"), nn.ReLU(), (as_conv(make(8, 4)), "x, edge_index -> x")],
    )


CONFIG = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}


def test_gnn_explainer() -> None:
    net = model(gcn)
    explainer = Explainer(
        net, GNNExplainer(epochs=5), explanation_type="model", model_config=CONFIG, edge_mask_type="object",
        node_mask_type="attributes",
    )  # fmt: skip
    x = torch.randn(6, 4)
    before = net(x, INDEX)
    explanation = explainer(x, INDEX, index=1)
    assert explanation.edge_mask.shape == (11,) and explanation.edge_mask.any()
    assert explanation.validate()
    torch.testing.assert_close(net(x, INDEX), before)


def test_attention_explainer_reads_weights_at_the_callers_edges() -> None:
    conv = as_conv(gat(4, 4))
    explainer = Explainer(
        conv, AttentionExplainer("mean"), explanation_type="model", model_config=CONFIG | {"task_level": "edge"},
        edge_mask_type="object",
    )  # fmt: skip
    x = torch.randn(6, 4)
    explanation = explainer(x, INDEX)
    _, edges = conv.layer(x, INDEX, return_weights=True)
    expected = torch.zeros(11)
    given = edges.index >= 0
    expected[edges.index[given]] = edges.weight.mean(-1)[given].detach()
    torch.testing.assert_close(explanation.edge_mask, expected)
    with pytest.raises(ValueError, match="Could not collect any attention coefficients"):
        Explainer(
            as_conv(gcn()), AttentionExplainer(), explanation_type="model", model_config=CONFIG, edge_mask_type="object"
        )(x, INDEX)


def test_returned_attention_is_pygs() -> None:
    layer = pyg.GATConv(4, 3, heads=2).double().eval()
    x = torch.randn(6, 4).double()
    ours, theirs = (c(x, INDEX, return_attention_weights=True) for c in (as_conv(from_layer(layer)), layer))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    with pytest.raises(ValueError, match="expected heads for return_attention_weights"):
        as_conv(gcn())(x.float(), INDEX, return_attention_weights=True)


def test_in_containers_and_loaders() -> None:
    x = torch.randn(6, 4)
    net = model(gat)
    torch.testing.assert_close(net(x, EdgeIndex(INDEX, sparse_size=(6, 6))), net(x, INDEX))
    conv = as_conv(gcn(4, 4))
    dense = torch.zeros(6, 6).index_put((INDEX[1], INDEX[0]), torch.ones(11), accumulate=True)
    matrix = dense.to_sparse_coo().coalesce()
    torch.testing.assert_close(conv(x, matrix), conv(x, matrix.indices().flip(0), edge_weight=matrix.values()))
    block = pyg.GPSConv(4, conv, heads=2, norm=None).eval()
    direct = pyg.GPSConv(4, pyg.GCNConv(4, 4), heads=2, norm=None).eval()
    state = block.state_dict()
    state["conv.lin.weight"] = state.pop("conv.layer.weight.weight")[0]
    state["conv.bias"] = state.pop("conv.layer.weight.bias")
    direct.load_state_dict(state)
    torch.testing.assert_close(block(x, INDEX[:, [0, 1, 2, 6]]), direct(x, INDEX[:, [0, 1, 2, 6]]))
    data = Data(x=x, edge_index=INDEX)
    for batch in DataLoader([data, data], batch_size=2):
        torch.testing.assert_close(net(batch.x, batch.edge_index)[6:], net(x, INDEX))
    twin = pickle.loads(pickle.dumps(conv))
    assert isinstance(twin, Conv) and isinstance(twin, pyg.MessagePassing)
    torch.testing.assert_close(twin(x, INDEX), conv(x, INDEX))
    before = conv.layer.weight.weight.clone()
    conv.reset_parameters()
    assert not torch.equal(before, conv.layer.weight.weight)


def hetero() -> HeteroData:
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.randn(5, 4), torch.randn(3, 4)
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 2, 0], [0, 0, 3, 4]])
    data["paper", "written_by", "author"].edge_index = torch.tensor([[0, 0, 3, 4], [0, 1, 2, 0]])
    return data


def sage(width: int = 4, out: int = 6) -> MessagePassing:
    return MessagePassing(Graph(), SharedKernel(width, out, reduce="mean", root=True))


class Two(nn.Module):
    """Two convolutions, as to_hetero wants them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = as_conv(sage(4, 8)), as_conv(sage(8, 3))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


def test_heterogeneous_graphs() -> None:
    data = hetero()
    layers = {kind: sage() for kind in data.edge_types}
    found = pyg.HeteroConv({kind: as_conv(layer) for kind, layer in layers.items()})(data.x_dict, data.edge_index_dict)
    kind = ("author", "writes", "paper")
    expected = layers[kind]((data["author"].x, data["paper"].x), data[kind].edge_index)
    torch.testing.assert_close(found["paper"], expected)
    net = pyg.to_hetero(Two(), data.metadata())
    assert net(data.x_dict, data.edge_index_dict)["paper"].shape == (5, 3)
    assert sum(isinstance(m, Conv) for m in net.modules()) == 4


def test_targets_without_features_and_sizes() -> None:
    conv = as_conv(MessagePassing(Graph(), SharedKernel(4, 6)))
    x, index = torch.randn(6, 4), torch.tensor([[0, 5], [1, 2]])
    torch.testing.assert_close(conv((x, None), index, size=(6, 3)), conv.layer((x, torch.zeros(3, 4)), index))


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (nn.Linear(2, 2), "expected layer to be"),
        (MessagePassing(AllTokens(), QKSoftmax(4, 2)), "expected a layer over Graph"),
        (MessagePassing(Graph(INDEX, 6), SharedKernel(4, 6)), "expected a layer over Graph"),
    ],
)  # fmt: skip
def test_refused(layer: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        as_conv(layer)


def test_deepcopied_layers_do_not_share() -> None:
    conv = as_conv(gcn())
    twin = copy.deepcopy(conv)
    with torch.no_grad():
        twin.layer.weight.weight.zero_()
    assert conv.layer.weight.weight.any()
