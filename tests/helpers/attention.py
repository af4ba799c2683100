"""`attend`: its cases, and its oracle as a loop over heads, targets and sources."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn

from helpers.calls import fixed_targets, make_mask
from helpers.cases import PLACES
from helpers.oracle_pairs import pairs_of, positions_of
from mpnn import attend
from mpnn.neighbours import Graph
from mpnn.positions import ALiBi, RelativeBias

HEADS = 4


def sharpen(scores: Tensor, pairs: Any) -> Tensor:
    """A score function that reads the pairs."""
    return torch.tanh(scores) * (1 + (pairs.source % 3)[:, None])


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "masked": {"mask": True},
    "pair mask": {"mask": True, "pair_mask": (HEADS,)},
    "one pair mask": {"pair_mask": ()},
    "grouped": {"kv_heads": 2, "scale": 0.3, "mask": True},
    "wide values": {"width": 5},
    "bias": {"bias": (HEADS,), "mask": True},
    "one bias": {"bias": (1,), "kv_heads": 1},
    "bias of edges": {"bias": "edges", "mask": True},
    "ALiBi": {"module": ALiBi, "mask": True},
    "RelativeBias": {"module": lambda heads: RelativeBias.offsets(heads, 3)},
    "score": {"score": sharpen, "pair_mask": ()},
}


def cases() -> list[tuple[str, str]]:
    """Every neighbourhood that brings its own edges; the main ones with every variant."""
    first = ("masked", "pair mask")
    made = [
        (p, v)
        for p, place in PLACES.items()
        if "edge_index" not in place.call and getattr(place.make(), "loop_weight", 1.0) == 1.0
        for v in VARIANTS
        if place.main or v in first
    ]
    return [(p, v) for p, v in made if v != "bias of edges" or isinstance(PLACES[p].make(), Graph)]


class Attention:
    """One call of attend, with its leaves."""

    def __init__(self, place: str, variant: str, dtype: torch.dtype = torch.float64, grad: bool = True) -> None:
        p, v = PLACES[place], VARIANTS[variant]
        self.rule, self.place, self.variant = p.make(), p, v
        lead = () if p.alone else (2,)
        m = p.sources
        n = fixed_targets(p) or p.targets or m
        kv, width = v.get("kv_heads", HEADS), v.get("width", 3)
        self.leaves: dict[str, Tensor] = {}
        shapes = {"q": (*lead, HEADS, n, 3), "k": (*lead, kv, m, 3), "v": (*lead, kv, m, width)}
        edges = isinstance(self.rule, Graph)
        if v.get("bias") == "edges":
            shapes["bias"] = (self.rule.edge_index.shape[1], HEADS)
        elif "bias" in v:
            shapes["bias"] = (*(lead if len(v["bias"]) and v["bias"][0] > 1 else ()), *v["bias"], n, m)
        for name, shape in shapes.items():
            self.leaves[name] = torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_(grad)
        self.options: dict[str, Any] = {"scale": v.get("scale"), "grid": p.call.get("grid"), "score": v.get("score")}
        if "module" in v:
            self.options["score_bias"] = module = v["module"](HEADS).to(dtype)
            self.leaves |= dict(module.named_parameters())
        if "bias" in v:
            self.options["score_bias"] = self.leaves["bias"]
        if v.get("mask"):
            self.options["mask"] = make_mask("batched", lead, m)
        if "pair_mask" in v:
            self.options["pair_mask"] = torch.rand(*(lead if v["pair_mask"] else ()), *v["pair_mask"], n, m) < 0.6
        if "source coordinates" in p.call:
            self.options["coordinates"] = p.coordinates if p.targets is not None else p.coordinates[0]
        if p.batch is not None and not edges:
            self.options["batch"] = p.batch

    def __call__(self, **more: Any) -> Any:
        return attend(*(self.leaves[t] for t in "qkv"), self.rule, **self.options, **more)

    def able(self, names: tuple[str, ...]) -> list[str]:
        """The kernels that can run this call."""
        found = []
        for name in names:
            try:
                self(kernel=name)
            except ValueError as error:
                if "expected a kernel that can run" not in str(error):
                    raise
            else:
                found.append(name)
        return found

    def oracle(self) -> Tensor:
        """The output as a loop."""
        q, k, v = (self.leaves[t] for t in "qkv")
        lead, (heads, n, d), m = q.shape[:-3], q.shape[-3:], k.shape[-2]
        bias, pair_mask, batch = (self.options.get(t) for t in ("score_bias", "pair_mask", "batch"))
        mask = self.options.get("mask")
        seen = {"places": self.place.coordinates, "masks": (mask, None), "one_set": self.place.targets is None}
        pairs = pairs_of(self.rule, n, m, batch=batch, grid=self.options["grid"], **seen)
        scale = self.options["scale"] or 1 / math.sqrt(d)
        rows = []
        for entry in itertools.product(*map(range, lead)):
            alive = [True] * m if mask is None else mask.expand(*lead, m)[entry].tolist()
            places = [torch.tensor(t) for t in positions_of(self.rule, alive, n, n == m and not batch, batch)]
            for h, i in itertools.product(range(heads), range(n)):
                scores, values = [], []
                for p in pairs:
                    j, kv = p.source, h // (heads // k.shape[-3])
                    if p.target != i or not alive[j]:
                        continue
                    if pair_mask is not None and not pair_mask.expand(*lead, heads, n, m)[(*entry, h, i, j)]:
                        continue
                    score = scale * q[(*entry, h, i)] @ k[(*entry, kv, j)]
                    if isinstance(bias, nn.Module):
                        score = score + bias(places[1][i], places[0][j])[h]
                    elif bias is not None and self.variant["bias"] == "edges":
                        score = score + (bias[p.row, h] if p.row >= 0 else 0)
                    elif bias is not None:
                        score = score + bias.expand(*lead, heads, n, m)[(*entry, h, i, j)]
                    if self.options["score"] is sharpen:
                        score = torch.tanh(score) * (1 + j % 3)
                    scores.append(score)
                    values.append(v[(*entry, kv, j)])
                if scores:
                    rows.append(torch.softmax(torch.stack(scores), 0) @ torch.stack(values))
                else:
                    rows.append(torch.zeros(v.shape[-1], dtype=v.dtype))
        return torch.stack(rows).reshape(*lead, heads, n, v.shape[-1])
