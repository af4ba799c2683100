"""Attention: ``attend`` as a module, so that listeners of a model's layers hear it and ``swap`` changes its rule."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

from torch import Tensor, nn

from mpnn.attend import bind_attention, run_attention
from mpnn.checks import instance
from mpnn.neighbours import AllTokens, Graph, Grid, Neighbours
from mpnn.neighbours.expression import Union
from mpnn.returned import EdgeWeights, listening, notify, returned


class Attention(nn.Module):
    """Attention of given queries, keys and values: y_i = Σ_{j ∈ N(i)} softmax_j(scale · q_i·k_j) v_j.

    It has no parameters: projections stay where they are. :func:`mpnn.capture_weights` and
    :func:`mpnn.trace_kernels` see its calls, and :func:`mpnn.interop.swap` changes its ``neighbours``.

    Args:
        neighbours: who sends.
        between: whether targets and sources are two sets of tokens, which ``swap`` leaves alone unless it is named.

    Shapes:
        q (..., heads, N, D), k (..., kv_heads, M, D), v (..., kv_heads, M, E) → (..., heads, N, E); the other arguments
        are those of :func:`mpnn.attend`.

    Raises:
        TypeError: where ``neighbours`` is no rule; at the call, what ``attend`` raises.

    Source: Vaswani et al. (2017), `arXiv:1706.03762 <https://arxiv.org/abs/1706.03762>`_.

    Example::

        >>> import torch
        >>> from mpnn.interop.attention import Attention
        >>> from mpnn.neighbours import Window
        >>> q = k = v = torch.ones(2, 5, 4)
        >>> Attention(Window(2, 0))(q, k, v).shape
        torch.Size([2, 5, 4])
    """

    def __init__(self, neighbours: Neighbours, *, between: bool = False) -> None:
        super().__init__()
        self.check_rule(neighbours)
        self.neighbours, self.between = neighbours, between
        self._causal: tuple[Neighbours, Neighbours] | None = None

    def check_rule(self, neighbours: Neighbours) -> None:
        """Raise where this rule cannot say who sends here."""
        instance("neighbours", neighbours, Neighbours, "a rule of mpnn.neighbours")
        if getattr(neighbours, "loop_weight", 1.0) != 1.0:
            raise ValueError("loop_weight would be ignored by a softmax, whose weights sum to 1; leave it at 1")
        check_told(neighbours)
        if neighbours.reads_tokens and type(neighbours).__module__.startswith("mpnn."):
            raise ValueError(f"expected a rule of the tokens' places, got {neighbours}, which compares their features")

    def rule(self, causal: bool) -> Neighbours:
        """The neighbours, or with ``causal`` those of them that stand no later than the target."""
        rule = self.neighbours
        if not causal or rule.causal:
            return rule
        kept = self._causal
        if kept is None or kept[0] is not rule:
            kept = self.__dict__["_causal"] = (rule, earlier(rule))
        return kept[1]

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, return_weights: bool = False, **given: Any) -> Any:
        y, edges = heard(self, q, k, v, self.neighbours, return_weights, **given)
        return (y, edges) if return_weights else y


def check_told(rule: Neighbours, brings: str | None = None) -> None:
    """Refuse a rule that waits for edges or a grid's size at a call that ``brings`` none ("edges", "grid")."""
    if isinstance(rule, Graph) and not rule.built and brings != "edges":
        raise ValueError(
            f"expected the edges in the rule, Graph(edge_index, num_nodes), got {rule}: no call brings any"
        )
    if isinstance(rule, Grid) and rule.size is None and brings != "grid":
        raise ValueError(f"expected the size in the rule, Grid((height, width), …), got {rule}: no call brings grid=")


def heard(
    layer: nn.Module, q: Tensor, k: Tensor, v: Tensor, rule: Neighbours, weights: bool = False, **given: Any
) -> tuple[Tensor, EdgeWeights | None]:
    """``attend``, of which listeners hear as a call of ``layer``; with the weights where they are wanted."""
    call, name = bind_attention(q, k, v, rule, **given)
    y = run_attention(call, name)
    if listening:
        notify(layer, name, call)
    return y, returned(call) if weights else None


def earlier(rule: Neighbours) -> Neighbours:
    """The pairs of a rule whose source is no later than the target; part by part, so that each keeps its kernel."""
    if rule.causal:
        return rule
    if type(rule) is AllTokens:
        return AllTokens(causal=True, max_tokens=rule.max_tokens)
    if isinstance(rule, Union):
        return reduce(or_, [earlier(part) for part in rule.operands()])
    return rule & AllTokens(causal=True)


def dense(edges: EdgeWeights, targets: int, sources: int) -> Tensor:
    """The weights of all pairs, (..., heads, N, M): those of pairs that are no neighbours are 0."""
    weight = edges.weight.transpose(-2, -1)
    full = weight.new_zeros(*weight.shape[:-1], targets * sources)
    return full.index_add(-1, edges.target * sources + edges.source, weight).unflatten(-1, (targets, sources))
