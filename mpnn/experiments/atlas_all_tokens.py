"""The atlas's row of `AllTokens`: any number of tokens, each sees every other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpnn import MessagePassing
from mpnn.experiments.atlas_case import Case, Names, copied, linears, shared
from mpnn.models import ResidualBlock
from mpnn.neighbours import AllTokens
from mpnn.weights import AdditiveScoreV2, EdgeLearned, QKSoftmax, SharedKernel, Static


def token_mixing() -> Case:
    """`AllTokens` × `Static`: one matrix over the tokens for all channels, as in MLP-Mixer."""
    layer = MessagePassing(AllTokens(max_tokens=7), Static(4, 4, heads=1, value=False))
    rule: Any = layer.weight
    matrix, bias = rule.weight, rule.bias

    def reference(x: Tensor) -> Tensor:
        return torch.einsum("nm,bmc->bnc", matrix[0, :5, :5], x) + bias

    return Case(layer, layer, reference, (torch.randn(2, 5, 4),), shared(layer))


def synthesizer() -> Case:
    """`AllTokens` × `Static` under a softmax: the random Synthesizer's scores, a matrix for each head."""
    layer = MessagePassing(AllTokens(max_tokens=5), Static(6, 6, heads=2, normalise="softmax", output=True))
    rule: Any = layer.weight

    def reference(x: Tensor) -> Tensor:
        value = F.linear(x, rule.value.weight).unflatten(-1, (2, 3))
        mixed = torch.einsum("hnm,bmhd->bnhd", rule.weight.softmax(-1), value)
        return F.linear(mixed.flatten(-2), rule.output.weight, rule.output.bias)

    return Case(layer, layer, reference, (torch.randn(3, 5, 6),), shared(layer))


def relative_mixing() -> Case:
    """`AllTokens` × `SharedKernel`: a kernel as long as all offsets."""
    longest, length = 6, 5
    layer = MessagePassing(AllTokens(max_tokens=longest), SharedKernel(2, 3))
    rule: Any = layer.weight
    kernel, bias = rule.weight, rule.bias

    def reference(x: Tensor) -> Tensor:
        return F.conv1d(x.mT, kernel.permute(1, 2, 0), bias, padding=longest - 1).mT[:, :length]

    return Case(layer, layer, reference, (torch.randn(2, length, 2),), shared(layer))


def long_convolution() -> Case:
    """`AllTokens(causal=True)` × `SharedKernel` channel by channel, as a product of spectra."""
    length, channels = 9, 4
    layer = MessagePassing(AllTokens(causal=True, max_tokens=length), SharedKernel(channels, channels, groups=channels))
    rule: Any = layer.weight
    kernel, bias = rule.weight, rule.bias

    def reference(x: Tensor) -> Tensor:
        by_lag = kernel[..., 0].flip(0)  # (lags, channels)
        spectrum = torch.fft.rfft(x, 2 * length, dim=-2) * torch.fft.rfft(by_lag, 2 * length, dim=-2)
        return torch.fft.irfft(spectrum, 2 * length, dim=-2)[:, :length] + bias

    return Case(layer, layer, reference, (torch.randn(2, length, channels),), shared(layer))


def additive_attention() -> Case:
    """`AllTokens` × `EdgeLearned`: Bahdanau's decoder over an encoder's tokens, one target and source at a time."""
    score: Any = AdditiveScoreV2(5, source_channels=4, target_channels=4, activation=nn.Tanh(), bias=False)
    weight = EdgeLearned(4, 4, score, heads=1, value=False, normalise="softmax", bias=False)
    layer = MessagePassing(AllTokens(), weight)

    def reference(decoder: Tensor, encoder: Tensor) -> Tensor:
        rows = []
        for state in decoder:
            scores = [
                score.vector[0] @ torch.tanh(score.source.weight @ s + score.target.weight @ state) for s in encoder
            ]
            rows.append(torch.stack(scores).softmax(0) @ encoder)
        return torch.stack(rows)

    inputs = (torch.randn(3, 4), torch.randn(5, 4))
    return Case(layer, lambda decoder, encoder: layer(decoder, source=encoder), reference, inputs, shared(layer))


def packed(ours: str = "weight", theirs: str = "") -> Names:
    """The names of `nn.MultiheadAttention`, whose projections are thirds of one matrix."""
    names: Names = {}
    for third, part in enumerate(("query", "key", "value")):
        for end in ("weight", "bias"):
            names[f"{ours}.{part}.{end}"] = (f"{theirs}in_proj_{end}", lambda p, third=third: p.chunk(3)[third])  # type: ignore[misc]
    return names | linears({f"{ours}.output": f"{theirs}out_proj"})


def multihead_attention() -> Case:
    layer = MessagePassing(AllTokens(), QKSoftmax(8, heads=2))
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    ties = copied(layer, attention, packed())
    return Case(layer, layer, lambda x: attention(x, x, x, need_weights=False)[0], (torch.randn(2, 5, 8),), ties)


def encoder_layer() -> Case:
    block = ResidualBlock(MessagePassing(AllTokens(), QKSoftmax(8, heads=2)), 8, 12)
    theirs = nn.TransformerEncoderLayer(8, 2, 12, 0.0, "gelu", batch_first=True, norm_first=True)
    names = packed("layer.weight", "self_attn.")
    names |= linears({"norm1": "norm1", "norm2": "norm2", "mlp.0": "linear1", "mlp.3": "linear2"})
    ties = copied(block, theirs, names)
    return Case(block, lambda x: block(x, lambda layer, y: layer(y)), theirs, (torch.randn(2, 5, 8),), ties)
