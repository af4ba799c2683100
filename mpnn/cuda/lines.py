"""Lines: the rows of a graph as a GPU's programs take them, long ones cut into pieces, so that no hub keeps one program
busy long after all others are done."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext

import torch
from torch import Tensor

from mpnn.memo import lasting, outside
from mpnn.sparse.csr import Csr

LONG = 512  # edges of a row beyond which several programs share it


@dataclasses.dataclass(frozen=True)
class Lines:
    """The rows of a Csr as a launch takes them, long ones cut into pieces of ``LONG`` edges."""

    count: int
    tensors: tuple[Tensor, ...]  # of each line: its row, its first edge, the one after its last, its place in the side
    pieces: int = 0  # lines that are pieces of long rows
    long: Tensor | None = None  # these rows
    first_piece: Tensor | None = None  # and where each one's pieces begin, and the last one's end

    @staticmethod
    def of(csr: Csr) -> Lines:
        """Made once for a Csr."""
        key = ("lines", LONG)
        if key not in csr.cache:
            with outside() if lasting(csr.row) else nullcontext():
                csr.cache[key] = Lines._made(csr)
        return csr.cache[key]

    @staticmethod
    def _made(csr: Csr) -> Lines:
        edges = csr.offsets.diff()
        parts = (-(-edges // LONG)).clamp(min=1)
        long = (parts > 1).nonzero().squeeze(-1)
        if not len(long):
            return Lines(len(edges), (csr.start, csr.start, csr.start[1:], csr.start))
        owner = torch.repeat_interleave(torch.arange(len(edges), device=edges.device), parts)
        nth = torch.arange(len(owner), device=owner.device) - (parts.cumsum(0) - parts)[owner]
        start = csr.offsets[owner] + nth * LONG
        stop = torch.minimum(start + LONG, csr.offsets[owner + 1])
        piece = parts[owner] > 1
        slot = torch.where(piece, piece.cumsum(0) - 1, -1)
        first_piece = torch.nn.functional.pad(parts[long].cumsum(0), (1, 0))
        return Lines(len(owner), (owner, start, stop, slot), int(first_piece[-1]), long, first_piece)

    def side(self, like: Tensor, *width: int) -> Tensor:
        """Room for what pieces find, float32 (B, heads, pieces, width); without pieces any tensor."""
        if not self.pieces:
            return like
        return torch.empty(*like.shape[:2], self.pieces, *width, dtype=torch.float32, device=like.device)
