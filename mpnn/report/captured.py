"""One number per head and pair of tokens, from the weights that ``capture_weights`` collects."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mpnn import EdgeWeights
from mpnn.checks import instance


def numbers(edges: EdgeWeights, sample: int = 0) -> Tensor:
    """The weights of one sample as one number per edge and head: (E, heads), or (E, groups).

    A matrix of a group counts as its Frobenius norm √(Σ w²); a matrix of one number keeps its sign.

    Args:
        sample: counted over all leading dimensions of the call.

    Raises:
        TypeError, IndexError: where ``edges`` are no captured weights, or the call had fewer samples.

    >>> two = torch.tensor([[0.25], [0.75]])
    >>> one = EdgeWeights(torch.tensor([0, 1]), torch.tensor([0, 0]), None, two, (1, 2), "heads")
    >>> numbers(one).tolist()
    [[0.25], [0.75]]
    """
    instance("edges", edges, EdgeWeights, "the weights of one call: weights[name][call] of capture_weights(model)")
    weight = edges.weight.detach().float()
    if edges.family == "groups":
        weight = weight.flatten(-2)
        weight = weight.squeeze(-1) if weight.shape[-1] == 1 else torch.linalg.vector_norm(weight, dim=-1)
    samples = weight.reshape(-1, *weight.shape[-2:])
    index("sample", sample, len(samples))
    return samples[sample].cpu()


def dense(edges: EdgeWeights, sample: int = 0) -> Tensor:
    """The weights of one sample as a matrix per head, (heads, targets, sources): NaN where no pair is.

    Several edges of one pair add up, as they do in the layer.

    >>> one = EdgeWeights(torch.tensor([1]), torch.tensor([0]), None, torch.tensor([[0.5]]), (1, 2), "heads")
    >>> dense(one).tolist()
    [[[nan, 0.5]]]
    """
    weight = numbers(edges, sample)
    targets, sources = edges.size
    pair = edges.target.cpu() * sources + edges.source.cpu()
    flat = torch.zeros(targets * sources, weight.shape[1]).index_add_(0, pair, weight)
    met = torch.zeros(targets * sources, dtype=torch.bool).index_fill_(0, pair, True)
    return flat.masked_fill(~met[:, None], torch.nan).t().reshape(-1, targets, sources)


def of_target(edges: EdgeWeights, target: int, sample: int = 0) -> Tensor:
    """The weights of one target, (heads, sources): NaN where a source is no neighbour.

    >>> one = EdgeWeights(torch.tensor([1]), torch.tensor([0]), None, torch.tensor([[0.5]]), (1, 2), "heads")
    >>> of_target(one, 0).tolist()
    [[nan, 0.5]]
    """
    weight = numbers(edges, sample)
    targets, sources = edges.size
    index("target", target, targets)
    rows = (edges.target == target).cpu()
    source = edges.source.cpu()[rows]
    sums = torch.zeros(sources, weight.shape[1]).index_add_(0, source, weight[rows])
    met = torch.zeros(sources, dtype=torch.bool).index_fill_(0, source, True)
    return sums.masked_fill(~met[:, None], torch.nan).t()


def part(edges: EdgeWeights, number: int) -> str:
    """The name of one panel: a head, or a group of channels; "all channels" where there is one group."""
    if edges.family == "groups" and edges.weight.shape[-3] == 1:
        return "all channels"
    return f"{edges.family[:-1]} {number}"


def index(name: str, value: Any, count: int) -> int:
    """A number in 0 … count - 1.

    Raises:
        TypeError, IndexError: naming the argument.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"expected {name} to be an int, got {value!r} ({type(value).__name__})")
    if not 0 <= value < count:
        raise IndexError(f"expected {name} in 0 … {count - 1}, got {value}")
    return value
