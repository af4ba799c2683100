"""SharedKernel: one parameter per relation of the pair, shared by all pairs of that relation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mpnn.checks import heads_or_groups, positive
from mpnn.pairs import Pairs
from mpnn.weights.base import Weight, glorot_, uniform_


class SharedKernel(Weight):
    """One learned weight per relation: y_i = Σ_j W_{r(i,j)} x_j + b.

    On a ``Grid`` it is ``nn.Conv1d/2d/3d``; on a ``Graph`` GCNConv (``normalise="symmetric"``, loops added), GraphConv
    and SAGEConv (``root=True``, ``reduce="sum"`` or ``"mean"``), RGCNConv (``relations=r``, ``normalise="relation"``);
    on ``Full`` a Toeplitz matrix; on ``AllTokens(max_tokens=m)`` a long convolution.

    Shapes: ``weight`` (out, in/groups, \\*kernel) on a ``Grid``, else (relations, out, in/groups); with heads
    (relations, heads); with ``bases=b`` the same with b for relations (\\ (b, …)), and ``coefficients`` (relations, b).
    ``bias`` (out,).

    Args:
        bases: RGCN's basis decomposition, W_r = Σ_b coefficients_rb · weight_b.
        fixed: the weight is 1 and no parameter (GIN's sum, pooling, SAGE's max with ``output=True``). Then the widths
            may be None, for any, with ``bias=False``.

    Raises:
        ValueError: with ``fixed`` and ``bases`` or ``groups`` together, and as :class:`~mpnn.weights.Weight`.

    Source: Kipf & Welling (2017), `arXiv:1609.02907 <https://arxiv.org/abs/1609.02907>`_; Schlichtkrull et al. (2018),
    `arXiv:1703.06103 <https://arxiv.org/abs/1703.06103>`_; ``torch.nn.Conv2d``, ``torch_geometric.nn.GCNConv``.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing
        >>> from mpnn.neighbours import Grid
        >>> from mpnn.weights import SharedKernel
        >>> MessagePassing(Grid((28, 28), 3), SharedKernel(1, 32))(torch.ones(8, 784, 1)).shape
        torch.Size([8, 784, 32])
    """

    def __init__(  # type: ignore[no-untyped-def]
        self, in_channels, out_channels, *, groups=1, heads=None, bases=None, fixed=False, value=None, output=None,
        reduce="sum", normalise=None, root=False, bias=True,
    ) -> None:  # fmt: skip
        if fixed and (bases is not None or groups != 1 or heads is not None):
            raise ValueError(
                "fixed=True has no parameter, so groups=, heads= and bases= would be ignored; leave them out"
            )
        if fixed:
            heads, value = 1, False if value is None else value
        if in_channels is not None or not fixed:
            positive("in_channels", in_channels)
        elif bias:
            raise ValueError("a bias has no width with in_channels=None; pass bias=False")
        self.fixed = bool(fixed)
        super().__init__(
            in_channels, out_channels, heads=heads, groups=heads_or_groups(heads, groups), value=value, output=output,
            reduce=reduce,
            normalise=normalise, root=root, bias=bias,
        )  # fmt: skip
        self.bases = None if bases is None else positive("bases", bases)
        self.register_parameter("weight", None)
        self.register_parameter("coefficients", None)

    def numbers(self, neighbours) -> tuple:  # type: ignore[no-untyped-def]
        return () if self.fixed else (neighbours.relations, getattr(neighbours, "relation_shape", None))

    def build(self, neighbours) -> None:  # type: ignore[no-untyped-def]
        limit = getattr(neighbours, "max_tokens", 0)
        if limit is None and not self.fixed:
            raise ValueError(
                f"expected AllTokens(max_tokens=m) for SharedKernel, to know the relations, got {neighbours}"
            )
        self.relations = neighbours.relations
        self.kernel_shape = getattr(neighbours, "relation_shape", None)
        self.on_graph = hasattr(neighbours, "self_loops")
        self.in_lines = neighbours.axes == 1 and self.kernel_shape is None and neighbours.pairs is not None
        if not self.fixed:
            self._make()
        self.reset_parameters()

    def _make(self) -> None:
        kinds = self.relations if self.bases is None else self.bases
        if self.heads is not None:
            shape: tuple[int, ...] = (kinds, self.heads)
        elif self.kernel_shape is not None and self.bases is None:
            shape = (self.after, self.before // self.groups, *self.kernel_shape)
        else:
            shape = (kinds, self.after, self.before // self.groups)
        weight = torch.empty(shape)
        if self.in_lines and self.bases is None:  # of every channel the distances in a line, as the FFT reads them
            weight = torch.empty(*shape[1:], kinds).movedim(-1, 0)
        if weight.ndim in (4, 5):  # the layout in which convolutions of row-major tokens run without a copy
            weight = weight.to(memory_format=torch.channels_last if weight.ndim == 4 else torch.channels_last_3d)
        self.weight = nn.Parameter(weight)
        if self.bases is not None:
            self.coefficients = nn.Parameter(torch.empty(self.relations, self.bases))

    def reset_parameters(self) -> None:
        """Redraw as nn.Conv, nn.Linear, GraphConv and SAGEConv by fan-in, or as GCNConv and RGCNConv by glorot."""
        glorot = self.on_graph and (self.normalise is not None or self.relations > 1)
        self.reset_linears(*(["root"] if glorot and self.relations > 1 else []))
        fan_in = self.relations * (self.before // self.groups if self.groups else 1)
        if self.weight is not None and glorot:
            glorot_(self.weight)
        elif self.weight is not None:
            uniform_(self.weight, fan_in)
        if self.coefficients is not None:
            glorot_(self.coefficients)
        if self.bias is not None:
            if glorot or self.weight is None:
                nn.init.zeros_(self.bias)
            else:
                uniform_(self.bias, fan_in)

    def matrices(self) -> Tensor:
        """The weights by relation: (relations, out, in/groups) or (relations, heads)."""
        w = self.weight
        if self.coefficients is not None:
            return torch.tensordot(self.coefficients, w, 1)
        if self.heads is None and self.kernel_shape is not None:
            return w.flatten(2).movedim(-1, 0)
        return w

    def per_edge(self, pairs: Pairs) -> Tensor:
        if self.fixed:
            x = pairs.node("x_source")
            return x.new_ones(()).expand(pairs.count, 1)
        w = self.matrices().index_select(0, pairs.relation)
        if self.heads is not None:
            return w
        assert self.groups is not None
        return w.unflatten(-2, (self.groups, -1)).transpose(-2, -1).flatten(-3)

    def extra_repr(self) -> str:
        kinds = getattr(self, "relations", 1)
        return super().extra_repr() + (", fixed=True" if self.fixed else f", relations={kinds}" if kinds > 1 else "")
