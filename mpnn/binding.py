"""Binding: a call's arguments, checked at the door and joined into what kernels read."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from mpnn.checks import (
    autocasting,
    bool_mask,
    broadcastable,
    compiling,
    readable,
    same_device,
    same_dtype,
    transforms,
    values,
)
from mpnn.edge_data import attach, list_edges
from mpnn.kernels.base import Call
from mpnn.memo import derived
from mpnn.neighbours import Graph, Neighbours
from mpnn.places import place, rotate
from mpnn.tokens.base import Tokens
from mpnn.weights import EdgeLearned, EdgeNetwork, QKSoftmax, SharedKernel, Static, Weight

FIELDS = ("mask", "positions", "coordinates", "batch", "grid")


def as_tokens(name: str, x: Any, **given: Any) -> Tokens:
    """Tokens of a tensor and keywords; a field that the tokens have already may not be given again."""
    given = {k: v for k, v in given.items() if v is not None}
    bool_mask("mask", given.get("mask"))
    if isinstance(x, Tokens):
        for field in given:
            if getattr(x, field) is not None:
                raise ValueError(
                    f"expected {field} once, got it in {name}'s Tokens and as {field}=; leave one of them out"
                )
        return x.replace(**given) if given else x
    if not isinstance(x, Tensor):
        raise TypeError(f"expected {name} to be a tensor (..., N, C), Tokens or a pair of them, got {type(x).__name__}")
    return Tokens(x, **given)


def token_sets(rule: Neighbours, x: Any, source: Any, fields: dict[str, Any]) -> tuple[Tokens, Tokens | None]:
    """(source, target) tokens of a call; target is None where the neighbourhood fixes targets and the call has none."""
    others = {k: v for k, v in fields.items() if k != "mask"}
    mask = fields.get("mask")
    if isinstance(x, tuple | list):
        if source is not None:
            raise ValueError("expected the sources once, got (x_source, x_target) and source=; leave one of them out")
        if len(x) != 2:
            raise ValueError(f"expected a pair (x_source, x_target), got {len(x)} entries")
        return as_tokens("x_source", x[0], mask=mask), as_tokens("x_target", x[1], **others)
    if source is not None:
        beside = others if source is x else {}  # one set of tokens: as sources with a mask, as targets without one
        return as_tokens("source", source, mask=mask, **beside), as_tokens("x", x, **others)
    tokens = as_tokens("x", x, **fields)
    return tokens, (tokens if rule.target_count(tokens.x.shape[-2], tokens) is None else None)


def key_and_value(weight: Any, source: Any) -> tuple[Any, Tensor | None]:
    """(source, values) of a call: attention takes ``source=(keys, values)``, the parts of its source tokens apart."""
    if not isinstance(source, tuple | list):
        return source, None
    got = f"{type(source).__name__} of {', '.join(type(s).__name__ for s in source)}"
    if not isinstance(weight, QKSoftmax):
        kind = getattr(weight, "spec_name", type(weight).__name__)
        raise TypeError(f"expected source to be a tensor (..., M, C) or Tokens for {kind}, got {got}")
    if len(source) != 2 or not isinstance(source[1], Tensor):
        raise TypeError(f"expected source to be a tensor (..., M, C), Tokens or (keys, values), got {got}")
    return source[0], source[1]


def check_values(weight: Any, keys: Tokens, value: Tensor) -> int:
    """Refuse values that do not stand beside their keys; returns the width that keys have."""
    width, beside = weight.part_widths()
    wanted = (*keys.x.shape[:-1], beside)
    if tuple(value.shape) != wanted:
        raise ValueError(f"expected values of shape {wanted}, beside their keys, got {tuple(value.shape)}")
    same_device("values", value, keys.x.device)
    same_dtype("values", value.dtype, keys.x.dtype)
    return width


def read_bias(call: Call, bias: Any, heads: int, rows: int) -> dict[str, Tensor]:
    """The caller's score bias as kernels read it: (..., heads, N, M), or (E, heads) of a graph's ``rows`` edges."""
    if not isinstance(bias, Tensor):
        raise TypeError(f"expected score_bias to be a tensor (..., heads, N, M), got {type(bias).__name__}")
    if not bias.is_floating_point():
        raise TypeError(f"expected score_bias of a floating dtype, got {bias.dtype}; a bool mask goes to pair_mask=")
    x = call.tokens[0].x
    same_device("score_bias", bias, x.device)
    if isinstance(call.neighbours, Graph) and bias.shape == (rows, heads):  # an added loop has bias 0
        return {"edge_bias": nn.functional.pad(bias, (0, 0, 0, 1))[call.all_edges().index]}
    broadcastable("score_bias", bias.shape, (*call.lead, heads, call.targets, call.sources), "(..., heads, N, M)")
    return {"score_bias": bias}


def check_batches(rule: Neighbours, weight: Any, source: Tokens, target: Tokens | None) -> None:
    """Refuse a batch that is not sorted, on one side only, or where units have fixed places."""
    batches = [t.batch for t in (source, target) if t is not None]
    if all(b is None for b in batches):
        return
    if any(b is None for b in batches):
        raise ValueError("expected batch for targets and sources, got one; pass source=Tokens(..., batch=) and batch=")
    if isinstance(weight, Static) or rule.fixed_places:
        raise ValueError(f"batch= is refused where units have fixed places, got {rule}; use leading dimensions")
    for b in batches:
        assert b is not None
        if compiling():
            _check_order(b)
        elif readable(b):
            derived(partial(_check_order, b), "sorted", b)


def _check_order(batch: Tensor) -> None:
    text = "expected batch sorted ascending, got a smaller number after a larger one; sort the tokens by graph"
    values(batch[1:] >= batch[:-1], ValueError, text)
    values(batch[:1] >= 0, ValueError, "expected batch ≥ 0", batch[:1])


def check_pair_mask(mask: Tensor | None, lead: tuple[int, ...], heads: int, n: int, m: int, device: Any) -> None:
    """Refuse a pair mask that is not bool or does not broadcast."""
    bool_mask("pair_mask", mask)
    if mask is not None:
        same_device("pair_mask", mask, device)
        broadcastable("pair_mask", mask.shape, (*lead, heads, n, m), "(..., heads, N, M)")


def check_read(rule: Neighbours, weight: Any, positions: Any, coordinates: Any, grid: Any) -> None:
    """Refuse a keyword that nothing here reads. A person's own rules may read any."""
    kind = getattr(weight, "spec_name", type(weight).__name__)
    known_rule = type(rule).__module__.startswith("mpnn.")
    places = getattr(weight, "position", None) is not None or getattr(weight, "score_bias", None) is not None
    if positions is not None and reads_nothing_else(weight) and not places:
        raise ValueError(
            f"positions would be ignored by {kind} without a position or score_bias module; leave them out"
        )
    if coordinates is not None and known_rule and not (rule.reads_tokens or reads_offset(weight)):
        raise ValueError(f"coordinates would be ignored by {rule} with {kind}; leave them out")
    if grid is not None and known_rule and not rule.reads_grid:
        raise ValueError(f"grid would be ignored by {rule}; leave it out")


def reads_nothing_else(weight: Any) -> bool:
    """Whether a weight rule is one of ours, of which we know what it reads."""
    return type(weight) in (Static, SharedKernel, EdgeLearned, QKSoftmax) or hasattr(weight, "spec_name")


def reads_offset(weight: Any) -> bool:
    """Whether a weight rule may read offsets: a network that does, a score function, a person's own rule."""
    if isinstance(weight, EdgeLearned):
        network = weight.network
        return network.reads_offset is not False if isinstance(network, EdgeNetwork) else weight.takes_pairs
    return not reads_nothing_else(weight) or getattr(weight, "score", None) is not None


def check_offsets(rule: Neighbours, weight: Any, source: Tokens, target: Tokens | None) -> None:
    """Refuse coordinates on one side only, and a network of offsets without any or of another width."""
    ends = [t for t in (source, target) if t is not None]
    given = [t.coordinates for t in ends if t.coordinates is not None]
    if given and len(given) < len(ends):
        raise ValueError("expected coordinates of sources and targets, got those of one; pass Tokens with coordinates")
    network = getattr(weight, "network", None)
    if not (isinstance(network, EdgeNetwork) and network.reads_offset):
        return
    axes = given[0].shape[-1] if given else rule.axes
    if not axes:
        raise ValueError(f"expected coordinates= for {type(network).__name__}, since {rule} has no offsets, got None")
    wanted = getattr(network, "axes", axes)
    if axes != wanted:
        raise ValueError(f"expected offsets of {wanted} axes for {type(network).__name__}, got {axes}")


def check_tokens(weight: Weight, source: Tokens, target: Tokens | None, width: int | None) -> None:
    """Refuse tokens of a wrong width, dtype, device, or with other leading dimensions than the sources."""
    parameter = next((p for p in weight.parameters() if p.is_floating_point()), None)
    sets = [("x", source, width)]
    if target is not None and target is not source:
        sets = [("x_source", source, width), ("x_target", target, weight.target_width())]
    for name, tokens, width in sets:
        x = tokens.x
        if width is not None and x.shape[-1] != width:
            raise ValueError(
                f"expected {name} of shape (..., N, {width}) for {type(weight).__name__}, got {tuple(x.shape)}"
            )
        if x.shape[:-2] != source.x.shape[:-2]:
            raise ValueError(
                f"expected sources and targets of the same leading dimensions, got {tuple(source.x.shape)} "
                f"and {tuple(x.shape)}"
            )
        same_device(name, x, source.x.device)
        if parameter is not None:
            if parameter.device != x.device:
                raise ValueError(f"expected {name} on {parameter.device}, as the layer's parameters, got {x.device}")
            if not autocasting(x.device.type):
                same_dtype(name, x.dtype, parameter.dtype)


def bind(
    rule: Neighbours, weight: Weight, training: bool, x: Any, edges: dict[str, Any], given: dict[str, Any]
) -> Call:
    """The call of a layer. ``edges``: edge_index, edge_attr, edge_type, edge_weight; ``given``: the other arguments."""
    check_read(rule, weight, *(given.get(n) for n in ("positions", "coordinates", "grid")))
    keys, values = key_and_value(weight, given.get("source"))
    source, target = token_sets(rule, x, keys, {n: given.get(n) for n in FIELDS})
    one_set, m = target is source, source.x.shape[-2]
    seen_twice = keys is x
    own = rule.target_count(m, source)
    if own is not None and target is not None and target.x.shape[-2] != own:
        raise ValueError(f"expected {own} target tokens for {rule}, got {int(target.x.shape[-2])}")
    n = own if target is None else target.x.shape[-2]
    assert n is not None
    rule.check(n, m, source if target is None or one_set else (source, target))
    check_batches(rule, weight, source, target)
    check_offsets(rule, weight, source, target)
    check_tokens(weight, source, target, weight.width() if values is None else check_values(weight, source, values))
    if weight.normalise == "symmetric" and not one_set:
        raise ValueError("normalise='symmetric' weighs both ends by degrees of one set of tokens, got two sets")
    lead, pair_mask = tuple(source.x.shape[:-2]), given.get("pair_mask")
    check_pair_mask(pair_mask, lead, weight.heads or 1, n, m, source.x.device)
    if given.get("score_bias") is not None and not isinstance(weight, QKSoftmax):
        kind = getattr(weight, "spec_name", type(weight).__name__)
        raise ValueError(f"score_bias would be ignored by {kind}, whose weights are no scores; leave it out")
    explicit, attr, scale, rows = list_edges(
        rule,
        n,
        m,
        one_set or seen_twice,
        *(edges.get(k) for k in ("edge_index", "edge_attr", "edge_type", "edge_weight")),
    )
    clean = source.clean()
    clean_target = clean if one_set else None if target is None else target.clean()
    call = Call(
        rule, weight, n, m, lead, {"x_source": clean.x}, (clean, clean_target), explicit,
        source_mask=source.mask, target_mask=None if target is None else target.mask, pair_mask=pair_mask,
        dropout=weight.dropout if training else 0.0, one_set=seen_twice, transformed=bool(transforms()),
    )  # fmt: skip
    attach(call, attr, scale, rows)
    if given.get("score_bias") is not None:
        call.constants |= read_bias(call, given["score_bias"], weight.heads or 1, rows)
    if target is None:
        call.centres = rule.centres(source, source.x.device)
        if call.centres is None and (weight.reads_target or weight.root is not None):
            reader = "root" if weight.root is not None else type(weight).__name__
            raise ValueError(f"expected (x_source, x_target) as first argument, since {reader} reads the target, got x")
    place(call, one_set or seen_twice)
    if values is not None and source.mask is not None:
        values = values.masked_fill(~source.mask[..., None], 0)
    fill(call, clean.x, None if clean_target is None else clean_target.x, values)
    return call


def fill(call: Call, x_source: Tensor, x_target: Tensor | None, values: Tensor | None = None) -> None:
    """The tensors over tokens that kernels read, from tokens that were checked and cleaned."""
    weight = call.weight
    if x_target is None and call.centres is not None:
        x_target = x_source.index_select(-2, call.centres)
    nodes = {"x_source": x_source} if x_target is None else {"x_source": x_source, "x_target": x_target}
    made = weight.nodes(x_source, x_target) if values is None else weight.nodes(x_source, x_target, values)
    call.nodes = nodes | call.constants | made
    rotate(call)
    value = weight.value
    if call.source_mask is not None and getattr(value, "bias", None) is not None and "query" not in call.nodes:
        rows = call.source_mask[..., None] if weight.heads is None else call.source_mask[..., None, :, None]
        call.nodes["value"] = call.nodes["value"].masked_fill(~rows, 0)  # value(0) is the bias, not 0


def same_places(rule: Neighbours) -> bool:
    """Whether the pairs of a call depend on the sizes and the edges alone, not on the tokens."""
    return isinstance(rule, Graph) or (rule.enumerates and not rule.reads_tokens)
