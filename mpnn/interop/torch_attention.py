"""``nn.MultiheadAttention``: all tokens with a softmax of queries and keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mpnn.checks import readable
from mpnn.interop.bridge import Bridge, Refused, Unlike
from mpnn.interop.torch_masks import masks
from mpnn.interop.torch_nested import nested, padded
from mpnn.message_passing import MessagePassing
from mpnn.neighbours import AllTokens
from mpnn.returned import EdgeWeights
from mpnn.weights import QKSoftmax


class Attention(Bridge):
    """``nn.MultiheadAttention`` is ``AllTokens`` × ``QKSoftmax``: packed or with widths of their own for keys and
    values, with or without bias, batch first or second.

    Its drop-in keeps the masks of the original, where True excludes and floats are added, and the weights that it
    returns, averaged or per head; they are made only where ``need_weights`` asks for them, and before dropout (the
    original's are after). A query whose sources are all masked gets the output projection's bias, and weights of 0,
    where the original gives NaN.
    """

    kind = "attention"
    calls_parts = False  # torch reads out_proj's weight, and does not call it
    followed = frozenset({"dropout"})

    def layers(self) -> tuple[type[nn.Module], ...]:
        return (nn.MultiheadAttention,)

    def refuse(self, layer: Any) -> list[str]:
        why = []
        if layer.bias_k is not None or layer.bias_v is not None:
            why.append("add_bias_kv=True: bias_k and bias_v are a token of the layer's own, no weight of a pair")
        if layer.add_zero_attn:
            why.append("add_zero_attn=True: the added zeros are a token of the layer's own, no weight of a pair")
        return why

    def configure(self, layer: Any) -> MessagePassing:
        channels, key, value = layer.embed_dim, layer.kdim, layer.vdim
        source = (key, value) if key != value else None if key == channels else key
        weight = QKSoftmax(
            channels, layer.num_heads, source_channels=source, dropout=layer.dropout,
            qkv_bias=layer.in_proj_bias is not None, bias=layer.out_proj.bias is not None,
        )  # fmt: skip
        return MessagePassing(AllTokens(), weight)

    def tensors(self, layer: Any, core: Any) -> dict[str, Tensor]:
        names = ("query", "key", "value")
        if layer.in_proj_weight is not None:
            weights = layer.in_proj_weight.chunk(3)
        else:
            weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
        found = {f"weight.{name}.weight": weight for name, weight in zip(names, weights, strict=True)}
        if layer.in_proj_bias is not None:
            biases = layer.in_proj_bias.chunk(3)
            found |= {f"weight.{name}.bias": bias for name, bias in zip(names, biases, strict=True)}
        found["weight.output.weight"] = layer.out_proj.weight
        if layer.out_proj.bias is not None:
            found["weight.output.bias"] = layer.out_proj.bias
        return found

    def options(self, layer: Any) -> dict[str, Any]:
        return {"batch_first": layer.batch_first}

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        weight: Any = getattr(core, "weight", None)
        attends = isinstance(core, MessagePassing) and isinstance(weight, QKSoftmax)
        if not attends or not isinstance(core.neighbours, AllTokens):
            raise Unlike("nn.MultiheadAttention needs AllTokens × QKSoftmax")
        if weight.in_channels % weight.heads:
            raise Refused("nn.MultiheadAttention needs heads that divide its channels")
        key, value = weight.part_widths()
        layer = nn.MultiheadAttention(
            weight.in_channels, weight.heads, dropout=weight.dropout, bias=weight.query.bias is not None, kdim=key,
            vdim=value, batch_first=options.get("batch_first", True),
        )  # fmt: skip
        return layer, {}

    def enter(self, layer: Any) -> None:
        # nn.TransformerEncoderLayer asks this before it computes attention by itself, around the layer's own forward
        layer._qkv_same_embed_dim = False

    def leave(self, layer: Any) -> None:
        layer._qkv_same_embed_dim = layer.in_proj_weight is not None

    def follow(self, layer: Any, core: Any) -> None:
        if core.weight.dropout != layer.dropout:
            core.weight.dropout = layer.dropout

    def call(  # type: ignore[no-untyped-def]
        self, layer: Any, core: Callable[..., Any], query: Tensor, key: Tensor, value: Tensor, key_padding_mask=None,
        need_weights=True, attn_mask=None, average_attn_weights=True, is_causal=False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        if is_causal and attn_mask is None:
            raise RuntimeError(
                "expected attn_mask with is_causal=True, which is a hint that the mask is causal, got None; "
                "nn.Transformer.generate_square_subsequent_mask makes one"
            )
        if query.is_nested:
            return self._nested(layer, core, query, key, value, key_padding_mask, need_weights, attn_mask)
        sizes = {tensor.ndim for tensor in (query, key, value)}
        if sizes not in ({2}, {3}):
            got = ", ".join(str(tuple(t.shape)) for t in (query, key, value))
            raise ValueError(f"expected query, key and value to be all 2-D (unbatched) or all 3-D, got {got}")
        turned = query.ndim == 3 and not layer.batch_first
        q = query.transpose(0, 1) if turned else query
        k = q if key is query else key.transpose(0, 1) if turned else key
        v = k if value is key else value.transpose(0, 1) if turned else value
        n, m = q.shape[-2], k.shape[-2]
        given = masks(attn_mask, key_padding_mask, tuple(q.shape[:-2]), layer.num_heads, n, m, q.dtype)
        y, weights = attention(core, q, k, v, given, need_weights)
        if weights is not None and average_attn_weights:
            weights = weights.mean(-3)
        return (y.transpose(0, 1) if turned else y), weights

    def _nested(
        self, layer: Any, core: Callable[..., Any], query: Tensor, key: Tensor, value: Tensor, *given: Any
    ) -> tuple[Tensor, None]:
        """The sequences of a nested tensor, which torch's Transformer makes of padded ones in inference."""
        key_padding_mask, need_weights, attn_mask = given
        if key is not query or value is not query or need_weights or not layer.batch_first:
            raise ValueError(
                "expected a nested query to be key and value too, batch first, without need_weights, got another call"
            )
        if key_padding_mask is not None or attn_mask is not None:
            raise ValueError("expected a nested query without masks, since it has no padding, got a mask; leave it out")
        x, mask = padded(query)
        return nested(core(x, source=x, mask=mask), mask), None


def attention(
    core: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, given: dict[str, Tensor], need_weights: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The layer on queries, keys and values, and its weights (..., heads, N, M) where they are asked for.

    A padded token is seen by nobody, but its own row is computed, as in the original: the mask is the sources'.
    """
    apart = {} if k is q and v is q and "mask" not in given else {"source": k if v is k else (k, v)}
    if not need_weights:
        return core(q, **apart, **given), None
    y, edges = core(q, **apart, **given, return_weights=True)
    return y, _matrix(edges, q.shape[-2], k.shape[-2])


def _matrix(edges: EdgeWeights, n: int, m: int) -> Tensor:
    """The weights of edges as matrices, 0 where there is no edge: (..., heads, N, M)."""
    weight, place = edges.weight.transpose(-2, -1), edges.target * m + edges.source
    if len(place) == n * m and readable(place) and bool((place == torch.arange(n * m, device=place.device)).all()):
        return weight.unflatten(-1, (n, m))  # every pair, in order
    return weight.new_zeros(*weight.shape[:-1], n * m).index_add(-1, place, weight).unflatten(-1, (n, m))
