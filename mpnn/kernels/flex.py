"""flex: windows, grids and ragged batches on a GPU through torch's FlexAttention.

The blocks of pairs that its kernel visits are found from the ends of each target's window (``mpnn.cuda.boxes``), never
by evaluating N × M pairs. FlexAttention is compiled once a process; what tells one rule from another reaches it as
tensors, so that another window is no other program.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from mpnn.cuda.boxes import BORDERS, RULES, Boxes, boxes_of, reached
from mpnn.kernels.base import Call
from mpnn.memo import derived, outside
from mpnn.neighbours import Neighbours
from mpnn.partial import attention
from mpnn.reasons import EDGE_FEATURES, NO_PRODUCTS, TRACED
from mpnn.slots import two
from mpnn.spec import Spec
from mpnn.tokens.base import Tokens

name = "flex"
DEVICES = ("cuda",)  # "cpu" too in the tests of its forward; on the CPU FlexAttention has no backward
BLOCK = 128  # tokens of a block; twice as many where there would be too many blocks
BLOCKS = 1 << 24  # entries of the table of blocks
HEADS = 65_535  # heads of all batch entries in one launch
FIELDS = (  # of a BlockMask, besides its function
    "seq_lengths", "kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks", "q_indices",
    "full_q_num_blocks", "full_q_indices", "BLOCK_SIZE",
)  # fmt: skip
PROGRAMS = 64  # shapes and dtypes for which FlexAttention may be compiled


def unsupported(spec: Spec) -> list[str]:
    """Why this call is no attention of boxes of sources on a GPU."""
    why = []
    if spec.device not in DEVICES:
        why.append(f"needs CUDA, and the tokens are on {spec.device}")
    if spec.neighbours not in RULES:
        why.append(f"needs {', '.join(RULES)}: each target sees a box of sources")
    if spec.border not in BORDERS:
        why.append(f"border={spec.border!r} shows a cell more than once or beyond the end")
    if spec.weight not in ("QKSoftmax", "attend"):
        why.append(NO_PRODUCTS)
    if spec.dtype not in ("float32", "float16", "bfloat16"):
        why.append(f"computes in float32, and the tokens are {spec.dtype}")
    if min(spec.score_channels, spec.channels // max(1, spec.kv_heads)) < 16:
        why.append("FlexAttention needs heads of 16 channels or more")
    if spec.edge_attr:
        why.append(EDGE_FEATURES)
    if spec.score_bias is not None or spec.score:
        why.append("a score bias or function, pair by pair")
    if spec.pair_mask:
        why.append("a mask of pairs is no box")
    if spec.dropout:
        why.append("FlexAttention has no dropout")
    if not (spec.targets and spec.sources and spec.batch):
        why.append("no tokens")
    if spec.batch * spec.parts > HEADS:
        why.append(f"more than {HEADS:,} heads in all batch entries, the most of one launch")
    if spec.compiling:
        why.append(TRACED)
    if spec.transforms:
        why.append("functional transforms do not reach into a compiled program")
    return why


def run(call: Call, reference: Any) -> Tensor:
    """The aggregate: (..., N, C)."""
    return attention(call, [partial(call)], reference)


def partial(call: Call) -> Flex:
    """The part of an attention that this call is."""
    tensors = [call.nodes[n] for n in ("query", "key", "value")]
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    return Flex(block_mask(call), call.weight.scale, wanted)


@lru_cache(maxsize=1)
def compiled() -> Callable[..., Any]:
    """FlexAttention through torch.compile, once a process; whole, since uncompiled it would hold N × M scores."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, fullgraph=True)


class Flex:
    """The attention of a block mask, a :class:`~mpnn.partial.Part`. ``wanted``: a backward will follow."""

    def __init__(self, mask: Any, scale: float, wanted: bool) -> None:
        self.mask, self.scale, self.wanted = mask, scale, wanted
        self.kept: tuple[Tensor, Tensor, list[Tensor]] | None = None  # with the graph of FlexAttention's own backward

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        out, lse, inner = self._run(query, key, value)
        if self.wanted:
            self.kept = out, lse, inner
        return out.detach(), lse.detach()

    def backward(
        self, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """With O = Σ_p s_p o_p and s_p = exp(l_p - L): ∂o_p = s_p g, ∂l_p = s_p g·(o_p - O)."""
        own, own_lse, inner = self.kept or self._run(query, key, value)
        keep = torch._C._autograd._get_current_graph_task_keep_graph()
        if not keep:
            self.kept = None
        outputs, ups = [own], [grad]
        if own_lse.data_ptr() != lse.data_ptr():  # not the only part
            share = (own_lse.detach() - lse.masked_fill(lse == -torch.inf, 0)).exp()
            apart = (grad.float() * (own.detach().float() - out.float())).sum(-1)
            outputs, ups = [own, own_lse], [(grad * share[..., None]).to(own.dtype), (share * apart).to(own_lse.dtype)]
        for_query, for_key, for_value = torch.autograd.grad(outputs, inner, ups, retain_graph=keep)
        return for_query, for_key, for_value

    def _run(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        from torch._dynamo.config import patch
        from torch.nn.attention.flex_attention import AuxRequest

        with torch.set_grad_enabled(self.wanted), patch(recompile_limit=PROGRAMS):
            inner = [t.detach().requires_grad_(self.wanted) for t in (query, key, value)]
            out, more = compiled()(*inner, block_mask=self.mask, scale=self.scale, return_aux=AuxRequest(lse=True))
        return out, more.lse, inner


def block_mask(call: Call) -> Any:
    """The call's BlockMask, kept with the rule and the sizes, or with the tensors that it depends on."""
    rule, device = call.neighbours, call.value.device
    source, target = two(call.target_tokens)
    assert source is not None and target is not None
    sizes = (rule, call.targets, call.sources, source.grid, device)
    if source.batch is None:
        made = _made(*sizes)
    else:
        ends = source, target
        made = derived(
            lambda: _blocks(boxes_of(*sizes[:3], ends, device)), ("flex", *sizes), source.batch, target.batch
        )
    mask = call.source_mask
    if mask is None:
        return made[0]
    mask = mask.expand(*call.lead, call.sources).reshape(-1, call.sources) if mask.ndim > 1 else mask[None]
    _, blocks, sees = made
    return _masked(blocks, sees, mask.contiguous())


@lru_cache(maxsize=16)
def _made(rule: Neighbours, targets: int, sources: int, grid: Any, device: torch.device) -> tuple[Any, ...]:
    blank = torch.empty(sources, 0, device=device)
    with outside():
        return _blocks(boxes_of(rule, targets, sources, Tokens(blank, grid=grid), device))


def _blocks(boxes: Boxes) -> tuple[Any, ...]:
    """(BlockMask, one without full blocks, for calls with a mask of sources, what decides in a block)."""
    targets, place = boxes.low.shape[1], boxes.places()
    sources, block = place.shape[1], BLOCK
    while (targets // block) * (sources // block) > BLOCKS:
        block *= 2
    some, every = reached(boxes, block)
    step = torch.tensor(boxes.steps, device=place.device)[:, None]
    tensors = [boxes.low, boxes.high, place]
    if max(boxes.steps) > 1:  # places are compared by their remainders: no division for each pair
        tensors += [boxes.low % step, place % step]
    sees = _inside([t.to(torch.int32) for t in tensors], len(boxes.size))
    shape = (targets, sources), block
    return _block_mask(some & ~every, every, sees, *shape), _block_mask(some, some & False, sees, *shape), sees


def _block_mask(partial: Tensor, full: Tensor, sees: Any, lengths: tuple[int, int], block: int) -> Any:
    from torch.nn.attention.flex_attention import BlockMask

    (count, index), (full_count, full_index) = _listed(partial), _listed(full)
    return BlockMask.from_kv_blocks(
        count, index, full_count, full_index, BLOCK_SIZE=block, mask_mod=sees, seq_lengths=lengths
    )


def _listed(table: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks each row has, and which, these first: int32 (1, 1, rows), (1, 1, rows, columns)."""
    order = torch.argsort(table.to(torch.int8), dim=-1, descending=True, stable=True)
    return table.sum(-1, dtype=torch.int32)[None, None], order.to(torch.int32)[None, None].contiguous()


def _inside(tensors: list[Tensor], axes: int) -> Callable[..., Tensor]:
    """Whether target i sees source j, from the boxes' tensors (axes, N or M)."""

    def sees(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        low, high, place, *rests = tensors
        found = (place[0, j] >= low[0, i]) & (place[0, j] < high[0, i])
        for a in range(1, axes):
            found = found & (place[a, j] >= low[a, i]) & (place[a, j] < high[a, i])
        if rests:
            for a in range(axes):
                found = found & (rests[0][a, i] == rests[1][a, j])
        return found

    return sees


def _masked(blocks: Any, sees: Callable[..., Tensor], taken: Tensor) -> Any:
    """The same blocks with a mask of sources, bool (B or 1, M)."""
    from torch.nn.attention.flex_attention import BlockMask

    batched = taken.shape[0] > 1

    def unmasked(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return sees(b, h, i, j) & taken[b if batched else 0, j]

    return BlockMask(**{name: getattr(blocks, name) for name in FIELDS}, mask_mod=unmasked)
