"""MessagePassing: the one layer."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from mpnn import binding
from mpnn.checks import compiling, one_of, same_device, same_dtype, transforms
from mpnn.kernels import Call, Spec
from mpnn.kernels import reference as reference_kernel
from mpnn.neighbours import Graph, Neighbours
from mpnn.plan import BY_NAME, NAMES, Plan, choose, explain, forced
from mpnn.returned import EdgeWeights, listeners, notify, returned
from mpnn.tokens.base import Tokens
from mpnn.weights import Weight


class MessagePassing(nn.Module):
    """The one equation: y_i = output(reduce_{j ∈ N(i)} w_ij · value(x_j)) + root(x_i) + bias.

    Args:
        neighbours: who sends, a rule of :mod:`mpnn.neighbours` or a person's own.
        weight: how much, a rule of :mod:`mpnn.weights` or a person's own; it is built for the neighbourhood here.
        kernel: a kernel's name forces it: it never falls back.

    Shapes:
        x (..., N, C), source (..., M, C), or :class:`~mpnn.Tokens`, or a pair (x_source, x_target) · edge_index (2, E), a
        ``Graph``, a PyG ``EdgeIndex`` or a sparse matrix A[target, source] · edge_attr (..., E, k) · edge_type (E,) ·
        edge_weight (..., E) · mask (..., M) bool, True = takes part · pair_mask broadcast to (..., heads, N, M) ·
        positions, coordinates, batch, grid: as in ``Tokens``, of ``x``. Returns (..., N, out_channels); with
        ``return_weights`` also the edges used and their weights before dropout.

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
        if not isinstance(neighbours, Neighbours):
            raise TypeError(f"expected neighbours to be a rule of mpnn.neighbours, got {type(neighbours).__name__}")
        if not isinstance(weight, Weight):
            raise TypeError(f"expected weight to be a rule of mpnn.weights, got {type(weight).__name__}")
        if kernel is not None:
            one_of("kernel", kernel, NAMES)
        self.neighbours, self.weight, self.kernel = neighbours, weight, kernel
        weight.build(neighbours)

    def reset_parameters(self) -> None:
        """Draw the weight's parameters again."""
        self.weight.reset_parameters()  # type: ignore[operator]

    def forward(  # type: ignore[no-untyped-def]
        self, x, edge_index=None, edge_attr=None, *, source=None, mask=None, pair_mask=None, positions=None, coordinates=None,
        batch=None, grid=None, edge_type=None, edge_weight=None, return_weights=False,
    ) -> Any:  # fmt: skip
        """The layer's output, a tensor (..., N, out_channels)."""
        call, x_target = self._bind(
            x, edge_index, edge_attr, source, mask, pair_mask, positions, coordinates, batch, grid, edge_type, edge_weight
        )  # fmt: skip
        name, _ = choose(self._spec(call), forced(self.kernel))
        return self._finish(call, x_target, name, return_weights)

    def _finish(self, call: Call, x_target: Tensor | None, name: str, return_weights: bool) -> Any:
        weight = self.weight
        if weight.output is None and weight.bias is not None and call.target_mask is None:
            call.bias = weight.bias
        aggregate = BY_NAME[name].run(call, reference_kernel.run)
        taken = weight.bias is not None and weight.output is None and call.target_mask is None and call.bias is None
        y = weight.finish(aggregate, x_target, biased=taken)
        if torch.is_autocast_enabled(y.device.type) and y.dtype == torch.float32:
            y = y.to(torch.get_autocast_dtype(y.device.type))
        if listeners():
            notify(self, name, call)
        return (y, returned(call)) if return_weights else y

    def plan(self, x, edge_index=None, edge_attr=None, **arguments: Any) -> Plan:  # type: ignore[no-untyped-def]
        """How a call with these arguments would run; see :class:`~mpnn.Plan`. Nothing is computed."""
        arguments.pop("return_weights", None)
        names = ("source", "mask", "pair_mask", "positions", "coordinates", "batch", "grid", "edge_type", "edge_weight")
        unknown = [n for n in arguments if n not in names]
        if unknown:
            raise TypeError(f"plan() got an unexpected argument {unknown[0]!r}; it takes those of the call: x, edge_index, edge_attr, {', '.join(names)}")
        call, _ = self._bind(x, edge_index, edge_attr, *(arguments.get(n) for n in names))
        each = self.neighbours.degree(call.targets, call.sources)
        small = call.explicit is not None or call.targets * each <= 1 << 24
        edges = len(call.all_edges()) if small else call.targets * each
        parameters = sum(p.numel() for p in self.weight.parameters())
        return explain(self._spec(call), forced(self.kernel), edges, parameters)

    def _bind(  # type: ignore[no-untyped-def]
        self, x, edge_index, edge_attr, source, mask, pair_mask, positions, coordinates, batch, grid, edge_type, edge_weight
    ) -> tuple[Call, Tensor | None]:  # fmt: skip
        rule, weight = self.neighbours, self.weight
        self._unread(positions=positions, coordinates=coordinates, grid=grid)
        fields = {"mask": mask, "positions": positions, "coordinates": coordinates, "batch": batch, "grid": grid}
        src, tgt = binding.token_sets(rule, x, source, fields)
        one_set = tgt is src
        m = src.x.shape[-2]
        own = rule.target_count(m, src)
        n = own if own is not None else tgt.x.shape[-2]  # type: ignore[union-attr]
        if own is not None and tgt is not None and tgt.x.shape[-2] != own:
            raise ValueError(f"expected {own} target tokens for {rule}, got {int(tgt.x.shape[-2])}")
        rule.check(n, m, src if tgt is None or one_set else (src, tgt))
        binding.check_batches(rule, src, tgt)
        self._check_tokens(src, tgt)
        clean_source = src.clean()
        clean_target = clean_source if one_set else None if tgt is None else tgt.clean()
        nodes = {"x_source": clean_source.x}
        if clean_target is not None:
            nodes["x_target"] = clean_target.x
        elif weight.reads_target or weight.root is not None:
            centres = rule.centres(src, src.x.device)
            if centres is not None:
                nodes["x_target"] = clean_source.x.index_select(-2, centres)
        lead = tuple(src.x.shape[:-2])
        binding.check_pair_mask(pair_mask, lead, weight.heads or 1, n, m, src.x.device)
        data = binding.edge_data(rule, n, m, one_set, edge_index, edge_attr, edge_type, edge_weight)
        call = Call(
            rule, weight, n, m, lead, nodes, (clean_source, clean_target), data.explicit, source_mask=src.mask,
            target_mask=None if tgt is None else tgt.mask, pair_mask=pair_mask, dropout=weight.dropout if self.training else 0.0,
            transformed=bool(transforms()),
        )  # fmt: skip
        self._attach(call, data, one_set)
        nodes |= weight.nodes(nodes["x_source"], nodes.get("x_target"))
        self._blank(call)
        self._place(call, one_set)
        return call, nodes.get("x_target")

    def _unread(self, positions: Any, coordinates: Any, grid: Any) -> None:
        """Refuse a keyword that nothing here reads."""
        kinds = type(self.weight).__name__
        if positions is not None and getattr(self.weight, "position", None) is None and getattr(self.weight, "score_bias", None) is None:
            if type(self.weight).__module__.startswith("mpnn."):
                raise ValueError(f"positions would be ignored by {kinds} without a position or score_bias module; leave it out")
        if coordinates is not None and kinds in ("Static", "SharedKernel", "QKSoftmax") and type(self.neighbours).__module__.startswith("mpnn."):
            raise ValueError(f"coordinates would be ignored by {self.neighbours} with {kinds}; leave them out")
        if grid is not None and not hasattr(self.neighbours, "size_of") and type(self.neighbours).__module__.startswith("mpnn."):
            raise ValueError(f"grid would be ignored by {self.neighbours}; leave it out")

    def _check_tokens(self, src: Tokens, tgt: Tokens | None) -> None:
        weight = self.weight
        for name, tokens, width in (("x", src, weight.width()), ("x_target", tgt, weight.target_width())):
            if tokens is None or (tgt is src and name == "x_target"):
                continue
            if width is not None and tokens.x.shape[-1] != width:
                raise ValueError(f"expected {name} of shape (..., N, {width}) for {type(weight).__name__}, got {tuple(tokens.x.shape)}")
            if tokens.x.shape[:-2] != src.x.shape[:-2]:
                raise ValueError(f"expected x_source and x_target of the same leading dimensions, got {tuple(src.x.shape)} and {tuple(tokens.x.shape)}")
            same_device(name, tokens.x, src.x.device)
            parameter = next(weight.parameters(), None)
            if parameter is not None:
                same_device("the layer", parameter, tokens.x.device) if parameter.device != tokens.x.device else None
                if not torch.is_autocast_enabled(tokens.x.device.type):
                    same_dtype(name, tokens.x.dtype, parameter.dtype)

    def _attach(self, call: Call, data: binding.EdgeData, one_set: bool) -> None:
        """Edge attributes and weights, cast, checked, and filled in for added loops."""
        weight, dtype = self.weight, call.nodes["x_source"].dtype
        attr, scale = data.attr, data.weight
        self._check_edge_data(attr, scale)
        if attr is not None or scale is not None:
            edges = call.all_edges()
            if data.rule is None:
                binding.check_rows(attr, None, scale, len(edges), ("edge_attr", "edge_type", "edge_weight"))
            for name, tensor, axes in (("edge_attr", attr, 2), ("edge_weight", scale, 1)):
                if tensor is not None:
                    same_device(name, tensor, call.nodes["x_source"].device)
                    binding.broadcastable(name, tensor.shape[:-axes], call.lead, "the leading dimensions")
            attr, scale = (None if t is None else t.to(dtype) for t in (attr, scale))
            keep = call.keep(edges)
            counted = None if keep is None else keep.any(-1)
            if data.rule is not None:
                attr, scale = data.rule.fill(edges, call.targets, attr, scale, counted)
            if counted is not None and attr is not None:
                attr = torch.where(counted[..., None], attr, 0)  # what a mask removes is not seen, not even as NaN
            if counted is not None and scale is not None:
                scale = torch.where(counted, scale, 0)
        call.attr, call.edge_weight = attr, scale
        if call.explicit is not None:
            binding.check_graphs(call.explicit, *call.tokens)
        if weight.normalise == "symmetric" and not one_set:
            raise ValueError("normalise='symmetric' needs one set of tokens, whose degrees weigh both ends, got sources and targets")

    def _check_edge_data(self, attr: Tensor | None, scale: Tensor | None) -> None:
        weight = self.weight
        kind, width = type(weight).__name__, weight.edge_channels
        if attr is not None and width == 0 and type(weight).__module__.startswith("mpnn."):
            slip = "did you mean edge_weight=?" if attr.ndim == 1 or attr.shape[-1] == 1 else "build it with edge_channels="
            raise ValueError(f"edge_attr of shape {tuple(attr.shape)} would be ignored by {kind} without edge features; {slip}")
        if attr is not None and width and attr.shape[-1] != width:
            raise ValueError(f"expected edge_attr of shape (..., E, {width}) for {kind}, got {tuple(attr.shape)}")
        if attr is None and (width or getattr(weight, "needs_attr", False)):
            raise ValueError(f"expected edge_attr of shape (..., E, {width or 'k'}) for {kind}, got None")
        if scale is not None and weight.normalise == "softmax":
            if not (compiling() or bool((scale == 1).all())):
                raise ValueError("edge_weight is refused with softmax, whose weights sum to 1; pass score_bias or edge_attr")

    def _blank(self, call: Call) -> None:
        """A value with a bias is not zero at a masked token: make it so, for kernels that read no mask."""
        value = self.weight.value
        if call.source_mask is not None and value is not None and value.bias is not None and "query" not in call.nodes:
            rows = call.source_mask[..., None] if self.weight.heads is None else call.source_mask[..., None, :, None]
            call.nodes["value"] = call.nodes["value"].masked_fill(~rows, 0)

    def _place(self, call: Call, one_set: bool) -> None:
        """Positions for the weight's position and score bias, coordinates for offsets."""
        rotate, bias = getattr(self.weight, "position", None), getattr(self.weight, "score_bias", None)
        if rotate is not None or bias is not None:
            source, target = binding.default_positions(call, one_set)
            if rotate is not None:
                axes = getattr(rotate, "axes", 0)
                for node, places in (("query", target), ("key", source)):
                    places = places if places.ndim == 1 + bool(axes) else places.unsqueeze(-2 - bool(axes))
                    call.nodes[node] = rotate(call.nodes[node], places)
            if bias is not None:
                call.nodes["positions_source"], call.nodes["positions_target"] = source, target
        source_tokens, target_tokens = call.tokens
        if source_tokens.coordinates is not None and not isinstance(self.weight, type(None)):
            for end, tokens in (("source", source_tokens), ("target", target_tokens)):
                if tokens is not None and tokens.coordinates is not None:
                    place = tokens.coordinates
                    place = place if tokens.mask is None else place.masked_fill(~tokens.mask[..., None], 0)
                    call.nodes[f"coordinates_{end}"] = place

    def _spec(self, call: Call) -> Spec:
        return spec_of(call, self.weight)


def spec_of(call: Call, weight: Any) -> Spec:
    """The call in plain values."""
    rule, value = call.neighbours, call.value
    tensors = [*call.nodes.values(), *(t for t in (call.attr, call.edge_weight) if t is not None)]
    bias = call.nodes.get("score_bias")
    groups = weight.groups is not None
    network = getattr(weight, "network", None)
    return Spec(
        neighbours=type(rule).__name__, weight=getattr(weight, "spec_name", type(weight).__name__), family="groups" if groups else "heads",
        parts=weight.groups or weight.heads, targets=call.targets, sources=call.sources, batch=call.entries,
        channels=value.shape[-1] if groups else value.shape[-3] * value.shape[-1], out_channels=call.width,
        dtype=str(value.dtype).removeprefix("torch."), device=value.device.type, kv_heads=0 if groups else value.shape[-3],
        score_channels=call.nodes["query"].shape[-1] if "query" in call.nodes else 0,
        edges=None if call.explicit is None else len(call.explicit), relations=rule.relations, axes=rule.axes,
        border=getattr(rule, "border", None), causal=rule.causal, square=call.tokens[1] is call.tokens[0],
        ragged=call.tokens[0].batch is not None, reduce=weight.reduce, normalise=weight.normalise,
        network=None if network is None else type(network).__name__, fixed=getattr(weight, "fixed", False),
        mask=call.source_mask is not None or call.target_mask is not None, pair_mask=call.pair_mask is not None,
        score_bias="tensor" if bias is not None else "edges" if "edge_bias" in call.nodes else "module" if getattr(weight, "score_bias", None) is not None else None,
        score=getattr(weight, "score", None) is not None, edge_attr=call.attr is not None, edge_weight=call.edge_weight is not None,
        dropout=call.dropout, grad=torch.is_grad_enabled() and any(t.requires_grad for t in tensors),
        compiling=compiling(), transforms=transforms(),
    )  # fmt: skip
