"""What a core would pass by is refused at the door; what it cannot follow afterwards is an error, not a number."""

from __future__ import annotations

import copy
import inspect
import threading

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn
from torch.nn.utils import parametrizations, prune

from mpnn.interop import convert, from_layer, revert, swap
from mpnn.neighbours import Graph, Window

EDGES = torch.tensor([[0, 1, 2, 3, 3, 0], [1, 2, 3, 0, 2, 0]])


def encoder(**options) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, **options)


def gin() -> pyg.GINConv:
    return pyg.GINConv(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()))


def wrapped(layer: nn.Module) -> nn.Module:
    layer.forward = lambda *a, **k: type(layer).forward(layer, *a, **k)
    return layer


def pruned(layer: nn.Module) -> nn.Module:
    prune.l1_unstructured(layer.lin, "weight", 0.5)
    return layer


def hooked(layer: nn.Module) -> nn.Module:
    layer.lin.register_forward_hook(lambda m, args, y: y * 0)
    return layer


def frozen(layer: nn.Module) -> nn.Module:
    layer.nn[1].eval()
    return layer


def named(layer: nn.Module) -> nn.Module:
    layer.core = nn.Linear(2, 2)
    return layer


REFUSED = {
    "forward on the object": (lambda: wrapped(nn.Conv1d(2, 2, 3)), "its forward was replaced"),
    "pruned part": (lambda: pruned(pyg.GCNConv(8, 8)), "lin has hooks, a parametrisation or another forward"),
    "hooked part": (lambda: hooked(pyg.GCNConv(8, 8)), "lin has hooks"),
    "frozen part": (lambda: frozen(gin()), r"nn.1 is in another mode, training=False"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_core_would_pass_by_is_refused(name: str) -> None:
    make, says = REFUSED[name]
    layer = make()
    report = convert(layer)
    assert [row.left is None for row in report.rows] == [False] and not hasattr(layer, "core")
    with pytest.raises(ValueError, match=says):
        from_layer(make())
    assert says.split(",")[0].split(" has ")[0].replace("\\", "") in report.rows[0].left


def test_a_part_of_the_name_core_is_kept() -> None:
    layer = named(nn.Conv1d(2, 2, 3))
    assert "'core' of its own" in convert(layer).rows[0].left and isinstance(layer.core, nn.Linear)


def tied() -> nn.MultiheadAttention:
    layer = nn.MultiheadAttention(4, 2, kdim=3, vdim=3, batch_first=True)
    layer.v_proj_weight = layer.k_proj_weight
    return layer


def test_tied_parameters_are_not_made_two() -> None:
    with pytest.raises(ValueError, match=r"one tensor for weight.key.weight and weight.value.weight.*convert\(model\)"):
        from_layer(tied())
    layer, core = tied(), copy.deepcopy(tied())
    assert core.v_proj_weight is core.k_proj_weight
    core.load_state_dict(layer.state_dict())
    convert(core)
    q, k = torch.randn(2, 5, 4), torch.randn(2, 3, 3)
    for one in (layer, core):
        one(q, k, k)[0].square().sum().backward()
    torch.testing.assert_close(core.k_proj_weight.grad, layer.k_proj_weight.grad)


def test_parameters_of_several_dtypes_are_not_cast() -> None:
    layer = encoder()
    layer.norm1.double()
    with pytest.raises(ValueError, match=r"one dtype, got .* of float32, norm1.bias of float64; cast the layer"):
        from_layer(layer)
    assert from_layer(layer.double()).norm1.weight.dtype == torch.float64


def test_hooks_of_the_layer_itself_do_not_come_along() -> None:
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(lambda m, args, y: y * 0)
    with pytest.raises(ValueError, match="it has forward hooks"):
        from_layer(layer)


CHANGES = {
    "stride": (lambda: nn.Conv1d(2, 2, 3), lambda m: setattr(m, "stride", (2,)), "another stride"),
    "no bias": (lambda: nn.Conv1d(2, 2, 3), lambda m: setattr(m, "bias", None), "another bias"),
    "another norm": (encoder, lambda m: setattr(m, "norm1", nn.Identity()), "another norm1"),
    "eps": (encoder, lambda m: setattr(m.norm1, "eps", 0.5), "in its LayerNorm .* another eps"),
    "pruned part": (encoder, lambda m: prune.identity(m.linear1, "bias"), "in its Linear"),
    "hooked part": (encoder, lambda m: m.linear1.register_forward_hook(lambda *a: None), "in its Linear"),
    "weight norm of a part": (encoder, lambda m: parametrizations.weight_norm(m.linear1), "in its Linear"),
    "order of the norms": (encoder, lambda m: setattr(m, "norm_first", True), "another norm_first"),
    "activation": (gin, lambda m: m.nn.__setitem__(2, nn.Tanh()), "in its Sequential"),
    "loops": (lambda: pyg.GCNConv(8, 8), lambda m: setattr(m, "add_self_loops", False), "another add_self_loops"),
}


@pytest.mark.parametrize("copied", [False, True], ids=["itself", "copy"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_the_core_cannot_follow_is_an_error(name: str, copied: bool) -> None:
    make, change, says = CHANGES[name]
    layer = make()
    convert(layer)
    layer = copy.deepcopy(layer) if copied else layer
    given = {nn.Conv1d: (torch.randn(2, 2, 5),), nn.TransformerEncoderLayer: (torch.randn(2, 3, 8),)}
    given = given.get(layer.original, (torch.randn(4, 8), EDGES))
    layer(*given)
    change(layer)
    with pytest.raises(RuntimeError, match=rf"expected {layer.original.__name__}.*{says}"):
        layer(*given)


def test_weights_dropout_and_modes_may_change() -> None:
    one = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    two = copy.deepcopy(one)
    convert(two)
    x = torch.randn(2, 3, 8)
    for layer in (one, two):
        layer.train()
        layer.dropout1.p = layer.dropout2.p = layer.dropout.p = layer.self_attn.dropout = 0.0
        layer.linear1.weight = nn.Parameter(torch.ones(16, 8))
        layer.norm1.weight.data.mul_(2)
        layer.register_forward_hook(lambda m, args, y: 2 * y)
    assert torch.allclose(one(x), two(x), atol=1e-6)


def test_a_parametrised_drop_in_is_not_reverted_by_halves() -> None:
    layer = nn.Conv2d(1, 2, 3)
    convert(layer)
    parametrizations.weight_norm(layer)
    y = layer(torch.ones(1, 1, 4, 4))
    with pytest.raises(ValueError, match="remove that first"):
        revert(layer)
    assert torch.equal(layer(torch.ones(1, 1, 4, 4)), y)


def test_an_example_that_does_not_fit_leaves_the_model_as_it_was() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3))
    with pytest.raises(ValueError, match="expected"):
        convert(model, example=torch.ones(1, 3, 5, 5))
    assert type(model[0]) is nn.Conv2d and not hasattr(model[0], "core")


def test_the_signature_is_the_original_s() -> None:
    layer = nn.MultiheadAttention(4, 2)
    before = inspect.signature(layer.forward)
    convert(layer)
    assert inspect.signature(layer.forward) == before


def test_threads_share_a_converted_layer() -> None:
    layer, x = encoder().eval(), torch.randn(2, 3, 8)
    expected = layer(x).detach()
    convert(layer)
    wrong: list[object] = []

    def serve() -> None:
        for _ in range(30):
            with torch.no_grad():
                if not torch.allclose(layer(x), expected, atol=1e-6):
                    wrong.append("another value")

    threads = [threading.Thread(target=serve) for _ in range(4)]
    before, threading.excepthook = threading.excepthook, lambda args: wrong.append(args.exc_value)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        threading.excepthook = before
    assert wrong == []


def test_who_looks_into_a_swapped_convolution_of_pyg_is_told() -> None:
    layer, x = pyg.GATConv(8, 4, add_self_loops=False), torch.randn(4, 8)
    convert(layer)
    layer.register_propagate_forward_hook(lambda *args: None)
    layer(x, EDGES)
    swap(layer, neighbours=Graph(self_loops="replace"))
    with pytest.raises(RuntimeError, match="does not know the rule"):
        layer(x, EDGES)


def test_swap_says_where_there_is_nothing_to_change() -> None:
    model = nn.Sequential(nn.Conv1d(2, 2, 3))
    with pytest.raises(ValueError, match=r"convert\(model\) first"):
        swap(model, neighbours=Window(1))
    convert(model)
    with pytest.raises(ValueError, match="got 0: no attention among them"):
        swap(model, neighbours=Window(1))
    with pytest.raises(ValueError, match="where chose none"):
        swap(model, neighbours=Window(1), where=lambda name, layer: False)
    with pytest.raises(TypeError, match="expected where to be names"):
        swap(model, neighbours=Window(1), where=0)  # type: ignore[arg-type]


def test_two_names_that_differ_by_a_part_core_are_two_layers() -> None:
    model = nn.ModuleDict(
        {"core": nn.ModuleDict({"attn": nn.MultiheadAttention(4, 2)}), "attn": nn.MultiheadAttention(4, 2)}
    )
    convert(model)
    assert swap(model, neighbours=Window(1)) == ["core.attn", "attn"]
