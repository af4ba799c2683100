"""The state dict of a layer: names and shapes are contract."""

from __future__ import annotations

import pytest

from helpers.calls import trial

QKV = {f"{n}.{k}": s for n in ("query", "key", "value") for k, s in (("weight", (4, 4)), ("bias", (4,)))}


OUTPUT = {"output.weight": (4, 4), "output.bias": (4,)}


STATES: list[tuple[str, str, dict[str, tuple[int, ...]]]] = [
    ("Full of two numbers", "Static", {"weight": (3, 6, 4, 4), "bias": (3, 6)}),
    ("Full of two numbers", "Static groups", {"weight": (3, 6, 4, 2), "bias": (3, 6), "root.weight": (6, 4)}),
    ("Full", "Static output", {"weight": (4, 6, 4, 4), "output.weight": (6, 6)}),
    ("Full of two numbers", "Static heads", {"weight": (2, 3, 4), "value.weight": (6, 4), "bias": (3, 6)}),
    ("AllTokens max_tokens", "Static", {"weight": (5, 6, 5, 4), "bias": (6,)}),
    ("AllTokens max_tokens", "Static bare heads", {"weight": (2, 5, 5)} | OUTPUT),
    ("Grid 2-D", "Static", {"weight": (6, 6, 4, 3, 3), "bias": (6,)}),
    ("Grid 2-D", "Static heads", {"weight": (2, 6, 3, 3), "value.weight": (6, 4), "bias": (6,)}),
    ("Graph built", "Static", {"weight": (9, 6, 4), "bias": (6,)}),  # ten edges, two of one pair
    ("Graph built", "Static heads", {"weight": (2, 9), "value.weight": (6, 4), "bias": (6,)}),
    ("Graph loops replaced", "Static", {"weight": (12, 6, 4), "bias": (6,)}),
    ("Full of two numbers", "SharedKernel", {"weight": (6, 6, 4), "bias": (6,)}),
    ("Grid 1-D", "SharedKernel", {"weight": (6, 4, 3), "bias": (6,)}),
    ("Grid 2-D", "SharedKernel", {"weight": (6, 4, 3, 3), "bias": (6,)}),
    ("Grid 2-D", "SharedKernel groups", {"weight": (6, 2, 3, 3), "bias": (6,)}),
    ("Grid 2-D clamp", "SharedKernel", {"weight": (6, 4, 5, 5), "bias": (6,)}),
    ("Grid 2-D", "SharedKernel heads", {"weight": (9, 2), "value.weight": (6, 4), "bias": (6,)}),
    ("Grid 2-D", "SharedKernel bases", {"weight": (2, 6, 2), "coefficients": (9, 2), "bias": (6,)}),
    ("Graph at call", "SharedKernel", {"weight": (1, 6, 4), "bias": (6,)}),
    ("Graph relations", "SharedKernel", {"weight": (3, 6, 4), "bias": (6,)}),
    ("Graph relations", "SharedKernel bases", {"weight": (2, 6, 2), "coefficients": (3, 2), "bias": (6,)}),
    ("AllTokens max_tokens", "SharedKernel", {"weight": (9, 6, 4), "bias": (6,)}),
    ("AllTokens causal max_tokens", "SharedKernel", {"weight": (4, 6, 4), "bias": (6,)}),
    ("Window", "SharedKernel narrow", {"weight": (3, 2, 2), "value.weight": (2, 4)}),
    ("Graph at call", "fixed sum", {"bias": (4,)}),
    ("Graph at call", "fixed max", {"output.weight": (6, 4), "output.bias": (6,)}),
    (
        "Graph at call",
        "GAT",
        {f"network.{k}": (2, 3) for k in ("source", "target")} | {"value.weight": (6, 4), "bias": (6,)},
    ),
    ("AllTokens", "attention", QKV | OUTPUT),
    ("AllTokens", "ALiBi", {k: s for k, s in (QKV | OUTPUT).items() if k.endswith("weight")}),
    ("AllTokens", "Rotary", QKV | OUTPUT),
    ("AllTokens", "RelativeBias", QKV | OUTPUT | {"score_bias.weight": (7, 2)}),
    ("AllTokens", "cross-attention", QKV | OUTPUT | {"key.weight": (4, 3), "value.weight": (4, 3)}),
    ("AllTokens", "split sources", QKV | OUTPUT | {"key.weight": (4, 2), "value.weight": (4, 3)}),
    (
        "Graph at call",
        "TransformerConv",
        {k: (6, *s[1:]) for k, s in QKV.items()} | {"edge.weight": (6, 3), "root.weight": (6, 4), "root.bias": (6,)},
    ),
]


@pytest.mark.parametrize(("place", "rule", "expected"), STATES)
def test_names_and_shapes_of_parameters(place: str, rule: str, expected: dict[str, tuple[int, ...]]) -> None:
    layer = trial(place, rule, grad=False).layer
    assert {k: tuple(t.shape) for k, t in layer.weight.state_dict().items()} == expected
    assert {k.removeprefix("weight.") for k in layer.state_dict()} == set(expected)  # the neighbourhood has none
