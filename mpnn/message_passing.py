"""MessagePassing: the one layer."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from mpnn import plan as plans
from mpnn.binding import bind, fill, same_places
from mpnn.call import Call
from mpnn.checks import autocasting, instance, one_of
from mpnn.kernels import reference as reference_kernel
from mpnn.neighbours import Neighbours
from mpnn.plan import BY_NAME, NAMES, Plan, choose, explain, forced
from mpnn.returned import listening, notify, returned
from mpnn.slips import refuse
from mpnn.spec import spec_of
from mpnn.tokens.base import Tokens
from mpnn.weights import Weight

TAKES = (
    "x", "edge_index", "edge_attr", "source", "mask", "pair_mask", "positions", "coordinates", "batch", "grid",
    "edge_type", "edge_weight", "score_bias", "return_weights",
)  # fmt: skip
# The common call looks these up: a name costs less than a path of attributes. Other tracers than dynamo pass no plain
# tensors.
_traced, _transform = torch.compiler.is_dynamo_compiling, torch._C._functorch.peek_interpreter_stack
_grad, _dual, _some_autocast = torch.is_grad_enabled, torch.autograd.forward_ad, torch._C._is_any_autocast_enabled
_KEPT = 16  # calls of the same kind that a layer remembers


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
        self._repeats: dict[tuple, _Repeat] = {}
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
            type(x) is Tensor and not x.is_nested and not x.is_neg() and edge_attr is None and source is None
            and mask is None and pair_mask is None and positions is None and coordinates is None and batch is None
            and edge_type is None and edge_weight is None and score_bias is None and not return_weights
            and (grid is None or (type(grid) is tuple and all(type(size) is int for size in grid)))
        )  # fmt: skip
        key = self._key(x, edge_index, grid) if plain else None
        if key is not None:
            repeat = self._repeats.get(key)
            if repeat is not None and (repeat.edge_index is None or repeat.edge_index() is edge_index):
                shortcut = repeat.shortcut
                return repeat.run(self, x) if shortcut is None else shortcut(x)
        edges = {"edge_index": edge_index, "edge_attr": edge_attr, "edge_type": edge_type, "edge_weight": edge_weight}
        given = {
            "source": source, "mask": mask, "pair_mask": pair_mask, "positions": positions, "coordinates": coordinates,
            "batch": batch, "grid": grid, "score_bias": score_bias,
        }  # fmt: skip
        call = bind(self.neighbours, self.weight, self.training, x, edges, given)
        name, _ = choose(spec_of(call, self.weight), forced(self.kernel))
        y = self._run(call, name)
        if key is not None:
            self._remember(key, call, name, edge_index)
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

    def _key(self, x: Tensor, edge_index: Any, grid: tuple | None) -> tuple | None:
        """What a call of tokens alone depends on besides their values; None where calls are not remembered."""
        if listening or _dual._current_level >= 0 or _traced() or _transform() is not None:
            return None
        if edge_index is None:
            edges = None
        elif type(edge_index) is Tensor and not edge_index.is_inference():
            edges = (id(edge_index), edge_index._version)
        else:
            return None
        device, modules, kernel = x.device, self._modules, self.kernel
        rule: Any = modules["neighbours"]
        weight: Any = modules["weight"]
        return (
            x.shape, grid, x.dtype, device, edges, weight.dropout if self.training else 0.0, _grad(),
            _some_autocast() and autocasting(device.type), id(rule), rule.state(), id(weight),
            weight.revision, plans.allowed if kernel is None else kernel,
        )  # fmt: skip

    def _remember(self, key: tuple, call: Call, name: str, edge_index: Tensor | None) -> None:
        held = (call.attr, call.edge_weight, call.nodes.get("inverse_root"))
        if any(t is not None and t.requires_grad for t in held) or not same_places(self.neighbours):
            return  # data of edges that wants a gradient brings a graph of its own to each call
        repeats = self._repeats
        if len(repeats) >= _KEPT:
            repeats.pop(next(iter(tuple(repeats))), None)  # a tuple at once: another thread may add or drop one
        alive = None if edge_index is None else weakref.ref(edge_index, lambda _: repeats.pop(key, None))
        repeats[key] = _Repeat(call, name, alive)

    def _apply(self, fn, recurse=True):
        self._repeats.clear()  # parameters change dtype or device
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_repeats": {}}


class _Repeat:
    """A call that was checked, to be run again on other tokens of the same shape, dtype and device."""

    def __init__(self, call: Call, name: str, edge_index: weakref.ref[Tensor] | None) -> None:
        x = call.tokens[0].x
        one_set = call.tokens[1] is call.tokens[0]
        blank = Tokens(_blank(x), grid=call.tokens[0].grid)
        kept = {k: v for k, v in call.nodes.items() if k == "inverse_root"}  # degrees of the same edges
        self.call = call.again()
        self.call.nodes = {k: _blank(t) for k, t in call.nodes.items() if k in ("query", "key", "value")}
        self.call.tokens = (blank, blank if one_set else None)
        self.call.constants = call.constants | kept
        self.name, self.one_set = name, one_set
        self.edge_index = edge_index
        shortcut = None if autocasting(x.device.type) else getattr(BY_NAME[name], "shortcut", None)
        self.shortcut = None if shortcut is None else shortcut(self.call, reference_kernel.run)

    def run(self, layer: MessagePassing, x: Tensor) -> Tensor:
        call = self.call.again()
        fill(call, x, x if self.one_set else None)
        return layer._run(call, self.name)


def _blank(x: Tensor) -> Tensor:
    """A tensor of the same shape and dtype that keeps no memory alive."""
    return x.detach().new_zeros(()).expand(x.shape)


def _count(call: Call) -> int:
    """The edges of a call, or a bound where there are too many to list for a plan."""
    bound = call.targets * call.neighbours.degree(call.targets, call.sources)
    return len(call.all_edges()) if call.explicit is not None or bound <= 1 << 24 else bound
