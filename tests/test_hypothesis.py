"""Random shapes and options: against torch where torch has the operation, else against the oracle, on every kernel."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from helpers.calls import Trial, kernels
from helpers.compare import agree, run
from helpers.oracle import oracle
from mpnn import MessagePassing, attend
from mpnn.neighbours import AllTokens, Full, Graph, Grid, Window
from mpnn.plan import NAMES
from mpnn.weights import AdditiveScore, AdditiveScoreV2, EdgeLearned, EdgeMLP, QKSoftmax, SharedKernel, Static

seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=100)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def hold(call: Trial, expected: dict[str, Any]) -> None:
    """Every kernel gives the expected output and gradients."""
    for kernel in kernels(call):
        agree(run(call, call.leaves), expected, torch.float64, f"{kernel}: {call.layer}")


@few
@given(data=st.data(), seed=seeds)
def test_graphs_are_the_oracle(data: st.DataObject, seed: int) -> None:
    torch.manual_seed(seed)
    n, e = data.draw(st.integers(1, 5)), data.draw(st.integers(0, 14))
    loops = data.draw(st.sampled_from([None, "add", "replace"]))
    relations = 1 if loops else data.draw(st.integers(1, 3))
    heads, width, k = (data.draw(st.integers(1, 3)) for _ in range(3))
    out, c = heads * width, data.draw(st.integers(1, 5))
    lead = data.draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    softmax: dict[str, Any] = {"heads": heads, "normalise": "softmax"}
    weight = data.draw(
        st.sampled_from(
            [
                lambda: SharedKernel(c, out, reduce=data.draw(st.sampled_from(["sum", "mean", "max"])), root=True),
                lambda: SharedKernel(c, out, normalise=data.draw(st.sampled_from(["symmetric", "relation"]))),
                lambda: SharedKernel(c, out, heads=heads, bases=k),
                lambda: EdgeLearned(c, out, EdgeMLP(k, c * out)),
                lambda: EdgeLearned(c, out, AdditiveScore(out, heads, edge_channels=k), **softmax),
                lambda: EdgeLearned(c, out, AdditiveScoreV2(out, heads, target_channels=c), **softmax),
                lambda: QKSoftmax(c, heads, out_channels=out, head_channels=width),
                lambda: QKSoftmax(c, heads, head_channels=width, edge_channels=k, root=True),
            ]
        )
    )()
    layer = MessagePassing(Graph(self_loops=loops, relations=relations), weight).double()
    tensors = {"source": random(*lead, n, c), "edge_index": torch.randint(0, n, (2, e))}
    if relations > 1:
        tensors["edge_type"] = torch.randint(0, relations, (e,))
    if layer.weight.edge_channels:
        tensors["edge_attr"] = random(*lead, e, k)
    if data.draw(st.booleans()):
        tensors["source mask"] = torch.rand(*lead, n) < 0.7
    call = Trial(layer, tensors)
    hold(call, run(lambda: oracle(call), call.leaves))


@few
@given(data=st.data(), seed=seeds)
def test_grids_are_convolutions(data: st.DataObject, seed: int) -> None:
    torch.manual_seed(seed)
    axes = data.draw(st.integers(1, 3))
    draw = lambda low, high: tuple(data.draw(st.integers(low, high)) for _ in range(axes))  # noqa: E731
    size, kernel, stride, dilation, padding = draw(1, 6), draw(1, 3), draw(1, 3), draw(1, 2), draw(0, 2)
    border = data.draw(st.sampled_from(["zeros", "circular", "reflect", "replicate"]))
    groups, inner, outer = (data.draw(st.integers(1, 2)) for _ in range(3))
    lead = data.draw(st.sampled_from([(), (2,), (2, 3)]))
    limit = {"reflect": -1, "circular": 0}.get(border, 9)
    assume(all(p <= n + limit for p, n in zip(padding, size, strict=True)))
    assume(all(n + 2 * p > d * (k - 1) for n, k, d, p in zip(size, kernel, dilation, padding, strict=True)))
    grid = Grid(size, kernel, stride=stride, dilation=dilation, padding=padding, border=border)
    layer = MessagePassing(grid, SharedKernel(groups * inner, groups * outer, groups=groups)).double()
    x = random(*lead, torch.Size(size).numel(), groups * inner)
    call = Trial(layer, {"source": x})

    def convolution() -> Tensor:
        image = x.reshape(-1, *size, x.shape[-1]).movedim(-1, 1)
        pads = [p for n in reversed(padding) for p in (n, n)]
        mode = {"zeros": "constant"}.get(border, border)
        image = F.pad(image, pads, mode=mode) if any(pads) else image
        conv = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]
        y = conv(image, layer.weight.weight, layer.weight.bias, stride, 0, dilation, groups)
        assert y.shape[2:] == grid.target_size(size)
        return y.flatten(2).transpose(1, 2).reshape(*lead, -1, y.shape[1])

    hold(call, run(convolution, call.leaves))


@few
@given(data=st.data(), seed=seeds)
def test_attention_is_masked_sdpa(data: st.DataObject, seed: int) -> None:
    torch.manual_seed(seed)
    n, m = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    kv, share, d = (data.draw(st.integers(1, 3)) for _ in range(3))
    width = data.draw(st.integers(1, 4))
    lead = data.draw(st.sampled_from([(), (2,), (2, 1)]))
    slot = torch.arange(m) - (torch.arange(n)[:, None] + m - n)
    kind = data.draw(st.sampled_from(["all", "causal", "window"]))
    if kind == "window":
        left, right, step = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 3)), data.draw(st.integers(1, 3))
        rule: Any = Window(left, right, dilation=step)
        sees = (slot % step == 0) & (slot >= -left * step) & (slot <= right * step)
    else:
        rule = AllTokens(causal=kind == "causal")
        sees = slot <= 0 if kind == "causal" else torch.ones(n, m, dtype=torch.bool)
    leaves = {"q": random(*lead, kv * share, n, d), "k": random(*lead, kv, m, d), "v": random(*lead, kv, m, width)}
    mask = (torch.rand(*lead, m) < 0.7) if data.draw(st.booleans()) else None
    options: dict[str, Any] = {"mask": mask}
    bias = None
    if data.draw(st.booleans()):
        leaves["bias"] = options["score_bias"] = bias = random(kv * share, n, m)

    def sdpa() -> Tensor:
        seen = sees if mask is None else sees & mask[..., None, None, :]
        some = seen.any(-1, keepdim=True)
        added = torch.zeros(n, m, dtype=torch.float64) if bias is None else bias
        added = added.masked_fill(~(seen | ~some), -torch.inf)
        k, v = (t.repeat_interleave(share, -3) for t in (leaves["k"], leaves["v"]))
        scores = leaves["q"] @ k.transpose(-1, -2) / d**0.5 + added
        return (scores.softmax(-1) @ v) * some

    expected, qkv, ran = run(sdpa, leaves), [leaves[t] for t in "qkv"], []
    for kernel in NAMES:
        try:
            found = run(lambda kernel=kernel: attend(*qkv, rule, **options, kernel=kernel), leaves)
        except ValueError as error:
            if "expected a kernel that can run" not in str(error):
                raise
            continue
        ran.append(kernel)
        agree(found, expected, torch.float64, f"{kernel}: {rule}")
    assert "reference" in ran and ("edge_softmax" in ran or kind != "window")


@few
@given(data=st.data(), seed=seeds)
def test_layers_on_sequences_are_the_oracle(data: st.DataObject, seed: int) -> None:
    torch.manual_seed(seed)
    heads, width = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    c, most = heads * width, data.draw(st.integers(1, 6))
    n, m = data.draw(st.integers(1, most)), data.draw(st.integers(1, most))
    sizes = sorted(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)))
    ragged = data.draw(st.booleans())
    rule = data.draw(st.sampled_from([AllTokens, Window]))
    causal = data.draw(st.booleans())
    neighbours: Any = AllTokens(causal=causal, max_tokens=most) if rule is AllTokens else Window(1, 0 if causal else 2)
    weights: list[Any] = [
        lambda: QKSoftmax(c, heads, root=True),
        lambda: SharedKernel(c, c, groups=heads),
        lambda: SharedKernel(c, c, heads=heads, normalise="softmax"),
        lambda: EdgeLearned(c, c, AdditiveScore(c, heads), heads=heads, normalise="softmax"),
    ]
    if rule is AllTokens and not ragged:
        weights += [lambda: Static(c, c, heads=heads), lambda: Static(c, c, groups=heads, root=True)]
    layer = MessagePassing(neighbours, data.draw(st.sampled_from(weights))()).double()
    if ragged:
        tensors = {"source": random(n, c), "source batch": torch.tensor(sizes)}
    else:
        tensors = {"source": random(2, m, c), "target": random(2, n, c)}
    call = Trial(layer, tensors)
    hold(call, run(lambda: oracle(call), call.leaves))


@few
@given(data=st.data(), seed=seeds)
def test_fixed_units_are_one_einsum(data: st.DataObject, seed: int) -> None:
    torch.manual_seed(seed)
    m, n, groups, inner, outer = (data.draw(st.integers(1, 5)) for _ in range(5))
    lead = data.draw(st.sampled_from([(), (2,), (3, 2)]))
    layer = MessagePassing(Full(m, n), Static(groups * inner, groups * outer, groups=groups)).double()
    call = Trial(layer, {"source": random(*lead, m, groups * inner)})

    def einsum() -> Tensor:
        w = layer.weight.weight.unflatten(1, (groups, outer))
        x = call.tensors["source"].unflatten(-1, (groups, inner))
        return torch.einsum("ngomi,...mgi->...ngo", w, x).flatten(-2) + layer.weight.bias

    hold(call, run(einsum, call.leaves))


@few
@given(data=st.data(), seed=seeds)
def test_relations_of_all_tokens_are_a_toeplitz_matrix(data: st.DataObject, seed: int) -> None:
    torch.manual_seed(seed)
    most = data.draw(st.integers(1, 7))
    n, c = data.draw(st.integers(1, most)), data.draw(st.integers(1, 4))
    causal = data.draw(st.booleans())
    layer = MessagePassing(AllTokens(causal=causal, max_tokens=most), SharedKernel(c, c, groups=c, bias=False)).double()
    call = Trial(layer, {"source": random(2, n, c)})

    def matrix() -> Tensor:
        offset = torch.arange(n) - torch.arange(n)[:, None]
        w = layer.weight.weight[:, :, 0][(offset + most - 1).clamp(max=layer.neighbours.relations - 1)]
        w = w * (offset <= 0)[..., None] if causal else w
        return torch.einsum("ijc,bjc->bic", w, call.tensors["source"])

    hold(call, run(matrix, call.leaves))
