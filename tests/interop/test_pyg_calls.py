"""How PyG's convolutions are called: sparse matrices, EdgeIndex, returned attention, explainers; what is refused."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.nn.models.schnet import CFConv

from mpnn.interop import convert, from_layer, revert, swap, to_layer
from mpnn.neighbours import AllTokens

INDEX = torch.tensor(
    [[0, 1, 1, 2, 2, 3, 4, 5, 5, 0], [1, 0, 2, 2, 3, 1, 4, 0, 3, 5]]
)  # loops at 2 and 4, no duplicates
LOOPS = torch.tensor([[0, 1, 1, 1, 2, 2, 3, 2], [1, 1, 1, 0, 2, 2, 2, 2]])  # several loops at 1 and 2

TAKE_SPARSE: dict[str, Callable[[], nn.Module]] = {
    "GCN": lambda: pyg.GCNConv(4, 5),
    "GCN improved": lambda: pyg.GCNConv(4, 5, improved=True),
    "GCN plain": lambda: pyg.GCNConv(4, 5, normalize=False),
    "Graph": lambda: pyg.GraphConv(4, 5),
    "Graph mean": lambda: pyg.GraphConv(4, 5, aggr="mean"),
    "SAGE": lambda: pyg.SAGEConv(4, 5),
    "SAGE sum": lambda: pyg.SAGEConv(4, 5, aggr="sum"),
    "GIN": lambda: pyg.GINConv(nn.Linear(4, 5)),
    "SG": lambda: pyg.SGConv(4, 5, K=2),
    "TAG": lambda: pyg.TAGConv(4, 5, K=2),
    "LE": lambda: pyg.LEConv(4, 5),
    "GAT": lambda: pyg.GATConv(4, 5, heads=2),
    "GATv2": lambda: pyg.GATv2Conv(4, 5, heads=2),
    "Transformer": lambda: pyg.TransformerConv(4, 5, heads=2),
    "FeaSt": lambda: pyg.FeaStConv(4, 5, heads=2),
    "AGNN": lambda: pyg.AGNNConv(),
}
FORMS: dict[str, Callable[[Tensor], Any]] = {
    "csr": lambda a: a.to_sparse_csr(),
    "coo": lambda a: a.to_sparse_coo().coalesce(),
}


def tokens(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def pair(layer: nn.Module) -> tuple[nn.Module, nn.Module]:
    """A layer in float64, and its drop-in."""
    layer = layer.double().eval()
    ours = copy.deepcopy(layer)
    convert(ours)
    return layer, ours


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", TAKE_SPARSE)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # PyG makes sparse tensors of its own
@pytest.mark.filterwarnings("ignore:Converting sparse tensor to CSR")  # PyG on a matrix in coordinates
def test_a_sparse_matrix_of_targets_and_sources(name: str, form: str) -> None:
    layer, ours = pair(TAKE_SPARSE[name]())
    dense = torch.zeros(6, 6, dtype=torch.float64)
    dense[INDEX[1], INDEX[0]] = 1.0
    x, matrix = tokens(6, 4), FORMS[form](dense)
    torch.testing.assert_close(ours(x, matrix), layer(x, matrix), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", TAKE_SPARSE)
def test_edge_index_and_int32(name: str) -> None:
    layer, ours = pair(TAKE_SPARSE[name]())
    x = tokens(6, 4)
    expected = layer(x, INDEX)
    torch.testing.assert_close(ours(x, INDEX.int()), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(ours(x, EdgeIndex(INDEX, sparse_size=(6, 6))), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "make",
    [
        lambda: pyg.GATConv(4, 5, heads=2),
        lambda: pyg.GATConv(4, 5, heads=2, concat=False, add_self_loops=False),
        lambda: pyg.GATv2Conv(4, 5, heads=2),
        lambda: pyg.TransformerConv(4, 5, heads=2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("index", [INDEX, LOOPS], ids=["single", "several loops"])
def test_returned_attention(make: Callable[[], nn.Module], index: Tensor) -> None:
    layer, ours = pair(make())
    x = tokens(6, 4)
    y, (edges, weight) = ours(x, index, return_attention_weights=True)
    expected, (their_edges, their_weight) = layer(x, index, return_attention_weights=True)
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    assert torch.equal(edges, their_edges) and edges.dtype == their_edges.dtype
    torch.testing.assert_close(weight, their_weight, rtol=1e-10, atol=1e-10)
    with pytest.raises(ValueError, match="got a sparse matrix; pass its edges"):
        ours(x, torch.eye(6, dtype=torch.float64).to_sparse_coo(), return_attention_weights=True)


@pytest.mark.parametrize(
    "make", [lambda: pyg.GCNConv(4, 5), lambda: pyg.GCNConv(4, 5, improved=True), lambda: pyg.SGConv(4, 5)]
)
def test_of_several_loops_at_a_node_the_last_weighs(make: Callable[[], nn.Module]) -> None:
    layer, ours = pair(make())
    x, weight = tokens(6, 4), torch.rand(LOOPS.shape[1], dtype=torch.float64) + 0.5
    for given in ((), (weight,)):
        torch.testing.assert_close(ours(x, LOOPS, *given), layer(x, LOOPS, *given), rtol=1e-10, atol=1e-10)


def test_cheb_with_batches_and_eigenvalues() -> None:
    layer, ours = pair(pyg.ChebConv(4, 5, 3, normalization=None))
    x, batch = tokens(12, 4), torch.arange(2).repeat_interleave(6)
    index = torch.cat([INDEX, INDEX + 6], 1)
    for top in (3.0, torch.tensor([3.0, 2.5], dtype=torch.float64)):
        given = {"batch": batch, "lambda_max": top}
        torch.testing.assert_close(ours(x, index, **given), layer(x, index, **given), rtol=1e-10, atol=1e-10)


def test_supergat_goes_on_supervising_itself() -> None:
    layer = pyg.SuperGATConv(4, 5, heads=2, attention_type="MX", edge_sample_ratio=1.0).double()
    ours = copy.deepcopy(layer)
    convert(ours)
    x, negative = tokens(6, 4), torch.tensor([[0, 3], [4, 5]])
    assert ours.eval().get_attention_loss() == 0
    found = []
    for each in (ours.train(), layer.train()):
        each(x, INDEX, negative)
        loss = each.get_attention_loss()
        found.append((loss, *torch.autograd.grad(loss, [x, each.lin.weight])))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)
    ours(x, INDEX)  # samples its own
    assert ours.get_attention_loss().isfinite()


def test_state_dicts_load_both_ways_and_revert_gives_the_class_back() -> None:
    layer = pyg.GINConv(nn.Sequential(pyg.MLP([4, 6, 5], norm="batch_norm")), train_eps=True)
    ours = copy.deepcopy(layer)
    convert(ours)
    assert isinstance(ours, pyg.GINConv) and list(ours.state_dict()) == list(layer.state_dict())
    other = pyg.GINConv(nn.Sequential(pyg.MLP([4, 6, 5], norm="batch_norm")), train_eps=True)
    ours.load_state_dict(other.state_dict())
    layer.load_state_dict(ours.state_dict())
    x = torch.randn(6, 4)
    for _ in range(2):  # the running statistics are the layer's
        torch.testing.assert_close(ours.train()(x, INDEX), layer.train()(x, INDEX))
    torch.testing.assert_close(ours.eval()(x, INDEX), layer.eval()(x, INDEX))
    revert(ours)
    assert type(ours) is pyg.GINConv and not hasattr(ours, "core")
    torch.testing.assert_close(ours(x, INDEX), layer(x, INDEX), rtol=0, atol=0)


def test_an_explainer_sees_the_originals_messages() -> None:
    layer, ours = pair(pyg.GATConv(4, 5, heads=2))
    x, seen = tokens(6, 4), []
    for each in (layer, ours):
        each.explain = True
        each._edge_mask, each._loop_mask = torch.linspace(-1, 1, INDEX.shape[1]).double(), INDEX[0] != INDEX[1]
    torch.testing.assert_close(ours(x, INDEX), layer(x, INDEX), rtol=0, atol=0)
    assert not torch.allclose(ours(x, INDEX), from_layer(layer)(x, INDEX))
    ours.explain = None
    hook = ours.register_message_forward_hook(lambda module, given, out: seen.append(given[0]["alpha"]))
    ours(x, INDEX)
    hook.remove()
    ours(x, INDEX)
    assert len(seen) == 1


class Doubled(pyg.GCNConv):
    """A person's own, which computes something else."""

    def message(self, x_j: Tensor, edge_weight: Tensor) -> Tensor:
        return 2 * x_j


REFUSED: list[tuple[Callable[[], nn.Module], str]] = [
    (lambda: pyg.GCNConv(-1, 5), r"GCNConv: its lazy channels \(-1\) have no width yet"),
    (lambda: pyg.GCNConv(4, 5, flow="target_to_source"), "flow='target_to_source'.*flip the rows"),
    (lambda: pyg.GCNConv(4, 5, node_dim=1), "node_dim=1"),
    (lambda: pyg.GCNConv(4, 5, aggr="mean"), "aggr='mean'.*normalize=False"),
    (lambda: pyg.SAGEConv(4, 5, aggr="lstm"), "aggr='lstm'.*sum, mean, max"),
    (lambda: pyg.SAGEConv(4, 5, aggr=["mean", "max"]), "SAGEConv.aggr="),
    (lambda: pyg.GraphConv(4, 5, aggr="median"), "aggr='median'"),
    (lambda: pyg.GATConv(4, 5, aggr="mean"), "aggr='mean'.*reduces by sum"),
    (lambda: pyg.GATConv((4, 4), 5), r"add_self_loops=True, in_channels=\(source, target\)"),
    (lambda: pyg.GATConv(4, 5, edge_dim=2, fill_value="max"), "fill_value='max'"),
    (lambda: pyg.GATConv(4, 5, edge_dim=2, fill_value=torch.ones(2)), "fill_value=tensor"),
    (lambda: pyg.GATv2Conv(4, 5, edge_dim=2, fill_value="add"), "fill_value='add'"),
    (lambda: pyg.TransformerConv(4, 5, beta=True), "beta=True.*gate"),
    (lambda: pyg.ClusterGCNConv(4, 5, add_self_loops=False, diag_lambda=1.0), "add_self_loops=False, diag_lambda"),
    (lambda: pyg.RGCNConv(4, 5, 2, aggr="max"), "aggr='max'"),
    (lambda: pyg.GMMConv(4, 5, 2, 3, aggr="max"), "aggr='max'.*largest of sums"),
    (lambda: pyg.FeaStConv(4, 5, heads=2, aggr="max"), "aggr='max'"),
    (lambda: pyg.HypergraphConv(4, 5, use_attention=True), "use_attention=True"),
    (lambda: pyg.NNConv(4, 5, lambda e: e), "nn=...*expected an nn.Module"),
    (lambda: CFConv(4, 5, 3, lambda e: e, 1.0), "nn=...*expected an nn.Module"),
    (lambda: pyg.GPSConv(4, None, attn_type="performer"), "attn_type='performer'"),
    (lambda: pyg.GPSConv(4, pyg.GINEConv(nn.Linear(4, 4))), r"GPSConv\(conv=...\): GINEConv has no configuration"),
    (lambda: pyg.GPSConv(4, None, attn_kwargs={"add_zero_attn": True}), "attn_kwargs=...*add_zero_attn"),
    (lambda: pyg.RGATConv(4, 5, 2), "RGATConv: .*two families in one weight"),
    (lambda: pyg.EdgeConv(nn.Linear(8, 5)), "EdgeConv: .*not linear in x_j"),
    (lambda: pyg.FiLMConv(4, 5), "FiLMConv: .*not linear in x_j"),
    (lambda: pyg.GCNConv(4, 5, cached=True), r"GCNConv\(cached=True\): .*set layer.cached = False"),
    (lambda: pyg.SGConv(4, 5, cached=True), r"SGConv\(cached=True\): .* x and edges of the first call"),
    (lambda: Doubled(4, 5), "Doubled has no configuration here; known are"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "text"), REFUSED)
def test_refused_by_name(make: Callable[[], nn.Module], text: str) -> None:
    layer = make()
    with pytest.raises(ValueError, match=text):
        from_layer(layer)
    before = type(layer)
    report = convert(layer)
    assert type(layer) is before
    if before is not Doubled:
        assert report.left[0].layer == before.__name__


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda conv, x: conv((x, x.clone()), INDEX), "expected one node set for GCNConv"),
        (lambda conv, x: conv(x, INDEX + 5), "expected edge_index"),
        (lambda conv, x: pair(pyg.GATConv(4, 5))[1]((x, x[:3]), INDEX), "refused between two node sets"),
        (lambda conv, x: pair(pyg.GraphConv(4, 5))[1](x, INDEX, size=(6, 5)), r"expected size=\(6, 6\)"),
        (lambda conv, x: pair(pyg.GATConv(4, 5, edge_dim=2))[1](x, INDEX), "expected edge_attr"),
        (lambda conv, x: pair(pyg.GATv2Conv(4, 5))[1](x, INDEX, torch.ones(10, 2).double()), "would be ignored"),
    ],
)  # fmt: skip
def test_refused_at_the_call(call: Callable[[nn.Module, Tensor], Any], text: str) -> None:
    _, conv = pair(pyg.GCNConv(4, 5))
    with pytest.raises((ValueError, IndexError), match=text):
        call(conv, tokens(6, 4))


@pytest.mark.parametrize("name", TAKE_SPARSE)
def test_a_rule_that_makes_its_own_edges_is_called_without_any(name: str) -> None:
    """All tokens are the complete graph with its loops, which PyG's own layer is given."""
    layer, ours = pair(TAKE_SPARSE[name]())
    swap(ours, neighbours=AllTokens(), where=lambda *_: True)
    x = tokens(6, 4)
    complete = torch.cartesian_prod(torch.arange(6), torch.arange(6)).T
    torch.testing.assert_close(ours(x, None), layer(x, complete), rtol=1e-10, atol=1e-10)
    with pytest.raises(ValueError, match=r"edge_index would be ignored by AllTokens\(\).*pass edge_index=None"):
        ours(x, INDEX)


def test_lazy_layers_are_converted_after_a_first_forward() -> None:
    layer = pyg.GATConv(-1, 5, heads=2)
    x = torch.randn(6, 4)
    expected = layer.eval()(x, INDEX)
    assert convert(layer).converted
    torch.testing.assert_close(layer(x, INDEX), expected)


def test_a_core_that_never_was_a_layer_becomes_one_of_the_kind_that_is_asked_for() -> None:
    from mpnn import MessagePassing
    from mpnn.neighbours import Graph
    from mpnn.weights import SharedKernel

    core = MessagePassing(Graph(self_loops="add", loop_weight=2.0), SharedKernel(4, 5, normalise="symmetric"))
    layer = to_layer(core)
    assert type(layer) is pyg.GCNConv and layer.improved
    mean = MessagePassing(Graph(), SharedKernel(4, 5, reduce="mean", root=True))
    x = torch.randn(6, 4)
    for kind in (pyg.SAGEConv, pyg.GraphConv):
        torch.testing.assert_close(to_layer(mean, kind)(x, INDEX), mean(x, INDEX))
    with pytest.raises(ValueError, match="GATConv needs Graph × EdgeLearned"):
        to_layer(mean, pyg.GATConv)
    with pytest.raises(ValueError, match="ClusterGCNConv has"):
        to_layer(MessagePassing(Graph(), SharedKernel(4, 5, reduce="mean")), pyg.ClusterGCNConv)


def test_a_layer_of_torch_is_read_without_importing_pyg() -> None:
    program = """
import sys, torch, mpnn.interop
mpnn.interop.from_layer(torch.nn.Linear(2, 2))
mpnn.interop.convert(torch.nn.Sequential(torch.nn.Conv1d(2, 2, 3), torch.nn.ReLU()))
assert "torch_geometric" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).resolve().parents[2], check=True)
