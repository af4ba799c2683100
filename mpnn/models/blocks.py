"""Blocks: what stands around a layer. A network calls them as ``block(x, call)``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from mpnn.message_passing import MessagePassing
from mpnn.tokens.base import Tokens

Activation = type[nn.Module] | Callable[[Tensor], Tensor]


class PlainBlock(nn.Module):
    """x ← activation(layer(x)).

    Shapes: (..., N, C) → (..., N, C').

    Example: see :func:`~mpnn.models.MLP`.
    """

    def __init__(self, layer: MessagePassing, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.layer, self.activation = layer, nn.Identity() if activation is None else activation

    def forward(self, x: Tensor, call: Any) -> Tensor:
        return self.activation(call(self.layer, x))


class Skip(nn.Module):
    """x ← x + block(x): a residual connection around a block that keeps the shape.

    Example: see :func:`~mpnn.models.MLP`.
    """

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor, call: Any) -> Tensor:
        return x + self.block(x, call)


class Elementwise(nn.Module):
    """A function of a tensor as a module, such as ``torch.nn.functional.gelu``."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    def extra_repr(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))


class ResidualBlock(nn.Module):
    """The block of a Transformer with any layer inside: x ← x + step(norm(x)) for each of its steps.

    The steps are ``layer``, which looks at x; ``cross`` where there is one, which looks at a memory; and an MLP on the
    channels. With ``norm_first=False`` the norm stands after the sum: x ← norm(x + step(x)).

    Args:
        layer: keeps ``channels``. hidden: width of the channel MLP.
        cross: a layer whose sources are the memory, as in a decoder.
        activation: a class of module, a module, or a function. dropout: after each step, and inside the MLP.
        bias: of the MLP and the norms. eps: of the norms.

    Shapes: (..., N, C) → (..., N, C); ``memory`` (..., M, C) or :class:`~mpnn.Tokens`. A network calls
    ``block(x, call)``; alone it takes the keywords of :class:`~mpnn.MessagePassing`, for ``layer``.

    Source: Xiong et al. (2020), `arXiv:2002.04745 <https://arxiv.org/abs/2002.04745>`_;
    ``nn.TransformerEncoderLayer(norm_first=True)``, ``nn.TransformerDecoderLayer``.

    Example::

        >>> import torch
        >>> from mpnn import MessagePassing
        >>> from mpnn.models import ResidualBlock
        >>> from mpnn.neighbours import AllTokens, Window
        >>> from mpnn.weights import QKSoftmax
        >>> rules = Window(2, 0), AllTokens()
        >>> layer, cross = (MessagePassing(rule, QKSoftmax(8, heads=2)) for rule in rules)
        >>> ResidualBlock(layer, 8, 32, cross=cross)(torch.ones(4, 5, 8), memory=torch.ones(4, 3, 8)).shape
        torch.Size([4, 5, 8])
    """

    def __init__(
        self,
        layer: MessagePassing,
        channels: int,
        hidden: int,
        *,
        cross: MessagePassing | None = None,
        activation: Activation = nn.GELU,
        dropout: float = 0.0,
        norm_first: bool = True,
        bias: bool = True,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.channels, self.norm_first = channels, norm_first
        self.norm1, self.norm2 = (nn.LayerNorm(channels, eps, bias=bias) for _ in range(2))
        self.norm3 = None if cross is None else nn.LayerNorm(channels, eps, bias=bias)
        self.layer, self.cross = layer, cross
        made = activation() if isinstance(activation, type) else activation
        self.mlp = nn.Sequential(
            nn.Linear(channels, hidden, bias=bias),
            made if isinstance(made, nn.Module) else Elementwise(made),
            nn.Dropout(dropout),
            nn.Linear(hidden, channels, bias=bias),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(  # type: ignore[no-untyped-def]
        self, x: Tensor, call: Any = None, cross_call: Any = None, *, memory: Tensor | Tokens | None = None, **given
    ) -> Tensor:  # fmt: skip
        """x after all steps; ``call(layer, x)`` and ``cross_call(cross, x)`` run the two layers, if they are given."""
        for name, function in (("call", call), ("cross_call", cross_call)):
            if function is not None and not callable(function):
                raise TypeError(
                    f"expected {name} to be a function of (layer, x), got {type(function).__name__}; what cross looks "
                    "at is memory=, masks are keywords"
                )
        call = partial(_keywords, given) if call is None else call
        x = self._add(x, self.norm1, partial(call, self.layer))
        last = self.norm2
        if self.cross is not None:
            look = partial(_memory, memory) if cross_call is None else cross_call
            x = self._add(x, self.norm2, partial(look, self.cross))
            assert self.norm3 is not None
            last = self.norm3
        return self._add(x, last, self.mlp)

    def _add(self, x: Tensor, norm: nn.Module, step: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_first:
            return x + self.dropout(step(norm(x)))
        return norm(x + self.dropout(step(x)))


def _keywords(given: dict[str, Any], layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x, **given)


def _memory(memory: Tensor | Tokens | None, cross: nn.Module, x: Tensor) -> Tensor:
    if memory is None:
        raise ValueError("expected memory= (..., M, C), the tokens that cross looks at, got None")
    return cross(x, source=memory)
