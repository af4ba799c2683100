"""Binding: a call's arguments, checked at the door and joined into what kernels read."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mpnn.call import Call
from mpnn.checks import bool_mask, broadcastable, same_device, transforms
from mpnn.edge_data import attach, list_edges
from mpnn.neighbours import Graph, Neighbours
from mpnn.places import place, rotate
from mpnn.readers import check_offsets, check_read
from mpnn.spec import unwrap
from mpnn.token_sets import check_batches, check_tokens, check_values, key_and_value, token_sets
from mpnn.weights import QKSoftmax, Weight

FIELDS = ("mask", "positions", "coordinates", "batch", "grid")


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


def check_pair_mask(mask: Tensor | None, lead: tuple[int, ...], heads: int, n: int, m: int, device: Any) -> None:
    """Refuse a pair mask that is not bool or does not broadcast."""
    bool_mask("pair_mask", mask)
    if mask is not None:
        same_device("pair_mask", mask, device)
        broadcastable("pair_mask", mask.shape, (*lead, heads, n, m), "(..., heads, N, M)")


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
    if target is None and rule.reads_tokens:
        raise ValueError(
            f"expected (x_source, x_target) as first argument, since {rule} compares its {int(n)} targets with the "
            "sources, got x"
        )
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
    unwrap(call)
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
    return rule.foreseen and (isinstance(rule, Graph) or (rule.enumerates and not rule.reads_tokens))
