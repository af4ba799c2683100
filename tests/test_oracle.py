"""The reference kernel against the dense oracle, a Python loop: outputs, gradients, returned weights of every pair."""

from __future__ import annotations

import torch

from helpers.calls import Trial, product, trial
from helpers.compare import differences, run
from helpers.oracle import oracle
from helpers.over import over
from mpnn import use_kernels
from mpnn.neighbours import Graph

FEW = set(product("few"))
VARIANTS = (
    {},
    {"mask": "batched", "edge_weight": "batched", "positions": True},
    {"mask": "one", "pair_mask": "heads", "edge_weight": "one"},
)
THIN = ({"pair_mask": "rows"}, {"pair_mask": "columns"})


@over(product())
def test_reference_is_the_oracle(place: str, rule: str, seed: int) -> None:
    wrong = []
    for variant in [*VARIANTS, THIN[seed % 2]] if (place, rule) in FEW else [VARIANTS[1 + seed % 2]]:
        call = trial(place, rule, **variant)
        with use_kernels("reference"):
            mine = run(call, call.leaves)
        theirs = run(lambda call=call: oracle(call), call.leaves)
        found = differences(mine, theirs, torch.float64) + returned_weights(call)
        wrong += [f"{variant}: {text}" for text in found]
    assert not wrong, "\n".join(wrong)


def returned_weights(call: Trial) -> list[str]:
    """What differs between the edges and weights that a call returns and those that the oracle used."""
    with torch.no_grad():
        edges = call(return_weights=True)[1]
        _, pairs, weight = oracle(call)
    graph = isinstance(call.layer.neighbours, Graph)
    mask = call.tensors.get("source mask")
    gone = (
        set() if mask is None else {i for i, alive in enumerate(mask.reshape(-1, mask.shape[-1]).any(0)) if not alive}
    )
    rows = [e for e, p in enumerate(pairs) if p.row >= 0 or p.target not in gone]  # no loops of masked tokens
    rows = rows if graph else sorted(rows, key=lambda e: (pairs[e].target, pairs[e].source))
    expected = {
        "source": [pairs[e].source for e in rows],
        "target": [pairs[e].target for e in rows],
        "index": [pairs[e].row for e in rows] if graph else None,
    }
    listed = {k: t if (t := getattr(edges, k)) is None else t.tolist() for k in expected}
    if listed != expected:
        return [f"returned edges {listed}, expected {expected}"]
    weight = weight.index_select(-4 if call.layer.weight.groups else -2, torch.tensor(rows, dtype=torch.int64))
    if edges.weight.shape != weight.shape:
        return [f"returned weights {tuple(edges.weight.shape)}, expected {tuple(weight.shape)}"]
    error = float((edges.weight - weight).abs().max()) if weight.numel() else 0.0
    return [] if error <= 1e-10 else [f"returned weights off by {error:g}"]
