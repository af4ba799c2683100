"""Reasons against a call that several kernels have in common."""

from __future__ import annotations

from mpnn.spec import Spec

UNLISTED = "needs a listed neighbourhood: Graph, Grid, Window, or a rule of your own with listed = True"
FORWARD_MODE = "forward-mode runs through the reference, as plain torch operations"
TRACED = "torch.compile traces the reference as one block"
NO_PRODUCTS = "needs QKSoftmax or attend: scaled products of queries and keys"
EDGE_FEATURES = "edge features are added to keys and values pair by pair"
WIDE_EDGES = "edge features in key and value would hold a tensor over edges and channels"


def no_memory(spec: Spec) -> list[str]:
    """Why code that reads numbers at addresses, as compiled code and sparse products do, cannot read these tensors."""
    if spec.memoryless:
        return ["tensors without memory of their own, as fakes and wrappers of others, have no address to read at"]
    return []


def no_products(spec: Spec) -> list[str]:
    """Why a call's scores are no scaled products of queries and keys with a bias that is at hand."""
    why = []
    if spec.weight not in ("QKSoftmax", "attend"):
        why.append(NO_PRODUCTS)
    if spec.score:
        why.append("a score function changes scores pair by pair")
    if "jvp" in spec.transforms:
        why.append(FORWARD_MODE)
    if spec.wrapped:
        why.append("masks or a score bias that a functional transform maps over")
    if spec.transforms and spec.score_bias == "module":
        why.append("a module's score bias under a functional transform")
    return why


def no_fused_products(spec: Spec) -> list[str]:
    """Why a call is no scaled products that a fused dense kernel knows."""
    why = no_products(spec)
    if spec.edge_attr:
        why.append(EDGE_FEATURES)
    if spec.score_bias == "edges":
        why.append("a bias per edge is not dense")
    if spec.score_channels != spec.channels // max(1, spec.kv_heads):
        why.append("keys and values of different widths leave the fused path")
    if spec.transforms and spec.dropout:
        why.append("dropout under a functional transform")
    return why


def no_correlation(spec: Spec) -> list[str]:
    """Why this call is no correlation over one sequence."""
    why = []
    if spec.weight != "SharedKernel" or spec.neighbours not in ("AllTokens", "Full"):
        why.append("needs AllTokens(max_tokens=m) or Full with SharedKernel: one weight per distance of two tokens")
    elif spec.relations < (spec.sources if spec.causal else spec.sources + spec.targets - 1):
        why.append(
            "AllTokens() without max_tokens counts no distances: a weight built for edges weighs all pairs alike"
        )
    if spec.fixed:
        why.append("fixed=True has no kernel: every weight is 1")
    if spec.reduce != "sum" or spec.normalise is not None:
        why.append("sums without normalisation only")
    if spec.pair_mask or spec.edge_weight or spec.edge_attr:
        why.append("pair_mask and edge data make the kernel depend on the place")
    if spec.ragged:
        why.append("batch: each graph would be a sequence of its own; pad them to leading dimensions with mask=")
    if spec.targets == 0 or spec.sources == 0:
        why.append("there is no token to convolve")
    return why
