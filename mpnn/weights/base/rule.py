"""What every weight rule is: a module that says how much a source's token counts for a target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mpnn.checks import divides, one_of, positive, share
from mpnn.functions import linear
from mpnn.memo import Revised
from mpnn.weights.base.initialise import glorot_
from mpnn.weights.base.linears import linears_around

if TYPE_CHECKING:
    from mpnn.neighbours import Neighbours
    from mpnn.pairs import Pairs

NORMALISE = (None, "relation", "symmetric", "softmax")
REDUCE = ("sum", "mean", "max")


class Weight(Revised, ABC):
    """How much: w in  y_i = output(reduce_j w_ij · value(x_j)) + root(x_i) + bias.

    One of two families: ``groups=g``, a block-diagonal matrix per edge with g blocks; ``heads=h``, a number per head on
    the channels of value(x). A subclass sets one of the two (as an argument here or as a class attribute) and writes
    ``build(neighbours)``, which makes its own parameters, and ``per_edge(pairs)``, which returns (..., E, heads) or
    (..., E, in·out/groups), read as (groups, in/groups, out/groups).

    Args:
        in_channels, out_channels: widths of x and y; ``None`` takes any width (then there is no value, output or bias,
        and a ``root`` of any width only).
        value, output: True, False, an ``nn.Linear`` or a module with its ``in_features`` and ``out_features``; by
        default ``value`` with heads and neither with groups. Two given ones may meet at a width of their own: value
        in → inner, output inner → out.
        reduce: "sum", "mean" over the number of edges, "max" element-wise with ties sharing the gradient.
        normalise: None, "relation", "symmetric" or "softmax" (heads only), with sum.
        root: True, False or an ``nn.Linear`` (targets of another width): adds it of the target's own token. bias: adds
        a vector, inside ``output`` where there is one.

    Raises:
        ValueError: for widths that heads or groups do not divide, combinations without a meaning.

    Example: see ``mpnn.MessagePassing``.
    """

    heads: int | None = None
    groups: int | None = None
    edge_channels: int = 0
    reads_target = False  # whether per_edge reads the target's token
    before: Any  # channels that the weight meets,
    after: Any  # and that it leaves
    fixed = False  # whether the weight is 1 without a parameter
    _given: tuple[str, ...] = ()  # modules that the caller brought: they keep their numbers until reset_parameters
    _kept: tuple[str, ...] = ()
    _numbers: tuple | None = None  # what the parameters were made for

    def __init__(  # type: ignore[no-untyped-def]
        self, in_channels=None, out_channels=None, *, heads=None, groups=None, value=None, output=None, reduce="sum",
        normalise=None, root=False, bias=True, dropout=0.0, edge_channels=0,
    ) -> None:  # fmt: skip
        super().__init__()
        if heads is not None or groups is not None:
            self.heads, self.groups = heads, groups
        if (self.heads is None) == (self.groups is None):
            raise ValueError(f"expected one of heads= and groups=, got heads={self.heads} and groups={self.groups}")
        one_of("reduce", reduce, REDUCE)
        one_of("normalise", normalise, NORMALISE)
        if normalise is not None and reduce != "sum":
            raise ValueError(f"normalise={normalise!r} goes with reduce='sum', got reduce={reduce!r}")
        if normalise == "softmax" and self.groups is not None:
            raise ValueError("normalise='softmax' needs heads=: a softmax over matrices has no meaning, got groups")
        self.reduce, self.normalise, self.dropout = reduce, normalise, share("dropout", dropout)
        self.edge_channels = positive("edge_channels", edge_channels, 0)
        value = self.heads is not None and in_channels is not None if value is None else value
        output = False if output is None else output
        self.in_channels, self.out_channels = in_channels, out_channels
        self.value: Any = None  # an nn.Linear, or a module in its place
        self.output: Any = None
        self.root: Any = None
        self.register_parameter("bias", None)
        if in_channels is None:
            self._take_any_width(value, output, root)
            return
        positive("in_channels", in_channels)
        positive("out_channels", out_channels)
        linears = (("value", value), ("output", output), ("root", root))
        self._given = tuple(name for name, module in linears if isinstance(module, nn.Module))
        made = linears_around(
            in_channels, out_channels, value, output, root, mixes=self.heads is None and not self.fixed, bias=bias
        )
        self.value, self.output, self.root, self.before, self.after = made
        part, name = (self.heads, "heads") if self.heads is not None else (self.groups, "groups")
        assert part is not None
        positive(name, part)
        divides(name, part, "in_channels" if self.value is None else "out_channels", self.before)
        divides(name, part, "out_channels", self.after)
        if bias and not hasattr(self.output, "bias"):  # inside output, where that has a place for one
            self.bias = nn.Parameter(torch.zeros(out_channels))

    def _take_any_width(self, value: Any, output: Any, root: Any) -> None:
        if self.groups is not None:
            raise ValueError(
                "expected in_channels and out_channels with groups=, whose matrices have these widths, got None"
            )
        self.root = root if isinstance(root, nn.Module) and getattr(root, "in_features", 0) is None else None
        own = False if self.root is not None else root
        given = [n for n, v in (("value", value), ("output", output), ("root", own)) if v is not False]
        if given:
            raise ValueError(f"expected in_channels and out_channels with {given[0]}=, got None")
        self._given = () if self.root is None else ("root",)

    def build_for(self, neighbours: Neighbours) -> None:
        """Build once; a built weight may serve another neighbourhood of the same numbers, sharing its parameters."""
        numbers = self.numbers(neighbours)
        if self._numbers is not None:
            if numbers != self._numbers:
                raise ValueError(
                    f"expected a neighbourhood of the same numbers as {type(self).__name__} was built for, "
                    f"{self._numbers}, got {numbers} for {neighbours}"
                )
            return
        self._kept = self._given
        self.build(neighbours)
        self._kept, self._numbers = (), numbers

    def numbers(self, neighbours: Neighbours) -> tuple:
        """The neighbourhood's numbers that the parameters depend on."""
        return neighbours.relations, neighbours.pairs, neighbours.axes

    def build(self, neighbours: Neighbours) -> None:
        """Make the parameters that depend on the neighbourhood's ``relations``, ``pairs`` and ``axes``."""

    def reset_parameters(self) -> None:
        """Draw the parameters again; a rule with parameters of its own overrides it."""
        self.reset_linears()

    @abstractmethod
    def per_edge(self, pairs: Pairs) -> Tensor:
        """The weight of every edge, (..., E, heads) or (..., E, in·out/groups), before any normalisation."""

    def forward(self, pairs: Pairs) -> Tensor:
        """The same as :meth:`per_edge`, so that functional calls reach it."""
        return self.per_edge(pairs)

    def project(self, x: Tensor) -> Tensor:
        """value(x): with heads (..., heads, M, D), with groups (..., M, C)."""
        y = x if self.value is None else linear(self.value, x)
        return y if self.heads is None else y.unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def nodes(self, x_source: Tensor, x_target: Tensor | None) -> dict[str, Tensor]:
        """The tensors over tokens that the kernels read: "value", and what the rule adds."""
        return {"value": self.project(x_source)}

    def edge_value(self, pairs: Pairs) -> Tensor | None:
        """What an edge adds to its source's value, (..., E, heads, D), with groups (..., E, C); nothing by default."""
        return None

    def adds_value(self) -> bool:
        """Whether edges add something to their source's value, which a kernel has to know."""
        return type(self).edge_value is not Weight.edge_value

    def finish(self, aggregate: Tensor, x_target: Tensor | None, biased: bool = False) -> Tensor:
        """output(aggregate) + root(x_i) + bias; ``biased`` where the kernel has added the bias."""
        y = aggregate if self.output is None else linear(self.output, aggregate)
        if self.root is not None:
            if x_target is None:
                raise ValueError(
                    "expected (x_source, x_target) as first argument, since root=True reads the target, got x alone"
                )
            y = y + linear(self.root, x_target)
        return y if self.bias is None or biased else y + self.bias.to(y.dtype)

    def width(self) -> int | None:
        """Channels of the source tokens that this rule takes; None for any."""
        return self.in_channels

    def target_width(self) -> int | None:
        """Channels of the target tokens that this rule takes; None for any."""
        own = None if self.root is None else self.root.in_features
        return self.in_channels if own is None else own

    def reset_linears(self, *glorot: str) -> None:
        """Redraw value, output and root as nn.Linear does, those named by PyG's glorot."""
        for name in ("value", "output", "root"):
            layer = None if name in self._kept else getattr(self, name)
            if layer is not None and hasattr(layer, "reset_parameters"):  # a mean over heads has nothing to draw
                layer.reset_parameters()
            if isinstance(layer, nn.Linear) and name in glorot:
                glorot_(layer.weight)
                if layer.bias is not None and name == "output":
                    nn.init.zeros_(layer.bias)

    def extra_repr(self) -> str:
        family = f"heads={self.heads}" if self.heads is not None else f"groups={self.groups}"
        widths = [] if self.in_channels is None else [str(self.in_channels), str(self.out_channels)]
        rules = [
            f"{n}={getattr(self, n)!r}" for n, d in (("reduce", "sum"), ("normalise", None)) if getattr(self, n) != d
        ]
        return ", ".join([*widths, family, *rules])
