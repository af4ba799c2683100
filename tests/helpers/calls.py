"""A case made into a call: the layer, the arguments, and the tensors whose gradients are compared."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from helpers.cases import PLACES, RULES, Place, Rule
from helpers.oracle_pairs import pairs_of
from mpnn import MessagePassing, Tokens, use_kernels
from mpnn.neighbours import AllTokens, Graph
from mpnn.plan import BY_NAME, NAMES, Plan


@dataclasses.dataclass
class Trial:
    """A layer with the tensors of one call by name: "source", "target mask", "edge_index", "pair_mask", and so on."""

    layer: MessagePassing
    tensors: dict[str, Tensor]
    grid: tuple[int, ...] | None = None
    as_pair: bool = False

    @property
    def leaves(self) -> dict[str, Tensor]:
        """What has a gradient: tokens, edge data, coordinates and all parameters."""
        named = self.tensors | {f"parameter {k}": v for k, v in self.layer.named_parameters()}
        return {k: t for k, t in named.items() if t.requires_grad}

    def bound(self) -> tuple[Any, dict[str, Any]]:
        """(x, the other arguments), one set by keywords, two as a pair or with source=, as people write them."""
        ends = ("source", "target")
        arguments = {k: t for k, t in self.tensors.items() if k.split()[0] not in ends}
        fields: list[dict[str, Any]] = []
        for end in ends:
            if end in self.tensors:
                names = [k for k in self.tensors if k.startswith(end + " ")]
                fields.append({"x": self.tensors[end]} | {k.split()[1]: self.tensors[k] for k in names})
        if self.grid is not None:
            fields[0]["grid"] = self.grid
        if len(fields) == 1:
            return fields[0].pop("x"), arguments | fields[0]
        plain = [f["x"] if len(f) == 1 else Tokens(**f) for f in fields]
        return (tuple(plain), arguments) if self.as_pair else (plain[1], arguments | {"source": plain[0]})

    def __call__(self, **more: Any) -> Any:
        x, arguments = self.bound()
        return self.layer(x, **arguments, **more)

    def plan(self) -> Plan:
        x, arguments = self.bound()
        return self.layer.plan(x, **arguments)

    def able(self) -> list[str]:
        """The kernels that can run this call, besides the reference."""
        spec = self.plan().spec
        return [name for name in NAMES if name != "reference" and not BY_NAME[name].unsupported(spec)]

    def mapped(self, change: Callable[[str, Tensor], Tensor]) -> Trial:
        """The same call with other tensors; what had a gradient is a leaf again."""
        made = {k: change(k, t.detach()) for k, t in self.tensors.items()}
        made = {k: t.requires_grad_(self.tensors[k].requires_grad) for k, t in made.items()}
        return dataclasses.replace(self, tensors=made)


def kernels(call: Trial) -> Iterator[str]:
    """Each kernel that can run a call, the reference last, chosen in the body of the loop."""
    for name in [*call.able(), "reference"]:
        with use_kernels(name):
            yield name


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
    fits = not (
        ("pairs" in needs and (made.pairs is None or place.batch is not None))
        or ("relations" in needs and unlimited)
        or ("one set" in needs and not one_set)
        or ("offset" in needs and made.axes == 0)
    )
    weighted = getattr(made, "loop_weight", 1.0) != 1.0
    return fits and not (weighted and rule.make(made).normalise == "softmax")


def product(which: str = "all") -> list[tuple[str, str]]:
    """Names of the pairs of cases that can meet, of a place and a rule.

    "all": one of the two is a main one. "main": both are. "few": also each other one with the first two that it meets.
    """
    found: list[tuple[str, str]] = []
    times: Counter[str] = Counter()
    for place, p in PLACES.items():
        for rule, r in RULES.items():
            if not (p.main or r.main) or not meets(p, r):
                continue
            lesser = rule if p.main else place
            if which == "all" or (p.main and r.main) or (which == "few" and times[lesser] < 2):
                found.append((place, rule))
            times[lesser] += not (p.main and r.main)
    return found


def trial(
    place: str, rule: str, *, dtype: torch.dtype = torch.float64, lead: tuple[int, ...] = (2,), mask: str | None = None,
    pair_mask: str | None = None, edge_weight: str | None = None, positions: bool = False, grad: bool = True,
) -> Trial:  # fmt: skip
    """The call of a case.

    ``mask``: "one", "batched", "end", "all" · ``edge_weight``: "one", "batched" · ``pair_mask``: "one", "heads",
    "rows", "columns".
    """
    p, r = PLACES[place], RULES[rule]
    neighbours = p.make()
    layer = MessagePassing(neighbours, r.make(neighbours)).to(dtype)
    if layer.weight.bias is not None:  # which starts at zero on graphs
        torch.nn.init.normal_(layer.weight.bias)
    lead = () if p.alone else lead
    if p.own:
        second = p.targets if "target" in r.needs else None
    else:
        second = p.targets
    if "two sets" in r.needs and second is None:
        second = fixed_targets(p) or p.sources
    widths = r.channels if isinstance(r.channels, tuple) else (r.channels, r.channels)
    tensors: dict[str, Tensor] = {}

    def leaf(name: str, *shape: int) -> None:
        tensors[name] = torch.randn(*shape, dtype=torch.float64).to(dtype).requires_grad_(grad)

    for end, count, width in (("source", p.sources, widths[0]), ("target", second, widths[1])):
        if count is None:
            continue
        leaf(end, *lead, count, width)
        if r.coordinates and neighbours.axes == 0:
            leaf(f"{end} coordinates", *lead, count, 2)
        if mask is not None:
            tensors[f"{end} mask"] = make_mask(mask, lead, count)
        if r.axes:
            tensors[f"{end} positions"] = torch.randint(0, 6, (*lead, count, r.axes))
        if p.batch is not None:
            tensors[f"{end} batch"] = p.batch[end == "target"]
    grid = p.call.get("grid")
    for name, t in p.call.items():
        if name.endswith("coordinates"):
            tensors[name] = t.to(dtype).requires_grad_(grad and r.coordinates)
        elif name != "grid":
            tensors[name] = t
    if second is not None and p.targets is None and "source coordinates" in p.call:
        tensors["target coordinates"] = tensors["source coordinates"]
    n = second if second is not None else fixed_targets(p) or p.sources
    edge_index = tensors.get("edge_index", getattr(neighbours, "edge_index", None))
    if edge_index is None:
        listed = pairs_of(neighbours, n, p.sources, batch=p.batch, grid=grid, **seen(tensors))
    else:
        listed = edge_index[0]
    if r.attr:
        leaf("edge_attr", *lead, len(listed), r.attr)
    if edge_weight is not None and layer.weight.normalise != "softmax":
        leaf("edge_weight", *(lead if edge_weight == "batched" else ()), len(listed))
        tensors["edge_weight"] = tensors["edge_weight"].detach().abs().add(0.1).requires_grad_(grad)
    if pair_mask is not None:
        heads = layer.weight.heads or 1
        kinds = {"one": (n, p.sources), "rows": (heads, n, 1), "columns": (*lead, 1, 1, p.sources)}
        tensors["pair_mask"] = torch.rand(kinds.get(pair_mask, (*lead, heads, n, p.sources))) < 0.6
    if (
        positions
        and not r.axes
        and (getattr(layer.weight, "position", None) or getattr(layer.weight, "score_bias", None))
    ):
        tensors["positions"] = torch.randint(0, 9, (*lead, p.sources if second is None else second))
    return Trial(layer, tensors, grid, p.own or "two sets" in r.needs)


def seen(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """What rules that read tokens see of a call, as ``pairs_of`` takes it."""
    ends = ("source", "target" if "target" in tensors else "source")
    places = [tensors.get(f"{end} coordinates", tensors[end]) for end in ends]
    return {"places": places, "masks": [tensors.get(f"{end} mask") for end in ends], "one_set": ends[0] == ends[1]}


def make_mask(kind: str, lead: tuple[int, ...], n: int) -> Tensor:
    """A mask that leaves at least one token (but for "all")."""
    if kind == "all":
        return torch.zeros(n, dtype=torch.bool)
    if kind == "end":  # padding
        return torch.arange(n) < torch.randint(1, n + 1, (*lead, 1))
    mask = torch.rand(*lead, n) < 0.6 if kind == "batched" else torch.rand(n) < 0.6
    mask[..., int(torch.randint(n, ()))] = True
    return mask
