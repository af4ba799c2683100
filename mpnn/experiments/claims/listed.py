"""The list of experiments, in the order of the lecture: a claim is one file and one line here."""

from __future__ import annotations

from mpnn.experiments.claims import (
    cost,
    data_efficiency,
    extrapolation,
    family,
    heads,
    landmine,
    long_range,
    nodes,
    permutation,
    published,
)
from mpnn.experiments.claims.base import Claim

CLAIMS: dict[str, Claim] = {
    claim.name: claim
    for claim in (
        permutation.CLAIM,
        landmine.CLAIM,
        extrapolation.CLAIM,
        long_range.CLAIM,
        cost.CLAIM,
        heads.CLAIM,
        family.CLAIM,
        nodes.CLAIM,
        data_efficiency.CLAIM,
        published.CLAIM,
    )
}
