"""Network: tokens → position → blocks → readout, the one model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from mpnn.checks import instance
from mpnn.message_passing import MessagePassing
from mpnn.neighbours import AllTokens, Graph
from mpnn.positions import GraphCode, Rotary
from mpnn.positions.base import ScoreBias
from mpnn.readers import reads_offset
from mpnn.slips import refuse
from mpnn.token_sets import token_sets
from mpnn.tokens.base import Tokens
from mpnn.tokens.places import counted_positions

TAKES = (
    "x", "edge_index", "edge_attr", "mask", "pair_mask", "positions", "coordinates", "batch", "grid", "edge_type",
    "edge_weight",
)  # fmt: skip


class Readout(nn.Module):
    """The tokens of a sample as one vector, then a Linear: (..., N, C) → (..., classes).

    Args:
        channels, classes: of the Linear. pool: "mean" or "sum" or "max" over the tokens that take part; "first", the
        first token;
            "flatten", all of them, channels first, as ``nn.Flatten`` on (B, C, L); "none", one output per token.
        norm: a module before the pooling, as the final LayerNorm of a Transformer.

    With ``batch`` the graphs are pooled one by one: (N, C) → (graphs, classes).

    Example: see :func:`~mpnn.models.Transformer`.
    """

    POOLS = ("mean", "sum", "max", "first", "flatten", "none")

    def __init__(self, channels: int, classes: int, pool: str = "mean", *, norm: nn.Module | None = None) -> None:
        super().__init__()
        if pool not in self.POOLS:
            raise ValueError(f"expected pool to be one of {', '.join(self.POOLS)}, got {pool!r}")
        self.pool, self.norm, self.linear = pool, norm, nn.Linear(channels, classes)

    def forward(self, x: Tensor, tokens: Tokens) -> Tensor:
        x = x if self.norm is None else self.norm(x)
        return self.linear(self._pool(x, tokens))

    def _pool(self, x: Tensor, tokens: Tokens) -> Tensor:
        if self.pool == "none":
            return x
        if self.pool == "first":
            return x[..., 0, :]
        mask = tokens.mask
        if self.pool == "flatten":
            x = x if mask is None else x.masked_fill(~mask[..., None], 0)
            return x.transpose(-2, -1).flatten(-2)
        if tokens.batch is not None:
            return self._per_graph(x, tokens)
        if self.pool == "max":
            top = x if mask is None else x.masked_fill(~mask[..., None], -torch.inf)
            top = top.amax(-2)
            return top.masked_fill(torch.isinf(top), 0)
        total = (x if mask is None else x.masked_fill(~mask[..., None], 0)).sum(-2)
        if self.pool == "sum":
            return total
        count = x.shape[-2] if mask is None else mask.sum(-1, keepdim=True).clamp(min=1)
        return total / count

    def _per_graph(self, x: Tensor, tokens: Tokens) -> Tensor:
        from torch_geometric.utils import scatter

        assert tokens.batch is not None
        graphs = int(tokens.batch[-1]) + 1 if tokens.batch.numel() else 0
        batch = tokens.batch.long()
        if tokens.mask is not None:
            x, batch = x[tokens.mask], batch[tokens.mask]
        return scatter(x, batch, 0, graphs, self.pool)


class Network(nn.Module):
    """tokens → position → blocks → readout.

    Args:
        blocks: modules called as ``block(x, call)``, where ``call(layer, x)`` runs a :class:`~mpnn.MessagePassing` on
            x with the edges, masks and places of this forward: :class:`PlainBlock`, :class:`ResidualBlock`,
            :class:`Skip`.
        tokens: a tokeniser that makes :class:`~mpnn.Tokens` of the data; None takes tensors (..., N, C) or Tokens as
        they are.
        embed: a module on the tokens' channels, as an ``nn.Linear``. position: a code of :mod:`mpnn.positions`, added
        to x.
        readout: a :class:`Readout`, or any module called as ``readout(x, tokens)``; None returns the tokens (..., N,
        C).

    Shapes: the arguments of the call are those of :class:`~mpnn.MessagePassing`. It returns a tensor, also for Tokens.

    Masked tokens become zero before anything is computed: outputs and gradients do not depend on what stood there.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing
        >>> from mpnn.models import Network, PlainBlock, Readout
        >>> from mpnn.neighbours import Window
        >>> from mpnn.weights import SharedKernel
        >>> layers = [MessagePassing(Window(1), SharedKernel(a, b)) for a, b in ((1, 8), (8, 8))]
        >>> blocks = [PlainBlock(layer, torch.nn.ReLU()) for layer in layers]
        >>> Network(blocks, readout=Readout(8, 10))(torch.ones(4, 40, 1)).shape
        torch.Size([4, 10])
    """

    def __init__(
        self,
        blocks: Iterable[nn.Module],
        *,
        tokens: nn.Module | None = None,
        embed: nn.Module | None = None,
        position: nn.Module | None = None,
        readout: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if position is not None:
            instance("position", position, nn.Module, "a code that is added to x, as Sinusoidal(channels)")
        if isinstance(position, Rotary | ScoreBias):
            given, name = ("position", "Rotary") if isinstance(position, Rotary) else ("score_bias", "a score bias")
            raise TypeError(
                f"expected position to be a code that is added to x, as Sinusoidal(channels), got {name}, which goes "
                f"into attention: weight=lambda c: QKSoftmax(c, heads=4, {given}=...)"
            )
        self.tokens, self.embed, self.position = tokens, embed, position
        self.blocks, self.readout = nn.ModuleList(blocks), readout

    def forward(  # type: ignore[no-untyped-def]
        self, x, edge_index=None, edge_attr=None, *, mask=None, pair_mask=None, positions=None, coordinates=None,
        batch=None, grid=None, edge_type=None, edge_weight=None, **unknown,
    ) -> Tensor:  # fmt: skip
        """The readout of the tokens after all blocks."""
        if unknown:
            refuse("the network", unknown, TAKES)
        if self.tokens is not None:
            x = self.tokens(x)
        self._check_read(
            edge_index=edge_index, edge_attr=edge_attr, edge_type=edge_type, edge_weight=edge_weight,
            positions=positions, coordinates=coordinates, grid=grid,
        )  # fmt: skip
        fields = {"mask": mask, "positions": positions, "coordinates": coordinates, "batch": batch, "grid": grid}
        tokens = token_sets(AllTokens(), x, None, fields)[0].clean()
        edges = {
            k: v
            for k, v in (("edge_attr", edge_attr), ("edge_type", edge_type), ("edge_weight", edge_weight))
            if v is not None
        }

        def call(layer: MessagePassing, y: Tensor) -> Tensor:
            # strided and dense layers change the number of tokens: what belongs to the old ones is left behind
            given = tokens.replace(x=y) if tokens.x.shape[-2] == y.shape[-2] else y
            if isinstance(layer.neighbours, Graph):
                return layer(given, edge_index, pair_mask=pair_mask, **edges)
            return layer(given, pair_mask=pair_mask)

        width = getattr(self.embed, "in_features", None) or (self.blocks and getattr(self.blocks[0], "channels", None))
        if width and tokens.x.shape[-1] != width:
            raise ValueError(f"expected x of shape (..., N, {width}), got {tuple(tokens.x.shape)}")
        y = tokens.x if self.embed is None else self.embed(tokens.x)
        if self.position is not None:
            y = self._position(y, tokens, edge_index, edge_weight)
        for block in self.blocks:
            y = block(y, call)
        if self.readout is None:
            return y
        return self.readout(y, tokens if y.shape[-2] == tokens.x.shape[-2] else Tokens(y))

    def _check_read(self, **given: Any) -> None:
        """Refuse an argument that no layer and no position module of this network reads."""
        given = {name: value for name, value in given.items() if value is not None}
        layers = [m for m in self.modules() if isinstance(m, MessagePassing)] if given else []
        codes = [self.position] + [getattr(m.weight, n, None) for m in layers for n in ("position", "score_bias")]
        read = {
            "positions": any(c is not None for c in codes),
            "coordinates": any(reads_offset(m.weight) for m in layers),
            "grid": any(hasattr(m.neighbours, "size_of") for m in layers),
        }
        graph = any(isinstance(m.neighbours, Graph) for m in layers) or isinstance(self.position, GraphCode)
        for name in given:
            own = any(not type(m.neighbours).__module__.startswith("mpnn.") for m in layers)
            if not (read.get(name, graph) or own):
                raise ValueError(f"{name} would be ignored by this network, no layer of which reads it; leave it out")

    def _position(self, y: Tensor, tokens: Tokens, edge_index: Any, edge_weight: Any) -> Tensor:
        """Add the code: of the graph's nodes, of the tokens' positions, or of their slots where it takes one number."""
        code: Any = self.position
        if isinstance(code, GraphCode):
            return code(y, edge_index, edge_weight=edge_weight, batch=tokens.batch)
        places, count = tokens.positions, y.shape[-2]
        if not getattr(code, "axes", 0):
            if places is not None and places.shape[-1] != count:
                places = None  # of a grid's cells: a code of one axis counts them in row-major order
            if places is None and (tokens.mask is not None or tokens.batch is not None):
                everyone = torch.ones(count, dtype=torch.bool, device=y.device)
                places = counted_positions(everyone if tokens.mask is None else tokens.mask, tokens.batch)
        return code(y, places)
