"""merge: attention over a union, each part by its best kernel, joined by log-sum-exp.

The parts are disjoint, so that no pair counts twice, and those that list their pairs leave out the others'. In the
backward each part runs with the joint output and log-sum-exp, see ``mpnn.partial``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from mpnn.kernels.base import Call
from mpnn.partial import Part, attention
from mpnn.reasons import FORWARD_MODE, NO_PRODUCTS
from mpnn.spec import Spec, spec_of

name = "merge"


class PartKernel(Protocol):
    """A kernel that can run a part: one that also has ``partial``."""

    name: str

    def unsupported(self, spec: Spec) -> list[str]: ...

    def partial(self, call: Call) -> Part: ...


PARTS: list[PartKernel] = []  # best first, filled where the kernels are listed: no kernel imports another


def unsupported(spec: Spec) -> list[str]:
    """Why this call is no union of parts."""
    why = []
    if spec.expression is not None:
        why.append(f"its pairs are those of one rule, {spec.neighbours}, which runs alone")
    elif not spec.union:
        why.append("needs a union, a | b, whose parts are joined")
    if spec.weight not in ("QKSoftmax", "attend"):
        why.append(NO_PRODUCTS)
    if spec.edge_attr:
        why.append("edge features are numbered over all pairs of the union")
    if "jvp" in spec.transforms:
        why.append(FORWARD_MODE)
    if spec.score:
        why.append("a score function changes scores pair by pair")
    if spec.dropout:
        why.append("dropout acts on the joint weights, which no part knows")
    if spec.learned_bias:
        why.append("a learned score bias needs the joint weights, which no part knows")
    for part in spec.union if not why else ():
        if which(part) is None:
            reasons = "; ".join(f"{k.name}: {', '.join(k.unsupported(part))}" for k in PARTS)
            why.append(f"no kernel for its part {part.neighbours} ({reasons})")
    return why


def which(part: Spec) -> PartKernel | None:
    """The best kernel for a part."""
    return next((k for k in PARTS if not k.unsupported(part)), None)


def run(call: Call, reference: Callable[[Call], Tensor]) -> Tensor:
    """The aggregate: (..., N, C)."""
    rule: Any = call.neighbours
    found = []
    for neighbours, part in zip(rule.parts(), spec_of(call, call.weight).union, strict=True):
        alone = call.again()
        alone.neighbours, alone.explicit = neighbours, None
        kernel = which(part)
        assert kernel is not None
        found.append(kernel.partial(alone))
    return attention(call, found, reference)
