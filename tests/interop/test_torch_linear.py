"""nn.Linear as message passing, on the channels of each token or with neurons as tokens; from_layer and to_layer."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from helpers.bridged import EXACT, assert_bits, assert_drop_in
from mpnn import MessagePassing, trace_kernels
from mpnn.interop import convert, from_layer, to_layer
from mpnn.neighbours import AllTokens, Full, Graph, Window
from mpnn.weights import QKSoftmax, SharedKernel, Static


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(4,), (5, 4), (2, 5, 4), (2, 3, 5, 4), (0, 4)])
def test_the_drop_in(shape: tuple[int, ...], bias: bool) -> None:
    twin = assert_drop_in(nn.Linear(4, 3, bias=bias), lambda m, x: m(x), [torch.randn(shape, dtype=torch.float64)])
    with trace_kernels(twin) as kernels:
        twin(torch.randn(shape, dtype=torch.float64))
    assert kernels == {"core": "linear"}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("units", [True, False])
def test_both_ways(units: bool, bias: bool) -> None:
    layer = nn.Linear(4, 3, bias=bias).double().eval()
    layer.weight.requires_grad_(False)
    core = from_layer(layer, units=units)
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    y = core(x[..., None]).squeeze(-1) if units else core(x)
    torch.testing.assert_close(y, layer(x), **EXACT)
    assert isinstance(core.neighbours, Full if units else Window)
    assert_bits(layer, to_layer(core))


@pytest.mark.parametrize("units", [True, False])
def test_shared_parameters(units: bool) -> None:
    layer = nn.Linear(4, 3)
    core = from_layer(layer, share=True, units=units)
    assert core.weight.weight.data_ptr() == layer.weight.data_ptr()
    assert units or core.weight.bias is layer.bias  # the same shape: the same parameter
    x = torch.randn(5, 4)
    torch.optim.SGD(core.parameters(), lr=0.5).zero_grad()
    y = core(x[..., None]).squeeze(-1) if units else core(x)
    y.sum().backward()
    torch.optim.SGD(core.parameters(), lr=0.5).step()
    y = core(x[..., None]).squeeze(-1) if units else core(x)
    torch.testing.assert_close(layer(x), y)
    with torch.no_grad():
        layer.weight.zero_()
    assert not core.weight.weight.any()
    copied = from_layer(layer, units=units)
    with torch.no_grad():
        layer.weight.fill_(1)
    assert not copied.weight.weight.any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtype_and_state_are_kept(dtype: torch.dtype) -> None:
    for training in (True, False):
        layer = nn.Linear(4, 3, dtype=dtype).train(training)
        core = from_layer(layer)
        assert {p.dtype for p in core.parameters()} == {dtype} and core.training is training
        assert_bits(layer, to_layer(core))


def test_no_random_number_is_drawn() -> None:
    layers = [nn.Linear(4, 3), nn.Conv2d(2, 2, 3), nn.MultiheadAttention(4, 2), nn.TransformerEncoderLayer(4, 2)]
    before = torch.get_rng_state()
    for layer in layers:
        to_layer(from_layer(layer))
        convert(copy.deepcopy(layer))
    assert torch.equal(torch.get_rng_state(), before)


def test_hand_built_layers() -> None:
    x = torch.randn(2, 5, 4)
    pointwise = MessagePassing(Window(0), SharedKernel(4, 3))
    torch.testing.assert_close(to_layer(pointwise)(x), pointwise(x))
    dense = MessagePassing(Full(4, 3), Static(bias=False))
    torch.testing.assert_close(to_layer(dense)(x), dense(x[..., None]).squeeze(-1))
    assert type(to_layer(pointwise, nn.Linear)) is nn.Linear


class Gated(nn.Linear):
    def forward(self, input: Any) -> Any:
        return super().forward(input).sigmoid()


WRONG: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (nn.LSTM(3, 3), {}, ValueError, "LSTM has no configuration here; known are Linear, Conv1d, .*MultiheadAttention"),
    (Gated(3, 3), {}, ValueError, "Gated has no configuration here"),
    (nn.ConvTranspose2d(1, 1, 3), {}, ValueError, "ConvTranspose2d: a transposed convolution is out of scope"),
    (nn.Linear(3, 3), {"unit": True}, TypeError, "unexpected argument 'unit'; did you mean 'units'?"),
    (nn.Linear(3, 3), {"size": 4}, TypeError, "unexpected argument 'size'.*Linear takes units"),
    (nn.Conv1d(3, 3, 1), {"sise": 4}, TypeError, "unexpected argument 'sise'; did you mean 'size'?"),
    (nn.MultiheadAttention(4, 2), {"size": 4}, TypeError, "MultiheadAttention takes none"),
    (nn.Linear, {}, TypeError, r"expected layer to be a layer, .*, got the class Linear; write Linear\(…\)"),
    (lambda x: x, {}, TypeError, "expected layer to be a layer, .*, got function"),
]


@pytest.mark.parametrize(("layer", "structure", "error", "words"), WRONG)
def test_what_is_no_layer_of_ours(layer: Any, structure: dict, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        from_layer(layer, **structure)


def test_a_converted_layer_is_reverted_first() -> None:
    layer = nn.Linear(3, 3)
    convert(layer, "linear")
    with pytest.raises(ValueError, match="Linear is converted already; revert"):
        from_layer(layer)


def test_what_is_not_linear_is_refused_by_name() -> None:
    geometric = pytest.importorskip("torch_geometric.nn")
    for layer in (geometric.EdgeConv(nn.Linear(6, 3)), geometric.FiLMConv(3, 3)):
        with pytest.raises(ValueError, match=f"{type(layer).__name__}: .*not linear in x_j"):
            from_layer(layer)


@pytest.mark.parametrize(
    ("core", "kind", "words"),
    [
        (MessagePassing(Window(0), SharedKernel(4, 4, groups=2)), None, "weight.groups=1 instead of 2"),
        (MessagePassing(Window(0), SharedKernel(4, 4, root=True)), None, "weight.root"),
        (MessagePassing(Window(1), SharedKernel(4, 4)), None, r"neighbours.left=0 instead of 1"),
        (MessagePassing(Full(4), Static()), None, "own_targets"),
        (MessagePassing(Full(4, 3), Static(2, 2)), None, r"weight.weight=\(3, 1, 4, 1\) instead of \(3, 2, 4, 2\)"),
        (MessagePassing(Graph(), SharedKernel(4, 4)), nn.Linear, r"nn.Linear needs Full × Static or Window\(0\)"),
        (MessagePassing(AllTokens(max_tokens=4), Static(heads=1)), nn.Linear, "nn.Linear needs"),
        (MessagePassing(Window(0), SharedKernel(4, 4)), nn.LSTM, "LSTM is unknown; known are Linear"),
        (nn.Linear(3, 3), nn.Linear, "Linear: nn.Linear needs"),
    ],
)
def test_what_no_linear_computes(core: Any, kind: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"no layer computes this, got .*{words}"):
        to_layer(core, kind)


def test_extra_biases_are_refused_with_their_keys() -> None:
    """Case 4, for what was converted and for what was made: a bias that has no place is never dropped."""
    for layer in (nn.Linear(4, 4), nn.Conv1d(4, 4, 3), nn.MultiheadAttention(4, 2), nn.TransformerEncoderLayer(4, 2)):
        state = from_layer(layer).state_dict()
        bare = type(layer)(*{nn.Conv1d: (4, 4, 3), nn.Linear: (4, 4)}.get(type(layer), (4, 2)), bias=False)
        core = from_layer(bare)
        assert not [name for name in core.state_dict() if "bias" in name]
        extra = [name for name in state if "bias" in name]
        assert extra
        with pytest.raises(RuntimeError, match="Unexpected key") as refusal:
            core.load_state_dict(state)
        assert all(name in str(refusal.value) for name in extra)
        convert(bare, ("linear", "convolution", "attention"))
        with pytest.raises(RuntimeError, match="Unexpected key"):
            bare.load_state_dict(layer.state_dict())


SHORT = {
    "window": (
        MessagePassing(Window(2), QKSoftmax(4, 2)),
        "nn.MultiheadAttention needs AllTokens × QKSoftmax; TransformerConv",
    ),
    "built": (MessagePassing(Graph(torch.zeros(2, 3).long(), 3), SharedKernel(4, 4, root=True)), "edges at the call"),
    "three of four": (
        MessagePassing(Graph(self_loops="replace"), SharedKernel(4, 4, root=True)),
        "and 1 more; to_layer",
    ),
    "no core": (nn.Linear(2, 2), "to_layer takes one MessagePassing"),
}


@pytest.mark.parametrize("name", SHORT)
def test_a_refusal_names_what_comes_near_and_no_other(name: str) -> None:
    core, words = SHORT[name]
    with pytest.raises(ValueError, match="no layer computes this, got") as refused:
        to_layer(core)
    assert words in str(refused.value) and len(str(refused.value)) < 400


def test_a_container_is_told_of_convert() -> None:
    with pytest.raises(ValueError, match=r"Sequential has no configuration here; .*; convert\(model\) converts"):
        from_layer(nn.Sequential(nn.Linear(2, 2)))
