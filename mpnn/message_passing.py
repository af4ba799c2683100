"""MessagePassing: the one layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mpnn.binding import bind
from mpnn.call import Call
from mpnn.checks import autocasting, instance, one_of
from mpnn.kernels import reference as reference_kernel
from mpnn.neighbours import Neighbours
from mpnn.plan import BY_NAME, NAMES, Plan, choose, explain, forced
from mpnn.remembered import Remembered, here, remember, state
from mpnn.returned import listening, notify, returned
from mpnn.slips import refuse
from mpnn.spec import spec_of
from mpnn.weights import Weight

TAKES = (
    "x", "edge_index", "edge_attr", "source", "mask", "pair_mask", "positions", "coordinates", "batch", "grid",
    "edge_type", "edge_weight", "score_bias", "return_weights",
)  # fmt: skip


class MessagePassing(nn.Module):
    """The one equation: y_i = output(reduce_{j ∈ N(i)} w_ij · value(x_j)) + root(x_i) + bias.

    Args:
        neighbours: who sends, a rule of :mod:`mpnn.neighbours` or a person's own.
        weight: how much, a rule of :mod:`mpnn.weights` or a person's own; it is built for the neighbourhood here.
        kernel: a kernel's name forces it: it never falls back.

    Shapes:
        x (..., N, C), source (..., M, C), or :class:`~mpnn.Tokens`, or a pair (x_source, x_target); of attention source
        may be a pair (keys, values) · edge_index (2, E), a ``Graph``, a PyG ``EdgeIndex`` or a sparse matrix
        A[target, source] · edge_attr (..., E, k) · edge_type (E,) · edge_weight (..., E) · mask (..., M) bool, True =
        takes part · pair_mask broadcast to (..., heads, N, M) · score_bias of attention: floats added to the scores,
        broadcast to (..., heads, N, M), or (E, heads) for a ``Graph`` · positions, coordinates, batch, grid: as in
        ``Tokens``, of ``x``. Returns (..., N, out_channels); with ``return_weights`` also the edges used and their
        weights before dropout.

    Raises:
        TypeError, ValueError, IndexError: at the door, before any kernel runs, with what was expected and what came.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing
        >>> from mpnn.neighbours import Graph
        >>> from mpnn.weights import SharedKernel
        >>> gcn = MessagePassing(Graph(self_loops="add"), SharedKernel(4, 8, normalise="symmetric"))
        >>> gcn(torch.ones(3, 4), torch.tensor([[0, 1], [1, 2]])).shape
        torch.Size([3, 8])
    """

    def __init__(self, neighbours: Neighbours, weight: Weight, *, kernel: str | None = None) -> None:
        super().__init__()
        instance("neighbours", neighbours, Neighbours, "a rule of mpnn.neighbours")
        instance("weight", weight, Weight, "a rule of mpnn.weights")
        if kernel is not None:
            one_of("kernel", kernel, NAMES)
        if getattr(neighbours, "loop_weight", 1.0) != 1.0 and weight.normalise == "softmax":
            raise ValueError("loop_weight would be ignored by a softmax, whose weights sum to 1; leave it at 1")
        self.neighbours, self.weight, self.kernel = neighbours, weight, kernel
        self._repeats: list[Remembered] = []
        weight.build_for(neighbours)

    def reset_parameters(self) -> None:
        """Draw the weight's parameters again."""
        self.weight.reset_parameters()

    def forward(  # type: ignore[no-untyped-def]
        self, x, edge_index=None, edge_attr=None, *, source=None, mask=None, pair_mask=None, positions=None,
        coordinates=None, batch=None, grid=None, edge_type=None, edge_weight=None, score_bias=None,
        return_weights=False, **unknown,
    ) -> Any:  # fmt: skip
        """The layer's output, a tensor (..., N, out_channels)."""
        if unknown:
            refuse("the layer", unknown, TAKES)
        plain = (
            type(x) is Tensor and not x.is_nested and edge_attr is None and source is None and mask is None
            and pair_mask is None and positions is None and coordinates is None and batch is None and edge_type is None
            and edge_weight is None and score_bias is None and not return_weights
            and (grid is None or (type(grid) is tuple and all(type(size) is int for size in grid)))
        )  # fmt: skip
        plain = plain and here() and not x.is_neg()
        if plain:
            for repeat in self._repeats:
                if repeat.fits(self, x, edge_index, grid):
                    shortcut = repeat.shortcut
                    return repeat.run(self, x) if shortcut is None else shortcut(x)
        before = state(self) if plain else None
        edges = {"edge_index": edge_index, "edge_attr": edge_attr, "edge_type": edge_type, "edge_weight": edge_weight}
        given = {
            "source": source, "mask": mask, "pair_mask": pair_mask, "positions": positions, "coordinates": coordinates,
            "batch": batch, "grid": grid, "score_bias": score_bias,
        }  # fmt: skip
        call = bind(self.neighbours, self.weight, self.training, x, edges, given)
        name, _ = choose(spec_of(call, self.weight), forced(self.kernel))
        y = self._run(call, name)
        if plain and state(self) == before:  # a rule may change itself in a call
            remember(self, call, name, edge_index, grid)
        if listening:
            notify(self, name, call)
        return (y, returned(call)) if return_weights else y

    def _run(self, call: Call, name: str) -> Tensor:
        """kernel → output."""
        weight = self.weight
        may_fuse = weight.output is None and weight.bias is not None and call.target_mask is None
        call.bias = weight.bias if may_fuse else None
        aggregate = BY_NAME[name].run(call, reference_kernel.run)
        y = weight.finish(aggregate, call.nodes.get("x_target"), biased=may_fuse and call.bias is None)
        if y.dtype == torch.float32 and autocasting(y.device.type):
            y = y.to(torch.get_autocast_dtype(y.device.type))
        return y

    def plan(self, x, edge_index=None, edge_attr=None, **given: Any) -> Plan:  # type: ignore[no-untyped-def]
        """How a call with these arguments would run; see :class:`~mpnn.Plan`. No kernel runs."""
        given.pop("return_weights", None)
        unknown = {n: t for n, t in given.items() if n not in TAKES}
        if unknown:
            refuse("plan()", unknown, TAKES)
        edges = {"edge_index": edge_index, "edge_attr": edge_attr}
        edges |= {n: given.pop(n, None) for n in ("edge_type", "edge_weight")}
        call = bind(self.neighbours, self.weight, self.training, x, edges, given)
        spec = spec_of(call, self.weight)
        parts = []
        for rule in call.neighbours.parts() if spec.union else ():  # type: ignore[operator]
            alone = call.again()
            alone.neighbours, alone.explicit = rule, None
            parts.append(_count(alone))
        parameters = sum(p.numel() for p in self.weight.parameters())
        return explain(spec, forced(self.kernel), _count(call), parameters, parts)

    def _apply(self, fn, recurse=True):
        self._repeats.clear()  # parameters change dtype or device
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_repeats": []}


def _count(call: Call) -> int:
    """The edges of a call, or a bound where there are too many to list for a plan."""
    bound = call.targets * call.neighbours.degree(call.targets, call.sources)
    return len(call.all_edges()) if call.explicit is not None or bound <= 1 << 24 else bound
