"""The spec: one call in plain values, from which the plan chooses a kernel."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.nn.utils.parametrize import type_before_parametrizations

from mpnn.checks import compiling, memoryless, readable, transforms
from mpnn.memo import derived
from mpnn.tiles.graphs import padded_pairs

PRODUCTS = ("QKSoftmax", "attend")  # rules of weights that are a softmax of products of queries and keys
MANY = 1 << 22  # pairs of tokens that may be kept for a backward


@dataclasses.dataclass(frozen=True)
class Spec:
    """One call in plain values. Everything that a kernel's ``unsupported`` may ask stands here."""

    neighbours: str
    weight: str
    family: str  # "groups" or "heads"
    parts: int  # groups or heads
    targets: int
    sources: int
    batch: int
    channels: int  # of the value, all parts together
    out_channels: int  # of the aggregate
    dtype: str
    device: str = "cpu"
    kv_heads: int = 0
    score_channels: int = 0  # per head, of queries and keys
    edges: int | None = None
    padded: int = 0  # pairs of a graph's parts, each padded: as many as a dense batch of small graphs has
    relations: int = 1
    axes: int = 0
    border: str | None = None
    causal: bool = False
    listed: bool = False  # the pairs are few, and listed once
    tiled: bool = False  # dense attention over tiles of tokens meets every pair
    square: bool = True  # as many targets as sources
    complete: bool = False  # every target meets every source, once
    ragged: bool = False
    reduce: str = "sum"
    normalise: str | None = None
    network: str | None = None  # the class of EdgeLearned's network
    activation: str | None = None  # the class of its activation
    fixed: bool = False
    bases: bool = False
    mask: bool = False
    pair_mask: bool = False
    gaps: bool = False  # of a large causal call: its mask is more than padding at the end of one set of tokens
    score_bias: str | None = None  # "module", "tensor" or "edges"
    learned_bias: bool = False  # a gradient of the score bias is wanted
    score: bool = False
    edge_attr: bool = False
    edge_value: bool = False  # edges add something to their source's value
    edge_weight: bool = False
    dropout: float = 0.0
    grad: bool = False
    compiling: bool = False
    wrapped: bool = False  # a functional transform maps over a mask or the score bias
    memoryless: bool = False  # of some tensor the numbers are not at an address of its own, as of fakes and wrappers
    transforms: tuple[str, ...] = ()
    union: tuple[Spec, ...] = ()  # of a union, one for each part
    expression: str | None = None  # the class of the expression that the neighbours stand for


def _wrapped(tensor: Any) -> bool:
    return tensor is not None and torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _memoryless(call: Any, weight: Any) -> bool:
    """Whether compiled code could not read some tensor of the call at its address."""
    if compiling():
        return False  # nothing is read by its address then
    ends = () if call.explicit is None else (call.explicit.source, call.explicit.target)
    given = (call.attr, call.edge_weight, call.source_mask, call.target_mask, call.pair_mask, *ends)
    read = (*call.nodes.values(), *given, *getattr(weight, "parameters", tuple)())  # attend has none
    return any(memoryless(t) for t in read if isinstance(t, torch.Tensor))


def learned_bias(call: Any, weight: Any) -> bool:
    """Whether a gradient of the score bias is wanted."""
    module = getattr(weight, "score_bias", None)
    given = (call.nodes.get("score_bias"), call.nodes.get("edge_bias"))
    read = [*given, *(module.parameters() if module is not None else ())]
    return torch.is_grad_enabled() and any(t.requires_grad for t in read if t is not None)


def spec_of(call: Any, weight: Any) -> Spec:
    """The call in plain values."""
    rule, value = call.neighbours, call.value
    tensors = [*call.nodes.values(), *(t for t in (call.attr, call.edge_weight) if t is not None)]
    bias = call.nodes.get("score_bias")
    groups = weight.groups is not None
    network = getattr(weight, "network", None)
    activation = getattr(network, "activation", None)
    if bias is not None:
        kind: str | None = "tensor"
    elif "edge_bias" in call.nodes:
        kind = "edges"
    else:
        kind = None if getattr(weight, "score_bias", None) is None else "module"
    spec = Spec(
        neighbours=type(rule).__name__,
        weight=getattr(weight, "spec_name", None) or type_before_parametrizations(weight).__name__,
        family="groups" if groups else "heads",
        parts=weight.groups or weight.heads,
        targets=call.targets,
        sources=call.sources,
        batch=call.entries,
        channels=value.shape[-1] if groups else value.shape[-3] * value.shape[-1],
        out_channels=call.width,
        dtype=str(value.dtype).removeprefix("torch."),
        device=value.device.type,
        kv_heads=0 if groups else value.shape[-3],
        score_channels=call.nodes["query"].shape[-1] if "query" in call.nodes else 0,
        edges=None if call.explicit is None else call.explicit.count,
        padded=_padded(call),
        relations=rule.relations,
        axes=rule.axes,
        border=getattr(rule, "border", None),
        causal=rule.causal,
        listed=rule.listed,
        tiled=rule.tiled,
        complete=rule.complete,
        square=call.tokens[1] is call.tokens[0],
        ragged=call.tokens[0].batch is not None,
        reduce=weight.reduce,
        normalise=weight.normalise,
        network=None if network is None else _network_name(type(network)),
        activation=type(activation).__name__ if isinstance(activation, torch.nn.Module) else None,
        fixed=getattr(weight, "fixed", False),
        bases=getattr(weight, "bases", None) is not None,
        mask=call.source_mask is not None or call.target_mask is not None,
        pair_mask=call.pair_mask is not None,
        gaps=_gaps(call),
        score_bias=kind,
        learned_bias=learned_bias(call, weight),
        score=getattr(weight, "score", None) is not None,
        edge_attr=call.attr is not None,
        edge_value=getattr(weight, "adds_value", bool)(),
        edge_weight=call.edge_weight is not None,
        dropout=call.dropout,
        grad=torch.is_grad_enabled() and any(t.requires_grad for t in tensors),
        compiling=compiling(),
        wrapped=call.transformed and any(_wrapped(t) for t in (call.source_mask, call.pair_mask, bias)),
        memoryless=_memoryless(call, weight),
        transforms=transforms(),
        expression=call.expression,
    )
    return spec if spec.neighbours != "Union" else dataclasses.replace(spec, union=_parts(rule, spec))


def _network_name(kind: type) -> str:
    """A network's class, by which kernels know ours; a person's own of the same name is another."""
    return kind.__name__ if kind.__module__.startswith("mpnn.") else f"{kind.__module__}.{kind.__qualname__}"


def unwrap(call: Any) -> None:
    """Let the neighbours of a call be the one rule that meets their expression's pairs, where nothing else of it is
    read: a softmax of products knows no relations, and data and score functions keep the expression."""
    rule, weight = call.neighbours, call.weight
    name = getattr(weight, "spec_name", None) or type_before_parametrizations(weight).__name__
    if name not in PRODUCTS or call.attr is not None or getattr(weight, "score", None) is not None:
        return
    alone = rule.alone()
    if alone is not rule:
        call.neighbours, call.expression, call.explicit = alone, type(rule).__name__, None


def _padded(call: Any) -> int:
    """Pairs of a graph's edges as a dense batch of small graphs; 0 where no product of queries and keys could use them,
    or where the edges cannot be read."""
    edges = call.explicit
    asked = type(call.neighbours).__name__ == "Graph" and "query" in call.nodes
    if edges is None or not asked or compiling() or call.targets != call.sources or not readable(edges.source):
        return 0
    return padded_pairs(edges, call.targets) if edges.count else 0


def _gaps(call: Any) -> bool:
    """Whether a mask leaves gaps that causal attention cannot leave to the order of the tokens, or real targets after
    masked sources. Looked at only where all pairs would be many, since it reads the mask."""
    mask = call.source_mask
    if not call.neighbours.causal or mask is None or compiling() or call.targets * call.sources <= MANY:
        return False
    if mask is not call.target_mask or not readable(mask):
        return True
    return derived(lambda: bool((~mask[..., :-1] & mask[..., 1:]).any()), "gaps", mask)


def _parts(rule: Any, spec: Spec) -> tuple[Spec, ...]:
    """The same call over each part of a union."""
    return tuple(
        dataclasses.replace(
            spec, neighbours=type(part).__name__, listed=part.listed, tiled=part.tiled, causal=part.causal, edges=None
        )
        for part in rule.parts()
    )
