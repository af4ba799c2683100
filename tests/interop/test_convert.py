"""Whole models: convert in place, what stays as it was, revert."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from helpers.bridged import EXACT, assert_same, differentiated
from helpers.converted import ALL, NAMES, Model, image, model
from mpnn import trace_kernels
from mpnn.interop import convert, from_layer, revert, swap
from mpnn.interop import drop_in as drop_in_module
from mpnn.interop.drop_in import DropIn
from mpnn.neighbours import Window


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kinds", [ALL, ("attention", "convolution", "graph"), ("attention",), "convolution", "linear"])
def test_a_model_computes_what_it_did(kinds: Any, training: bool) -> None:
    one = model().train(training)
    two = copy.deepcopy(one)
    convert(two, kinds)
    x = image()
    assert_same(*(differentiated(m, lambda m, x: m(x), [x]) for m in (one, two)))
    with torch.no_grad():
        torch.testing.assert_close(two(x), one(x), **EXACT)


def test_parents_come_before_children_and_shared_layers_once() -> None:
    net = model()
    report = convert(net, ALL)
    assert [row.name for row in report.converted] == [*NAMES, "head"] and not report.left
    assert net.twice[0] is net.mix and isinstance(net.mix, DropIn)
    assert not isinstance(net.encoder.layers[0].linear1, DropIn)  # inside a layer that is one
    assert not convert(net, ALL).rows  # nothing is converted twice
    shared = model()
    assert [row.kernel for row in convert(shared, "convolution", example=image()).rows] == ["conv", "conv"]
    assert [row.name for row in convert(model(), "linear").converted] == [
        *(f"encoder.layers.{i}.linear{j}" for i in (0, 1) for j in (1, 2)),
        "head",
    ]


def test_the_report() -> None:
    net = nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.ConvTranspose1d(4, 4, 3), nn.MultiheadAttention(4, 2, add_zero_attn=True)
    )
    was = net[0].training
    text = str(convert(net[:2], example=torch.ones(1, 2, 6)))
    assert text.splitlines() == [
        "1 layer converted, 1 left as it was",
        "  0  Conv1d  convolution  conv",
        "  1  ConvTranspose1d left: ConvTranspose1d: a transposed convolution is out of scope",
    ]
    report = convert(net[2])
    assert "  (the model)  MultiheadAttention left: add_zero_attn=True" in str(report)
    assert net[0].training is was
    keywords = nn.Sequential(nn.Linear(2, 2))
    assert convert(keywords, "linear", example={"input": torch.ones(1, 2)}).rows[0].kernel == "linear"


@pytest.mark.parametrize(
    ("kinds", "error", "words"),
    [
        ("attentions", ValueError, "expected kinds to be one of .*got 'attentions'; did you mean 'attention'?"),
        (("graph", "conv"), ValueError, "got 'conv'"),
    ],
)
def test_unknown_kinds(kinds: Any, error: type[Exception], words: str) -> None:
    net = model()
    with pytest.raises(error, match=words):
        convert(net, kinds)
    with pytest.raises(TypeError, match="expected model to be a model, got the class"):
        convert(Model)  # type: ignore[arg-type]
    assert not any(isinstance(m, DropIn) for m in net.modules())


def test_a_failure_on_the_way_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    net = model()
    classes = [type(m) for m in net.modules()]
    prepare, seen = drop_in_module.prepare, []

    def failing(layer: nn.Module, bridge: Any) -> Any:
        seen.append(layer)
        if len(seen) == 4:
            raise RuntimeError("the fourth layer")
        return prepare(layer, bridge)

    monkeypatch.setattr(drop_in_module, "prepare", failing)
    with pytest.raises(RuntimeError, match="the fourth layer"):
        convert(net)
    assert [type(m) for m in net.modules()] == classes


def test_names_classes_and_state_stay() -> None:
    net = model()
    before = {name: (type(m).__name__, isinstance(m, nn.Conv2d)) for name, m in net.named_modules()}
    parameters, state = dict(net.named_parameters()), net.state_dict()
    convert(net, ALL)
    after = dict(net.named_modules())
    assert all(type(after[n]).__name__ == kind for n, (kind, _) in before.items())
    assert all(isinstance(after[n], nn.Conv2d) is conv for n, (_, conv) in before.items())
    assert list(net.state_dict()) == list(state)
    assert all(a is parameters[name] for name, a in net.named_parameters()) and len(parameters) == len(
        list(net.parameters())
    )


def test_checkpoints_load_both_ways() -> None:
    one, two, x = model(), model(), image()
    convert(two, ALL)
    for source, target in ((one, two), (two, one)):
        with torch.no_grad():
            for p in source.parameters():
                p.add_(torch.randn_like(p) / 3)
        target.load_state_dict(source.state_dict())
        torch.testing.assert_close(target(x), source(x), **EXACT)
    fresh = {name: t.clone() for name, t in model().state_dict().items()}
    for net in (one, two):
        net.load_state_dict(fresh, assign=True)  # other tensors take the parameters' places
        assert net.patch.weight.data_ptr() == fresh["patch.weight"].data_ptr()
    torch.testing.assert_close(two(x), one(x), **EXACT)


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_copies(how: str) -> None:
    net, x = model(), image()
    convert(net, ALL)
    swap(net, neighbours=Window(2), where="encoder")
    if how == "deepcopy":
        twin = copy.deepcopy(net)
    elif how == "pickle":
        twin = pickle.loads(pickle.dumps(net))
    else:
        file = io.BytesIO()
        torch.save(net, file)
        file.seek(0)
        twin = torch.load(file, weights_only=False)
    y = net(x)
    assert torch.equal(twin(x), y) and type(twin.patch) is type(net.patch)
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    assert torch.equal(twin(x), y)  # nothing is shared
    twin.load_state_dict(net.state_dict())
    assert torch.equal(twin(x), net(x))
    revert(twin)
    assert type(twin.patch) is nn.Conv2d and type(twin.pool) is nn.MultiheadAttention


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_an_optimiser_goes_on(momentum: float) -> None:
    one, x = model(), image()
    two = copy.deepcopy(one)
    nets = [one, two]
    optimisers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=momentum) for net in nets]
    for step in range(4):
        if step == 2:
            convert(two, ALL)  # in the middle, with its momentum
        for net, optimiser in zip(nets, optimisers, strict=True):
            optimiser.zero_grad()
            net(x).square().sum().backward()
            optimiser.step()
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(b, a, **EXACT)


def test_hooks_stay() -> None:
    net, seen = model(), []
    net.patch.register_forward_hook(lambda m, args, y: seen.append(("patch", y.shape)))
    net.pool.register_forward_pre_hook(lambda m, args: seen.append(("pool", len(args))))
    net.mix.register_full_backward_hook(lambda *_: seen.append(("mix", None)))
    net.encoder.layers[1].self_attn.register_forward_hook(lambda *_: seen.append(("inside", None)))
    report = convert(net)
    assert "self_attn has hooks" in report.left[0].left and report.left[0].name == "encoder.layers.1"
    assert "encoder.layers.1.self_attn" in [row.name for row in report.converted]
    net(image()).sum().backward()
    assert seen == [("patch", (2, 8, 4, 3)), ("inside", None), ("pool", 3), ("mix", None), ("mix", None)]


def test_dtype_and_mode_follow() -> None:
    net = Model()
    convert(net, ALL)
    x = image()
    with pytest.raises(TypeError, match=r"expected x of dtype torch.float32.*got torch.float64"):
        net(x)
    twin = copy.deepcopy(net)
    revert(twin)
    torch.testing.assert_close(net.double()(x), twin.double()(x), **EXACT)
    torch.testing.assert_close(net.to(torch.bfloat16)(x.bfloat16()), twin.bfloat16()(x.bfloat16()), rtol=0.1, atol=0.1)
    assert not net.eval().patch.core.training and net.train().patch.core.training
    assert net.to("meta").patch.weight.device.type == "meta"


def test_gradients_are_wanted_where_they_were() -> None:
    net = model()
    net.patch.requires_grad_(False)
    net.encoder.layers[0].linear1.weight.requires_grad_(False)
    convert(net, ALL)
    net(image()).sum().backward()
    without = {name for name, p in net.named_parameters() if p.grad is None}
    assert without == {"patch.weight", "patch.bias", "encoder.layers.0.linear1.weight"}


def test_functional_calls_and_parametrisations() -> None:
    net = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(12, 2)).double()
    twin = copy.deepcopy(net)
    convert(twin, ALL)
    x = torch.randn(2, 2, 6, dtype=torch.float64)
    other = {name: torch.randn_like(p) for name, p in net.named_parameters()}
    torch.testing.assert_close(*(torch.func.functional_call(m, other, (x,)) for m in (twin, net)), **EXACT)
    grads = [
        torch.func.grad(lambda p, m=m: torch.func.functional_call(m, p, (x,)).sin().sum())(other) for m in (twin, net)
    ]
    torch.testing.assert_close(*grads, **EXACT)
    each = [torch.func.vmap(lambda x, m=m: m(x[None]))(x) for m in (twin, net)]
    torch.testing.assert_close(*each, **EXACT)
    for m in (twin, net):
        nn.utils.parametrizations.weight_norm(m[0])
    torch.testing.assert_close(twin(x), net(x), **EXACT)


def test_autocast() -> None:
    net, x = Model(), image().float()
    twin = copy.deepcopy(net)
    convert(twin, ALL)
    with torch.autocast("cpu", torch.bfloat16):
        a, b = net(x), twin(x)
    assert a.dtype == b.dtype
    torch.testing.assert_close(b, a, rtol=0.05, atol=0.05)


def test_revert_gives_the_model_back() -> None:
    net, x = model(), image()
    text, attributes = repr(net), {n: set(vars(m)) for n, m in net.named_modules()}
    y = net(x)
    convert(net, ALL)
    assert revert(net) == [*NAMES, "head"] and revert(net) == []
    assert repr(net) == text and torch.equal(net(x), y)
    assert {n: set(vars(m)) for n, m in net.named_modules()} == attributes
    assert len(convert(net, ALL).converted) == len(NAMES) + 1  # and again


def test_a_layer_of_ours_is_left_alone() -> None:
    net = nn.Sequential(from_layer(nn.Linear(3, 3)), nn.Linear(3, 3))
    assert [row.name for row in convert(net, ALL).converted] == ["1"]


@pytest.fixture(params=["convolutions", "encoder"])
def small(request: pytest.FixtureRequest) -> tuple[nn.Module, tuple, dict[str, Any]]:
    if request.param == "convolutions":
        first, second = nn.Conv2d(1, 4, 3, padding="same"), nn.Conv2d(4, 4, 3, 2, 1, padding_mode="circular")
        net = nn.Sequential(first, nn.ReLU(), second, nn.Flatten(), nn.Linear(48, 3))
        return net, (torch.randn(2, 1, 8, 6),), {}
    pad = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 1), (torch.randn(2, 5, 8),), {"src_key_padding_mask": pad}


def test_compile_in_one_graph(small: Any) -> None:
    net, args, given = small
    twin = copy.deepcopy(net)
    convert(twin, ALL)
    fast = torch.compile(twin, fullgraph=True, backend="aot_eager")
    a, b = net(*args, **given), fast(*args, **given)
    torch.testing.assert_close(b, a)
    for y in (a, b):
        y.square().sum().backward()
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
def test_export(small: Any) -> None:
    net, args, given = small
    y = net.eval()(*args, **given)
    convert(net, ALL)
    program = torch.export.export(net, args, given)
    torch.testing.assert_close(program.module()(*args, **given), y)
    assert set(program.state_dict) == set(net.state_dict())


def test_kernels_can_be_watched() -> None:
    net = model()
    convert(net, ALL)
    with trace_kernels(net) as ran:
        net(image())
    assert ran["patch.core"] == ran["mix.core"] == "conv" and ran["head.core"] == "linear"
    assert ran["pool.core"] == ran["encoder.layers.1.core.layer"] == "sdpa"
