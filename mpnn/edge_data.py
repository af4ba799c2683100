"""Edge data: the edges of a call and what belongs to them, checked at the door."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mpnn.call import Call
from mpnn.checks import broadcastable, compiling, readable, same_device, tensor, values
from mpnn.edge_index import check_rows, read
from mpnn.edges import Edges
from mpnn.memo import derived
from mpnn.neighbours import Graph, Neighbours
from mpnn.tokens.base import Tokens

NAMES = ("edge_attr", "edge_type", "edge_weight")


def list_edges(
    rule: Neighbours,
    n: int,
    m: int,
    one_set: bool,
    edge_index: Any,
    attr: Tensor | None,
    kind: Tensor | None,
    weight: Tensor | None,
) -> tuple[Edges | None, Tensor | None, Tensor | None, int]:
    """(edges, attributes, weights, rows given) of a call: of the layer's graph or the call's; no edges where the rule
    makes them."""
    for name, value, legend in (
        ("edge_attr", attr, "(..., E, k)"),
        ("edge_type", kind, "(E,)"),
        ("edge_weight", weight, "(..., E)"),
    ):
        tensor(name, value, legend)
    if not isinstance(rule, Graph):
        if isinstance(edge_index, Tensor) and edge_index.is_floating_point() and edge_index.layout == torch.strided:
            raise TypeError(
                f"expected edge_index (2, E) as second argument, got floats {tuple(edge_index.shape)}; tokens that x "
                "hears go to source=, as layer(x, source=memory), and of attention layer(q, source=(keys, values))"
            )
        for name, value in (("edge_index", edge_index), ("edge_type", kind)):
            if value is not None:
                raise ValueError(
                    f"{name} would be ignored by {rule}, which makes its own edges; use Graph(), or pass {name}=None, "
                    "as to a converted layer of PyG after swap()"
                )
        return None, attr, weight, 0
    if rule.self_loops and not one_set:
        raise ValueError(f"self_loops={rule.self_loops!r} is refused between two node sets, got sources and targets")
    if rule.built and edge_index is not None:
        raise ValueError(f"expected edge_index once, got it in {rule} and at the call; leave one of them out")
    if not rule.built and edge_index is None:
        raise ValueError(f"expected edge_index at the call, since {rule} was built without edges, got None")
    graph = rule if rule.built else edge_index if isinstance(edge_index, Graph) else None
    if graph is not None:
        index, attr, kind, weight = _of_graph(graph, rule, n, m, attr, kind, weight)
    else:
        index, weight = _of_call(edge_index, weight, n, m)
    if kind is None and rule.relations > 1:
        raise ValueError(f"expected edge_type (E,) in 0 … {rule.relations - 1} for {rule}, got None")
    if kind is not None and rule.relations == 1:
        raise ValueError("edge_type would be ignored by a Graph of one relation; build it with Graph(relations=…)")
    if kind is not None and kind.ndim != 1:
        raise ValueError(f"expected edge_type of shape (E,), got {tuple(kind.shape)}")
    if index.ndim == 2 and index.shape[0] == 2:
        _check_vector(attr)
        check_rows(attr, kind, weight, index.shape[-1], NAMES)
    return rule.link(index, kind, n, m), attr, weight, index.shape[-1]


def _of_graph(
    graph: Graph, rule: Graph, n: int, m: int, attr: Tensor | None, kind: Tensor | None, weight: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """A built graph's edges and data; the loop rule and the relations are the layer's."""
    if not graph.built:
        raise ValueError(f"expected a Graph built with its edges as edge_index, got {graph}")
    for name, unset in (("self_loops", None), ("relations", 1)):
        theirs, ours = getattr(graph, name), getattr(rule, name)
        if theirs not in (unset, ours):
            raise ValueError(f"expected a graph with {name}={ours!r}, as the layer's, got {theirs!r}")
    graph.check(n, m, None)
    given = {"edge_attr": attr, "edge_type": kind, "edge_weight": weight}
    for name, value in given.items():
        if value is not None and getattr(graph, name) is not None:
            raise ValueError(f"expected {name} once, got it in the graph and at the call; leave one of them out")
    joined = [getattr(graph, name) if value is None else value for name, value in given.items()]
    return graph.edge_index, *joined  # type: ignore[return-value]


def _of_call(edge_index: Any, weight: Tensor | None, n: int, m: int) -> tuple[Tensor, Tensor | None]:
    """The call's edge_index as a plain tensor, with the values of a sparse matrix."""
    if type(edge_index) is Tensor and edge_index.layout == torch.strided:
        return edge_index, weight
    index, values_, shape = read(edge_index)
    if not compiling():  # the same tensor at every call, so that what is derived from it is kept
        index = derived(lambda: read(edge_index)[0].detach().clone(), "index", edge_index)
    if values_ is not None and weight is not None:
        raise ValueError("expected edge weights once, got edge_weight= and a sparse matrix with values")
    if shape is not None and shape != (m, n):
        raise ValueError(f"expected a matrix A[target, source] of shape {(n, m)}, got {(shape[1], shape[0])}")
    return index, values_ if weight is None else weight


def attach(call: Call, attr: Tensor | None, weight: Tensor | None, rows: int = 0) -> None:
    """Give the call its edge attributes and weights: cast to x's dtype, filled in for added loops, blank where
    masked. ``rows``: how many edges the caller gave."""
    rule = call.neighbours
    if call.tokens[0].batch is not None:
        inside = (g.edges(call.targets, call.sources) for g in rule.modules() if isinstance(g, Graph) and g.built)
        for edges in (call.explicit, *inside):
            if edges is not None:
                _check_graphs(edges, *call.tokens)
    held = _held(rule, attr, weight)
    _check_wanted(call.weight, held[0] if attr is None else attr, held[1] if weight is None else weight)
    if weight is None and isinstance(rule, Graph) and rule.self_loops and rule.loop_weight != 1:
        weight = call.nodes["x_source"].new_ones(rows)  # an added loop weighs more or less than the edges
    if all(t is None for t in (attr, weight, *held)):
        return
    x, edges = call.nodes["x_source"], call.all_edges()
    keep = call.keep(edges)
    counted = None if keep is None else keep.any(-1)
    if not isinstance(rule, Graph):
        if edges.valid is not None:
            attr, weight = _spread(edges.valid, attr, weight)
        else:
            check_rows(attr, None, weight, edges.count, NAMES)
        graph = data_graph(rule)
        if graph is not None:
            held = graph.pick(edges, call.targets, *held, counted)
            attr, weight = held[0] if attr is None else attr, held[1] if weight is None else weight
    for name, given, axes in (("edge_attr", attr, 2), ("edge_weight", weight, 1)):
        if given is not None:
            same_device(name, given, x.device)
            broadcastable(name, given.shape[:-axes], call.lead, "the leading dimensions of x")
    attr, weight = (None if t is None else t.to(x.dtype) for t in (attr, weight))
    if isinstance(rule, Graph):
        attr, weight = rule.fill(edges, call.targets, attr, weight, counted)
    if counted is not None:  # what a mask removes is not seen, not even as NaN
        attr = None if attr is None else torch.where(counted[..., None], attr, 0)
        weight = None if weight is None else torch.where(counted, weight, 0)
    if call.weight.normalise == "softmax":
        weight = None  # checked: a sparse matrix of ones is a structure
    call.attr, call.edge_weight = attr, weight


def data_graph(rule: Neighbours) -> Graph | None:
    """The graph with attributes or weights, if there is one, whose edges are the pairs of an expression by & and -."""
    graph = getattr(rule, "graph", None)
    return graph if graph is not None and graph.has_data else None


def _held(rule: Neighbours, attr: Tensor | None, weight: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The attributes and weights that a graph inside an expression brings, a row for each of its own edges."""
    graph = data_graph(rule)
    if graph is None:
        return None, None
    for name, given in (("edge_attr", attr), ("edge_weight", weight)):
        if given is not None and getattr(graph, name) is not None:
            raise ValueError(f"expected {name} once, got it in the graph and at the call; leave one of them out")
    return graph.edge_attr, graph.weights() if weight is None else None


def _spread(valid: Tensor, attr: Tensor | None, weight: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Edge data of a traced list, in which some rows are no pair: the caller's rows at those that are."""
    row = (valid.cumsum(0) - 1).clamp(min=0)
    for name, given, axis in (("edge_attr", attr, -2), ("edge_weight", weight, -1)):
        if given is not None:
            values(valid.sum() == given.shape[axis], ValueError, f"expected {name} with one row for each edge")
    return (  # with a row more, so that there is one where there is no edge at all
        None if attr is None else F.pad(attr, (0, 0, 0, 1)).index_select(-2, row),
        None if weight is None else F.pad(weight, (0, 1)).index_select(-1, row),
    )


def _check_vector(attr: Tensor | None) -> None:
    if attr is not None and attr.ndim < 2:
        raise ValueError(
            f"expected edge_attr of shape (..., E, k), got {tuple(attr.shape)}; did you mean edge_weight=?"
        )


def _check_wanted(rule: Any, attr: Tensor | None, weight: Tensor | None) -> None:
    """Refuse edge data that nothing reads, miss what is needed, compare widths."""
    kind, width = type(rule).__name__, rule.edge_channels
    if attr is not None and width == 0:
        flat = attr.ndim == 1 or attr.shape[-1] == 1
        slip = "did you mean edge_weight=?" if flat else "build it with edge_channels=, or did you mean edge_weight=?"
        raise ValueError(f"edge_attr of shape {tuple(attr.shape)} would be ignored by {kind}; {slip}")
    if attr is not None and attr.ndim < 2:
        raise ValueError(
            f"expected edge_attr of shape (..., E, k), got {tuple(attr.shape)}; did you mean edge_weight=?"
        )
    if attr is not None and width and attr.shape[-1] != width:
        raise ValueError(f"expected edge_attr of shape (..., E, {width}) for {kind}, got {tuple(attr.shape)}")
    if attr is None and (width or getattr(rule, "needs_attr", False)):
        raise ValueError(f"expected edge_attr of shape (..., E, {width or 'k'}) for {kind}, got None")
    if weight is not None and not weight.is_floating_point():
        raise TypeError(f"expected edge_weight of a floating dtype, got {weight.dtype}")
    if weight is not None and rule.normalise == "softmax":
        text = "edge_weight is refused with softmax, whose weights sum to 1; pass score_bias= or edge_attr="
        values(weight == 1, ValueError, text, weight)


def _check_graphs(edges: Edges, source: Tokens, target: Tokens | None) -> None:
    """Refuse an edge between two graphs of a batch."""
    if source.batch is None or target is None or target.batch is None:
        return
    key = ("graphs", id(source.batch), id(target.batch))
    versions = [t._version if readable(t) and not t.is_inference() else None for t in (source.batch, target.batch)]
    seen = edges.cache.get(key)
    if seen is not None and None not in versions and seen[1] == versions:
        return
    same = source.batch[edges.source] == target.batch[edges.target]
    same = same if edges.valid is None else same | ~edges.valid
    values(same, ValueError, "expected edges inside the graphs of batch; one joins two, from source node", edges.source)
    if not compiling():
        edges.cache[key] = (source.batch, versions, target.batch)  # kept, so that no other tensor takes their identity
