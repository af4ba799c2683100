"""attend: attention as a function, over any neighbourhood."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

from torch import Tensor, nn

from mpnn.binding import check_pair_mask, read_bias
from mpnn.call import Call
from mpnn.checks import bool_mask, dense, divides, instance, one_of, same_device, share, transforms
from mpnn.edge_data import attach, data_graph, list_edges
from mpnn.kernels import reference as reference_kernel
from mpnn.neighbours import Neighbours
from mpnn.pairs import Pairs
from mpnn.places import place
from mpnn.plan import BY_NAME, NAMES, choose, forced
from mpnn.readers import check_read
from mpnn.returned import returned
from mpnn.scores import edge_scores
from mpnn.slips import refuse
from mpnn.spec import spec_of, unwrap
from mpnn.token_sets import check_batches
from mpnn.tokens.base import Tokens

TAKES = (
    "q", "k", "v", "neighbours", "mask", "pair_mask", "batch", "positions", "coordinates", "grid", "score_bias",
    "score", "dropout", "scale", "kernel", "return_weights",
)  # fmt: skip


class GivenScores:
    """The weight rule of :func:`attend`: queries and keys are given, nothing is learned."""

    spec_name = "attend"
    groups, reduce, normalise, edge_channels, fixed, position = None, "sum", "softmax", 0, False, None

    def __init__(
        self, heads: int, scale: float, score_bias: nn.Module | None, score: Callable[[Tensor, Pairs], Tensor] | None
    ) -> None:
        self.heads, self.scale, self.score_bias, self.score = heads, scale, score_bias, score

    def per_edge(self, pairs: Pairs) -> Tensor:
        return edge_scores(pairs, self.scale, self.score_bias, self.score)

    def edge_value(self, pairs: Pairs) -> None:
        return None

    def project(self, x: Tensor) -> Tensor:
        return x


def attend(  # type: ignore[no-untyped-def]
    q: Tensor, k: Tensor, v: Tensor, neighbours: Neighbours, *, mask=None, pair_mask=None, batch=None, positions=None,
    coordinates=None, grid=None, score_bias=None, score=None, dropout=0.0, scale=None, kernel=None,
    return_weights=False, **unknown,
) -> Any:  # fmt: skip
    """Attention over a neighbourhood: y_i = Σ_{j ∈ N(i)} softmax_j(scale · q_i·k_j + bias_ij) v_j.

    It trains on the CPU for every neighbourhood. Fewer key heads than query heads is grouped-query attention. Dropout
    acts as given, in training or not. A target without a source has output 0. ``causal`` aligns the ends of targets and
    sources (the flag of ``F.scaled_dot_product_attention`` aligns the starts).

    Shapes:
        q (..., heads, N, D), k (..., kv_heads, M, D), v (..., kv_heads, M, E) → (..., heads, N, E) · mask bool (..., M)
        over sources · pair_mask bool, broadcast to (..., heads, N, M), as SDPA's · batch int (N,) where N = M, or a
        pair (sources, targets) · positions, coordinates: likewise · score_bias: floats broadcast to (..., heads, N, M),
        or (E, heads) for a ``Graph``, or a module of ``mpnn.positions`` · ``score(scores, pairs)``: changes the scores
        (..., E, heads) after scale and bias.

    Raises:
        TypeError, ValueError: at the door, with what was expected and what came.

    Source: Vaswani et al. (2017), `arXiv:1706.03762 <https://arxiv.org/abs/1706.03762>`_;
    ``torch.nn.functional.scaled_dot_product_attention``.

    Example::

        >>> import torch
        >>> from mpnn import attend
        >>> from mpnn.neighbours import Window
        >>> q = k = v = torch.ones(2, 5, 4)
        >>> attend(q, k, v, Window(2, 0)).shape
        torch.Size([2, 5, 4])
    """
    if unknown:
        refuse("attend", unknown, TAKES)
    call, name = bind_attention(
        q, k, v, neighbours, mask=mask, pair_mask=pair_mask, batch=batch, positions=positions, coordinates=coordinates,
        grid=grid, score_bias=score_bias, score=score, dropout=dropout, scale=scale, kernel=kernel,
    )  # fmt: skip
    y = run_attention(call, name)
    return (y, returned(call)) if return_weights else y


def run_attention(call: Call, name: str) -> Tensor:
    """The output (..., heads, N, E) of a bound call, by the kernel of this name."""
    y = BY_NAME[name].run(call, reference_kernel.run)
    return y.unflatten(-1, (call.weight.heads, call.value.shape[-1])).transpose(-3, -2)


def bind_attention(  # type: ignore[no-untyped-def]
    q: Tensor, k: Tensor, v: Tensor, neighbours: Neighbours, *, mask=None, pair_mask=None, batch=None, positions=None,
    coordinates=None, grid=None, score_bias=None, score=None, dropout=0.0, scale=None, kernel=None,
) -> tuple[Call, str]:  # fmt: skip
    """The call of :func:`attend`, checked, and the name of the kernel that runs it."""
    _check(q, k, v, neighbours, score_bias, kernel)
    share("dropout", dropout)
    if score is not None and not callable(score):
        raise TypeError(f"expected score to be a function of (scores, pairs), got {type(score).__name__}")
    lead, heads, n, m = tuple(q.shape[:-3]), q.shape[-3], q.shape[-2], k.shape[-2]
    module = score_bias if isinstance(score_bias, nn.Module) else None
    if scale is not None:
        _check_scale(scale)
    rule = GivenScores(heads, 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale), module, score)
    check_read(neighbours, rule, positions, coordinates, grid)
    if neighbours.reads_tokens and coordinates is None and type(neighbours).__module__.startswith("mpnn."):
        raise ValueError(f"expected coordinates= for {neighbours}, since attend has no features to compare, got None")
    bool_mask("mask", mask)
    check_pair_mask(pair_mask, lead, heads, n, m, q.device)
    source, target = _tokens(q, k, mask, grid, {"positions": positions, "coordinates": coordinates, "batch": batch})
    own = neighbours.target_count(m, source)
    if own is not None and own != n:
        raise ValueError(f"expected q of {own} targets for {neighbours}, got {n}")
    neighbours.check(n, m, (source, target))
    check_batches(neighbours, None, source, target)
    edges, attr, weight, rows = list_edges(neighbours, n, m, n == m, None, None, None, None)
    if attr is not None or weight is not None or data_graph(neighbours) is not None:
        raise ValueError("the graph's edge data would be ignored by attend; pass score_bias=, (E, heads) for a Graph")
    nodes = {"x_source": source.x, "x_target": target.x, "query": q, "key": k, "value": v}
    if mask is not None:
        nodes |= {
            "key": k.masked_fill(~mask[..., None, :, None], 0),
            "value": v.masked_fill(~mask[..., None, :, None], 0),
        }
    call = Call(
        neighbours, rule, n, m, lead, nodes, (source, target), edges, source_mask=mask, pair_mask=pair_mask,
        dropout=float(dropout), one_set=n == m and not isinstance(coordinates, tuple),
        transformed=bool(transforms()),
    )  # fmt: skip
    attach(call, None, None)
    if isinstance(score_bias, Tensor):
        call.nodes |= read_bias(call, score_bias, heads, rows)
    place(call, one_set=n == m and positions is None and not isinstance(batch, tuple))
    call.nodes |= call.constants
    unwrap(call)
    name, _ = choose(spec_of(call, rule), forced(kernel))
    return call, name


def _tokens(q: Tensor, k: Tensor, mask: Tensor | None, grid: Any, fields: dict[str, Any]) -> tuple[Tokens, Tokens]:
    """What edges() sees of sources and targets: one row per token, without heads."""
    same = q.shape[-2] == k.shape[-2]
    ends: list[dict[str, Any]] = [{n: _end(v, end, n, same) for n, v in fields.items()} for end in (0, 1)]
    return Tokens(k[..., 0, :, :].detach(), mask=mask, grid=grid, **ends[0]), Tokens(
        q[..., 0, :, :].detach(), **ends[1]
    )


def _check(q: Tensor, k: Tensor, v: Tensor, neighbours: Any, score_bias: Any, kernel: str | None) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, Tensor) or tensor.ndim < 3 or not tensor.is_floating_point():
            got = f"{tuple(tensor.shape)} of {tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise (ValueError if isinstance(tensor, Tensor) else TypeError)(
                f"expected {name} of shape (..., heads, N, D), floating point, got {got}"
            )
        dense(name, tensor, "(..., heads, N, D)")
        same_device(name, tensor, q.device)
        if tensor.dtype != q.dtype:
            raise TypeError(f"expected q, k and v of one dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
    instance("neighbours", neighbours, Neighbours, "a rule of mpnn.neighbours")
    for name, tensor in (("q", q), ("k", k)):
        if tensor.shape[-3] == 0 or tensor.shape[-1] == 0:
            raise ValueError(
                f"expected {name} of shape (..., heads, N, D) with heads ≥ 1 and D ≥ 1, got {tuple(tensor.shape)}"
            )
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"expected q and k of the same width, got {q.shape[-1]} and {k.shape[-1]}")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"expected k and v of the same heads and length, got {tuple(k.shape)} and {tuple(v.shape)}")
    if q.shape[:-3] != k.shape[:-3]:
        raise ValueError(f"expected q and k of the same leading dimensions, got {tuple(q.shape)} and {tuple(k.shape)}")
    divides("the heads of k", k.shape[-3], "the heads of q", q.shape[-3])
    if isinstance(score_bias, nn.Module) and getattr(score_bias, "heads", q.shape[-3]) != q.shape[-3]:
        raise ValueError(f"expected score_bias for {q.shape[-3]} heads, got {score_bias.heads}")
    if getattr(neighbours, "loop_weight", 1.0) != 1.0:
        raise ValueError("loop_weight would be ignored by a softmax, whose weights sum to 1; leave it at 1")
    if score_bias is not None and not isinstance(score_bias, Tensor | nn.Module):
        raise TypeError(
            f"expected score_bias to be a tensor or a module of mpnn.positions, got {type(score_bias).__name__}"
        )
    if kernel is not None:
        one_of("kernel", kernel, NAMES)


def _check_scale(scale: Any) -> None:
    if not isinstance(scale, Real):
        raise TypeError(f"expected scale to be a number, got {scale!r} ({type(scale).__name__})")
    if not math.isfinite(scale):
        raise ValueError(f"expected scale to be finite, got {scale}")


def _end(given: Any, end: int, name: str, one: bool) -> Tensor | None:
    """A field of the sources (0) or the targets (1): one tensor where both are one set, else a pair."""
    if given is None or isinstance(given, tuple):
        return None if given is None else given[end]
    if not one:
        raise ValueError(f"expected {name} as a pair (sources, targets), since N ≠ M, got one tensor")
    return given
