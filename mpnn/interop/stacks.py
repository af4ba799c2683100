"""Compositions that take the call of a MessagePassing: something before its sources, something after its output."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


class Stack(nn.Module):
    """y = after(layer(before(x_source), x_target)): GINConv's network, SAGEConv's projection and unit length.

    Args:
        layer: a MessagePassing. before: a module of the source tokens, or None. after: of the output, or None.

    Shapes: the call of ``layer``; with ``return_weights`` its edges too.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing
        >>> from mpnn.interop.stacks import Stack
        >>> from mpnn.neighbours import Graph
        >>> from mpnn.weights import SharedKernel
        >>> layer = MessagePassing(Graph(), SharedKernel(2, 2, fixed=True, bias=False))
        >>> Stack(layer, after=torch.nn.ReLU())(torch.tensor([[-1.0, 2.0]]), torch.tensor([[0], [0]]))
        tensor([[0., 2.]])
    """

    def __init__(self, layer: nn.Module, *, before: nn.Module | None = None, after: nn.Module | None = None) -> None:
        super().__init__()
        self.before, self.layer, self.after = before, layer, after

    def forward(self, x: Any, *args: Any, **given: Any) -> Any:
        if self.before is not None:
            source, target = x if isinstance(x, tuple | list) else (x, x)
            x = self.before(source), target
        found = self.layer(x, *args, **given)
        if self.after is None:
            return found
        if given.get("return_weights"):
            return self.after(found[0]), found[1]
        return self.after(found)

    def reset_parameters(self) -> None:
        """Draw the parameters of all parts again."""
        redraw(self.before, self.layer, self.after)


class UnitLength(nn.Module):
    """Rows of length 1: x / max(|x|, 1e-12)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, p=2.0, dim=-1)


class CosineCutoff(nn.Module):
    """A layer whose ``edge_weight`` is a distance d: an edge weighs ½ (cos(π d / cutoff) + 1), as in CFConv.

    Shapes: the call of ``layer``, with ``edge_weight`` (E,) in the unit of ``cutoff``.

    Source: Schütt et al. (2017), `arXiv:1706.08566 <https://arxiv.org/abs/1706.08566>`_.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing
        >>> from mpnn.interop.stacks import CosineCutoff
        >>> from mpnn.neighbours import Graph
        >>> from mpnn.weights import SharedKernel
        >>> near = CosineCutoff(MessagePassing(Graph(), SharedKernel(1, 1, fixed=True, bias=False)), cutoff=4.0)
        >>> near(torch.ones(2, 1), torch.tensor([[0], [1]]), edge_weight=torch.tensor([2.0]))
        tensor([[0.0000],
                [0.5000]])
    """

    def __init__(self, layer: nn.Module, cutoff: float) -> None:
        super().__init__()
        self.layer, self.cutoff = layer, float(cutoff)

    def forward(self, x: Any, edge_index: Any, edge_attr: Any = None, *, edge_weight: Tensor, **given: Any) -> Any:
        share = 0.5 * ((edge_weight * math.pi / self.cutoff).cos() + 1.0)
        return self.layer(x, edge_index, edge_attr, edge_weight=share, **given)

    def extra_repr(self) -> str:
        return f"cutoff={self.cutoff}"

    def reset_parameters(self) -> None:
        """Draw the layer's parameters again."""
        redraw(self.layer)


def redraw(*modules: Any) -> None:
    """Each module's own reset, else that of its children."""
    for module in modules:
        if module is None:
            continue
        if callable(getattr(module, "reset_parameters", None)):
            module.reset_parameters()
        else:
            redraw(*module.children())
