"""triton: attention over listed edges on a GPU in one pass, without a tensor over edges and channels.

One program a row and head with an online softmax, its log-sum-exp kept; backward by a row pass and a transposed pass
that recompute the weights, without atomics (:mod:`mpnn.cuda.passes`). Masks and biases are one number per edge.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor

from mpnn.cuda.lines import Lines
from mpnn.kernels.base import Call
from mpnn.partial import attention, per_entry
from mpnn.reasons import TRACED, UNLISTED, WIDE_EDGES, no_products
from mpnn.scores import edge_bias
from mpnn.sparse.csr import Csr
from mpnn.spec import Spec

name = "triton"
INSTALLED = importlib.util.find_spec("triton") is not None
DEVICES = ("cuda",)  # Triton's interpreter adds "cpu", in the tests
PROGRAMS = 2**31 - 1  # of one launch
WIDEST = 256  # channels of a head that a program holds
TILE = 2048  # numbers of keys that a program holds at once


def unsupported(spec: Spec) -> list[str]:
    """Why this call is no attention over a list of edges on a GPU."""
    why = no_products(spec)
    if spec.device not in DEVICES:
        why.append(f"needs CUDA, and the tokens are on {spec.device}")
    elif not INSTALLED:
        why.append("Triton is not installed: pip install triton (torch's wheels for CUDA bring it on Linux)")
    if not spec.listed:
        why.append(UNLISTED)
    if spec.dtype not in ("float32", "float16", "bfloat16"):
        why.append(f"computes in float32, and the tokens are {spec.dtype}")
    if spec.edge_attr and spec.weight == "QKSoftmax":
        why.append(WIDE_EDGES)
    if spec.dropout:
        why.append("dropout acts on weights, which this kernel never holds")
    if spec.learned_bias:
        why.append("the gradient of a score bias is a number per edge and head, which this kernel never holds")
    if max(spec.score_channels, spec.channels // max(1, spec.kv_heads)) > WIDEST:
        why.append(f"heads of more than {WIDEST} channels do not fit a program")
    if max(spec.targets, spec.sources) * spec.batch * spec.parts > PROGRAMS:
        why.append("more rows and heads than one launch has programs")
    if spec.compiling:
        why.append(TRACED)
    return why


def run(call: Call, reference: Any) -> Tensor:
    """The aggregate: (..., N, C)."""
    return attention(call, [partial(call)], reference)


def partial(call: Call) -> Rows:
    """The part of an attention that this call is."""
    csr = Csr.of(call.all_edges(), call.targets, call.sources)
    return Rows(csr, call.weight.scale, edge_bias(call, csr.edges, csr.order, torch.float32), call.entries)


class Rows:
    """The attention of listed edges, a :class:`~mpnn.partial.Part`."""

    def __init__(self, csr: Csr, scale: float, bias: Tensor | None, entries: int) -> None:
        self.csr, self.scale, self.bias, self.entries = csr, scale, bias, entries

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """(out, lse) of query (B, heads, N, D), key (B, heads, M, D) and value (B, heads, M, E)."""
        from mpnn.cuda import passes, pieces

        query, key, value = (_rows(t) for t in (query, key, value))
        (entries, heads, targets, width), own = query.shape, value.shape[-1]
        out = _empty(query, targets, own)
        lse = torch.empty(entries, heads, targets, dtype=torch.float32, device=query.device)
        if not lse.numel():
            return out, lse
        lines, (bias, strides), sizes = Lines.of(self.csr), self._bias(query), self._sizes(width, value)
        side, side_lse = lines.side(query, own), lines.side(query)
        with torch.cuda.device_of(query):  # Triton launches on the current device
            passes.forward[(entries * heads * lines.count,)](
                query, key, value, *lines.tensors, self.csr.col, bias, out, lse, side, side_lse, self.scale,
                lines.count, lines.pieces, targets, heads, width, own, *_strides(query, key, value, out), *strides,
                SPLIT=lines.pieces > 0, **sizes,
            )  # fmt: skip
            if lines.long is not None:
                pieces.join[(entries * heads * len(lines.long),)](
                    side, side_lse, lines.long, lines.first_piece, out, lse, len(lines.long), lines.pieces, targets,
                    heads, own, *_strides(out), DV=sizes["DV"],
                )  # fmt: skip
        return out, lse

    def backward(
        self, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        from mpnn.cuda import passes

        query, key, value, grad = (_rows(t) for t in (query, key, value, grad))
        (entries, heads, targets, width), own = query.shape, value.shape[-1]
        lse, delta = lse.to(torch.float32).contiguous(), (grad.float() * out.float()).sum(-1).contiguous()
        made = [_empty(query, t.shape[2], t.shape[3]) for t in (query, key, value)]
        (bias, strides), sizes, read = self._bias(query), self._sizes(width, value), (query, key, value, grad)
        numbers, other = (targets, heads, width, own), self.csr.transpose
        with torch.cuda.device_of(query):
            if made[0].numel():
                lines = Lines.of(self.csr)
                side = lines.side(query, width)
                passes.rows[(entries * heads * lines.count,)](
                    *read, *lines.tensors, self.csr.col, bias, lse, delta, made[0], side, self.scale, lines.count,
                    lines.pieces, *numbers, *_strides(*read, made[0]), *strides, SPLIT=lines.pieces > 0, **sizes,
                )  # fmt: skip
                _add(lines, side, made[0], sizes["D"])
            if made[1].numel() or made[2].numel():
                lines = Lines.of(other)
                sides = lines.side(query, width), lines.side(query, own)
                passes.columns[(entries * heads * lines.count,)](
                    *read, *lines.tensors, other.col, other.order, bias, lse, delta, *made[1:], *sides, self.scale,
                    lines.count, lines.pieces, *numbers, *_strides(*read, *made[1:]), *strides,
                    SPLIT=lines.pieces > 0, **sizes,
                )  # fmt: skip
                _add(lines, sides[0], made[1], sizes["D"])
                _add(lines, sides[1], made[2], sizes["DV"])
        return made[0], made[1], made[2]

    def _bias(self, query: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """The bias and its strides of an entry and a head; without one, any tensor stands in its place."""
        if self.bias is None:
            return query, (0, 0)
        bias = per_entry(self.bias, query.shape[0]) if query.shape[0] != self.entries else self.bias
        return bias, (bias.stride(0) * (bias.shape[0] > 1), bias.stride(1) * (bias.shape[1] > 1))

    def _sizes(self, width: int, value: Tensor) -> dict[str, Any]:
        """What a kernel is compiled for: powers of two that hold the channels, and how many edges go together, as many
        as a row has on average but no more than a tile holds."""
        d, dv = (max(16, _power(n)) for n in (width, value.shape[-1]))
        mean = _power(len(self.csr.row) // max(1, *self.csr.shape))
        edges = max(8, min(mean, TILE // max(d, dv)))
        warps = min(4, max(1, edges * max(d, dv) // 512))
        return {"BIASED": self.bias is not None, "D": d, "DV": dv, "EDGES": edges, "num_warps": warps}


def _add(lines: Lines, side: Tensor, out: Tensor, size: int) -> None:
    """Sum what the pieces of long rows found."""
    from mpnn.cuda import pieces

    if lines.long is not None:
        entries, heads, _, width = out.shape
        rest = len(lines.long), lines.pieces, heads, width, *_strides(out)
        pieces.add[(entries * heads * len(lines.long),)](side, lines.long, lines.first_piece, out, *rest, D=size)


def _power(n: int) -> int:
    """The smallest power of two that is no smaller."""
    return 1 << max(0, n - 1).bit_length()


def _rows(x: Tensor) -> Tensor:
    """With the channels side by side; the other axes keep their strides, so that a layer's tensors are not copied."""
    return x if x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()


def _empty(like: Tensor, tokens: int, width: int) -> Tensor:
    """(B, heads, tokens, width) that lies in memory as a layer wants it: (B, tokens, heads, width)."""
    entries, heads = like.shape[:2]
    return torch.empty(entries, tokens, heads, width, dtype=like.dtype, device=like.device).transpose(1, 2)


def _strides(*tensors: Tensor) -> list[int]:
    return [s for t in tensors for s in t.stride()[:3]]
