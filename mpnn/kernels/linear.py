"""linear: one matrix product, of all tokens together or of each token alone.

``Full`` × ``Static`` on (…, sources, in) is ``F.linear`` on (…, sources · in) with the weight seen as
(targets · out, sources · in): a view, no copy. With heads it is one product per head. ``Window(0)`` × ``SharedKernel``,
where every token sees itself, is ``F.linear`` on the channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mpnn.kernels.base import Call
from mpnn.spec import Spec

name = "linear"


def _pointwise(spec: Spec) -> bool:
    """Whether every token sees itself and nothing else: a window of one relation."""
    return spec.neighbours == "Window" and spec.weight == "SharedKernel" and spec.relations == 1


def unsupported(spec: Spec) -> list[str]:
    """Why this call is no single matrix product."""
    if _pointwise(spec):
        return _no_product_of_channels(spec)
    why = []
    if spec.weight != "Static" or spec.neighbours not in ("Full", "AllTokens"):
        why.append(
            "needs Full or AllTokens with Static, one weight per pair of all tokens, or Window(0) with SharedKernel"
        )
    if spec.family == "groups" and spec.parts > 1:
        why.append("block-diagonal weights are no single matrix")
    if spec.family == "groups" and spec.neighbours == "AllTokens":
        why.append("the leading block of a weight with channels is no view")
    if spec.causal:
        why.append("causal: half of the matrix does not take part")
    if spec.normalise is not None:
        why.append(f"normalise={spec.normalise!r} changes the weights at every call")
    if spec.pair_mask or spec.edge_weight or spec.edge_attr or spec.ragged:
        why.append("pair_mask, edge data and batch change the matrix at every call")
    if spec.family == "heads" and spec.dtype in ("float16", "bfloat16") and spec.device == "cpu":
        why.append("half-precision products per head accumulate in half on the CPU")
    return why


def _no_product_of_channels(spec: Spec) -> list[str]:
    """Why tokens that see themselves are not multiplied by one matrix."""
    why = []
    if spec.family != "groups":
        why.append("a number per head is no matrix")
    if spec.family == "groups" and spec.parts > 1:
        why.append("block-diagonal weights are no single matrix")
    if not spec.square:
        why.append("two sets of tokens: the targets are the last of the sources")
    if spec.normalise is not None:
        why.append(f"normalise={spec.normalise!r} divides by what a mask leaves")
    if spec.pair_mask or spec.edge_weight or spec.edge_attr:
        why.append("pair_mask and edge data weigh each token apart")
    return why


def run(call: Call, reference: Any) -> Tensor:
    """The aggregate: (..., N, C)."""
    rule, value = call.weight, call.value
    if rule.heads is not None:
        weight = _leading(rule.weight, call.targets, call.sources)
        return call.blank_targets(torch.matmul(weight, value).transpose(-3, -2).flatten(-2))
    if call.neighbours.__class__.__name__ == "Window":  # of one message, the sum, the mean and the largest are the same
        return F.linear(value, rule.matrices()[0], call.take_bias())  # a masked token is 0, and no bias was offered
    weight = rule.weight.flatten(2).flatten(0, 1)
    y = F.linear(value.flatten(-2), weight, call.take_bias(flat=True))
    return call.blank_targets(y.unflatten(-1, (call.targets, rule.after)))


def _leading(weight: Tensor, targets: int, sources: int) -> Tensor:
    """The leading block of (heads, m, m). Traced, a slice would compile once more where a length is just m."""
    if not torch.compiler.is_compiling():
        return weight[:, :targets, :sources]
    rows, columns = (torch.arange(n, device=weight.device) for n in (targets, sources))
    return weight.index_select(1, rows).index_select(2, columns)


def shortcut(call: Call, reference: Any) -> Callable[[Tensor], Tensor] | None:
    """The whole layer as one product of tokens of this shape; None where more belongs to it."""
    rule = call.weight
    if not all(part is None for part in (rule.heads, rule.root, rule.output, rule.value)):
        return None
    if call.neighbours.__class__.__name__ == "Window":
        return lambda x: F.linear(x, rule.matrices()[0], rule.bias)
    shape = (*call.lead, call.targets, rule.after)
    rows, columns = call.targets * rule.after, call.sources * rule.before
    flat, targets, biased = (*call.lead, columns), call.targets, rule.bias is not None
    whole = biased and rule.bias.ndim > 1  # one bias for each target and channel
    own, matrix, row, grad = rule._parameters.get, _view(rows, columns), _view(rows), torch.is_grad_enabled

    def run(x: Tensor) -> Tensor:
        weight, bias = own("weight"), own("bias")  # a look-up costs less than an attribute
        if weight is None:  # parametrised, no parameter of its own
            weight = rule.weight
        if biased and bias is None:
            bias = rule.bias
        fresh = grad()
        weight = weight.view(rows, columns) if fresh else matrix(weight)
        if biased:
            bias = bias.repeat(targets) if not whole else bias.view(rows) if fresh else row(bias)
        x = x.view(flat) if x.is_contiguous() else x.reshape(flat)
        return F.linear(x, weight, bias).view(shape)

    return run


def _view(*shape: int) -> Callable[[Tensor], Tensor]:
    """``tensor.view(shape)`` without a gradient: the same view again while the tensor lies where it lay."""
    last: list[Any] = [None, None, None]

    def view(tensor: Tensor) -> Tensor:
        before, lay, seen = last
        lies = tensor.data_ptr(), tensor.stride()  # .data may have been set
        if tensor is not before or lies != lay:
            seen = tensor.view(shape)
            last[:] = tensor, lies, seen
        return seen

    return view
