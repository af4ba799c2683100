"""A case made into a call: the layer, the arguments, and the tensors whose gradients are compared."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from helpers.cases import PLACES, RULES, Place, Rule
from helpers.oracle_pairs import pairs_of
from mpnn import MessagePassing, Tokens
from mpnn.neighbours import AllTokens, Graph


@dataclasses.dataclass
class Trial:
    """A layer with the arguments of one call."""

    layer: MessagePassing
    x: Any
    arguments: dict[str, Any]
    leaves: dict[str, Tensor]

    def __call__(self, **more: Any) -> Any:
        return self.layer(self.x, **self.arguments, **more)

    def plan(self) -> Any:
        return self.layer.plan(self.x, **self.arguments)

    def able(self) -> list[str]:
        """The kernels that can run this call, besides the reference."""
        from mpnn.plan import NAMES

        refused = self.plan().reasons
        return [name for name in NAMES if name not in refused and name != "reference"]


def fixed_targets(place: Place) -> int | None:
    """The number of targets, where the neighbourhood has its own."""
    return place.make().target_count(place.sources, Tokens(torch.ones(place.sources, 1), grid=place.call.get("grid")))


def meets(place: Place, rule: Rule) -> bool:
    """Whether a neighbourhood and a weight can meet, by the contract."""
    made, needs = place.make(), rule.needs
    unlimited = isinstance(made, AllTokens) and made.max_tokens is None
    one_set = place.targets is None and fixed_targets(place) is None
    if isinstance(made, Graph) and made.self_loops and "two sets" in needs:
        return False
    return not (
        ("pairs" in needs and (made.pairs is None or place.batch is not None))
        or ("relations" in needs and unlimited)
        or ("one set" in needs and not one_set)
        or ("offset" in needs and made.axes == 0)
    )


def product(which: str = "all") -> list[tuple[str, str]]:
    """Names of the pairs of cases that can meet, of a place and a rule.

    "all": one of the two is a main one. "few": both are, and of the others each with the first two that it meets.
    """
    found: list[tuple[str, str]] = []
    times: Counter[str] = Counter()
    for place, p in PLACES.items():
        for rule, r in RULES.items():
            if not (p.main or r.main) or not meets(p, r):
                continue
            lesser = rule if p.main else place
            if which == "all" or (p.main and r.main) or times[lesser] < 2:
                found.append((place, rule))
            times[lesser] += not (p.main and r.main)
    return found


def trial(
    place: str, rule: str, *, dtype: torch.dtype = torch.float64, lead: tuple[int, ...] = (2,), mask: str | None = None,
    pair_mask: str | None = None, edge_weight: str | None = None, positions: bool = False, grad: bool = True,
) -> Trial:  # fmt: skip
    """The call of a case.

    ``mask``: "one", "batched", "all" · ``pair_mask``: "one", "heads" · ``edge_weight``: "one", "batched".
    """
    p, r = PLACES[place], RULES[rule]
    neighbours = p.make()
    layer = MessagePassing(neighbours, r.make(neighbours)).to(dtype)
    if layer.weight.bias is not None:  # which starts at zero on graphs
        torch.nn.init.normal_(layer.weight.bias)
    lead = () if p.batch is not None else lead
    if p.own:
        second = p.targets if "target" in r.needs else None
    else:
        second = p.targets
    if "two sets" in r.needs and second is None:
        second = fixed_targets(p) or p.sources
    widths = r.channels if isinstance(r.channels, tuple) else (r.channels, r.channels)
    leaves: dict[str, Tensor] = {}

    def leaf(name: str, *shape: int) -> Tensor:
        leaves[name] = torch.randn(*shape, dtype=torch.float64).to(dtype).requires_grad_(grad)
        return leaves[name]

    arguments: dict[str, Any] = {k: v for k, v in p.call.items() if k != "grid"}
    source = {"x": leaf("source", *lead, p.sources, widths[0]), "grid": p.call.get("grid")}
    target = None if second is None else {"x": leaf("target", *lead, second, widths[1])}
    places = r.coordinates and neighbours.axes == 0
    for side in (source, target):
        if side is not None and places:
            name = "coordinates of " + ("sources" if side is source else "targets")
            side["coordinates"] = leaf(name, *lead, side["x"].shape[-2], 2)
        if side is not None and mask is not None:
            side["mask"] = make_mask(mask, lead, side["x"].shape[-2])
        if side is not None and p.batch is not None:
            side["batch"] = p.batch[side is target]
    n = second if second is not None else fixed_targets(p) or p.sources
    edge_index = arguments.get("edge_index", getattr(neighbours, "edge_index", None))
    if edge_index is not None:
        count = edge_index.shape[1]
    else:
        count = len(pairs_of(neighbours, n, p.sources, batch=p.batch, grid=source["grid"]))
    if r.attr:
        arguments["edge_attr"] = leaf("edge_attr", *lead, count, r.attr)
    if edge_weight is not None and layer.weight.normalise != "softmax":
        shape = (*lead, count) if edge_weight == "batched" else (count,)
        arguments["edge_weight"] = leaf("edge_weight", *shape).detach().abs().add(0.1).requires_grad_(grad)
        leaves["edge_weight"] = arguments["edge_weight"]
    if pair_mask is not None:
        heads = layer.weight.heads or 1
        shape = (n, p.sources) if pair_mask == "one" else (*lead, heads, n, p.sources)
        arguments["pair_mask"] = torch.rand(shape) < 0.6
    if positions and (getattr(layer.weight, "position", None) or getattr(layer.weight, "score_bias", None)):
        arguments["positions"] = torch.randint(0, 9, (*lead, p.sources if second is None else second))
    x, arguments = passed(source, target, arguments, p.own or "two sets" in r.needs)
    leaves |= {f"parameter {k}": v for k, v in layer.named_parameters()}
    return Trial(layer, x, arguments, leaves)


def passed(source: dict, target: dict | None, arguments: dict, as_pair: bool) -> tuple[Any, dict]:
    """One set by keywords, two as a pair or with source=, as people write them."""
    given = [{k: v for k, v in side.items() if v is not None} for side in (source, target) if side is not None]
    if target is None:
        x = given[0].pop("x")
        return x, arguments | given[0]
    plain = [side["x"] if len(side) == 1 else Tokens(**side) for side in given]
    return (tuple(plain), arguments) if as_pair else (plain[1], arguments | {"source": plain[0]})


def make_mask(kind: str, lead: tuple[int, ...], n: int) -> Tensor:
    """A mask that leaves at least one token (but for "all")."""
    if kind == "all":
        return torch.zeros(n, dtype=torch.bool)
    mask = torch.rand(*lead, n) < 0.6 if kind == "batched" else torch.rand(n) < 0.6
    mask[..., int(torch.randint(n, ()))] = True
    return mask
