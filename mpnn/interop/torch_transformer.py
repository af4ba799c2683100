"""``nn.TransformerEncoderLayer`` and ``nn.TransformerDecoderLayer``: a residual block around attention."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from torch import Tensor, nn

from mpnn.interop.bridge import Bridge, Refused, Unlike
from mpnn.interop.torch_attention import Attention, attention
from mpnn.interop.torch_masks import masks
from mpnn.interop.torch_nested import nested, padded
from mpnn.message_passing import MessagePassing
from mpnn.models.blocks import Elementwise, ResidualBlock

_ATTENTION = Attention()
# The kinds of part that a layer of torch's Transformer has, and how their names begin.
_PARTS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.MultiheadAttention: ("self_attn", "multihead_attn"), nn.Linear: ("linear",), nn.LayerNorm: ("norm",),
    nn.Dropout: ("dropout",),
}  # fmt: skip


class Block(Bridge):
    """A layer of torch's Transformer is a :class:`~mpnn.models.ResidualBlock`: attention, for a decoder also attention
    to the memory, and an MLP on the channels; pre- or post-norm, with any activation.

    Called alone, the block takes the keywords of its layer, and ``memory=``.
    """

    kind = "attention"
    followed = frozenset({"dropout", "p"})
    pairs: ClassVar[dict[str, str]]  # part of the layer → part of the block

    @abstractmethod
    def make(self, **given: Any) -> nn.Module:
        """An empty layer."""

    def refuse(self, layer: Any) -> list[str]:
        why: list[str] = []
        found: dict[type, dict[str, Any]] = {kind: {n: getattr(layer, n) for n in self._parts(kind)} for kind in _PARTS}
        for kind, parts in found.items():
            wrong = {n: part for n, part in parts.items() if type(part) is not kind}
            why += [f"{n} is {type(part).__name__}, expected nn.{kind.__name__}" for n, part in wrong.items()]
        if not why:
            norms, drops = found[nn.LayerNorm], {n: p for n, p in found[nn.Dropout].items() if n != "dropout"}
            biased = {n: part.bias is not None for n, part in (found[nn.Linear] | norms).items()}
            why += _one("eps", {n: part.eps for n, part in norms.items()})
            why += _one("p", {n: part.p for n, part in drops.items()}) + _one("bias", biased)
            why += [f"{n} has no weight" for n, part in norms.items() if part.weight is None]
            for name, part in found[nn.MultiheadAttention].items():
                why += [f"{name}: {reason}" for reason in _ATTENTION.refuse(part)]
        if isinstance(layer.activation, nn.Module) and next(layer.activation.buffers(), None) is not None:
            why.append("activation has buffers, which two modules would hold")
        hooked = [name for name, part in layer.named_modules() if name and _hooks(part)]
        if hooked:
            why.append(f"{', '.join(hooked)} has hooks, which would not run inside the block")
        return why

    def _parts(self, kind: type[nn.Module]) -> Iterator[str]:
        """The names of the layer's parts of a kind."""
        return (name for name in self.pairs if name.startswith(_PARTS[kind]))

    def configure(self, layer: Any) -> ResidualBlock:
        cores = {self.pairs[n]: _ATTENTION.configure(getattr(layer, n)) for n in self._parts(nn.MultiheadAttention)}
        activation = layer.activation
        block = ResidualBlock(
            cores["layer"], layer.self_attn.embed_dim, layer.linear1.out_features, cross=cores.get("cross"),
            activation=copy.deepcopy(activation) if isinstance(activation, nn.Module) else activation,
            dropout=layer.dropout1.p, norm_first=layer.norm_first, bias=layer.linear1.bias is not None,
            eps=layer.norm1.eps,
        )  # fmt: skip
        block.mlp[2].p = layer.dropout.p
        return block

    def tensors(self, layer: Any, core: Any) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, own in self.pairs.items():
            if isinstance(core.get_submodule(own), Elementwise):
                continue
            part = layer._modules[name]  # a copy of torch's decoder layer has an attribute before its activation
            is_attention = isinstance(part, nn.MultiheadAttention)
            views = _ATTENTION.tensors(part, core) if is_attention else dict(part.named_parameters())
            found |= {f"{own}.{key}": view for key, view in views.items()}
        return found

    def options(self, layer: Any) -> dict[str, Any]:
        return _ATTENTION.options(layer.self_attn)

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        attentive = isinstance(core, ResidualBlock) and (core.cross is not None) == ("multihead_attn" in self.pairs)
        wanted = "to itself and as cross=" if "multihead_attn" in self.pairs else "to itself"
        if not attentive or not isinstance(core.layer, MessagePassing):
            raise Unlike(f"nn.{self.layers()[0].__name__} needs a ResidualBlock with attention, {wanted}")
        parts = {name: getattr(core, self.pairs[name]) for name in self._parts(nn.MultiheadAttention)}
        inner: dict[str, Any] = {}
        for name, part in parts.items():
            try:
                inner[name] = _ATTENTION.restore(part, options)[0]
            except Unlike as reason:  # the block is one, and its attention is none
                raise Refused(f"{name}: {reason}") from None
        first, activation = inner["self_attn"], core.mlp[1]
        layer: Any = self.make(
            d_model=core.channels, nhead=first.num_heads, dim_feedforward=core.mlp[0].out_features,
            dropout=core.dropout.p, layer_norm_eps=core.norm1.eps, batch_first=options.get("batch_first", True),
            norm_first=core.norm_first, bias=core.mlp[0].bias is not None,
            activation=activation.function if isinstance(activation, Elementwise) else copy.deepcopy(activation),
        )  # fmt: skip
        for name, part in inner.items():
            setattr(layer, name, part)
        layer.dropout.p = core.mlp[2].p
        return layer, {}

    def follow(self, layer: Any, core: Any) -> None:
        for name in self._parts(nn.MultiheadAttention):
            _ATTENTION.follow(getattr(layer, name), getattr(core, self.pairs[name]))
        inside, after = (
            layer.dropout.p,
            {layer.dropout1.p, layer.dropout2.p, getattr(layer, "dropout3", layer.dropout1).p},
        )
        if len(after) > 1:
            raise ValueError(
                f"expected one p of dropout1, dropout2 and dropout3 of a converted layer, got {sorted(after)}; "
                "revert it to have several"
            )
        if (core.mlp[2].p, core.dropout.p) != (inside, *after):
            core.mlp[2].p, core.dropout.p = inside, layer.dropout1.p


class EncoderLayer(Block):
    """``nn.TransformerEncoderLayer``; padded and nested tokens alike."""

    pairs: ClassVar[dict[str, str]] = {
        "self_attn": "layer", "linear1": "mlp.0", "activation": "mlp.1", "dropout": "mlp.2", "linear2": "mlp.3",
        "norm1": "norm1", "norm2": "norm2", "dropout1": "dropout", "dropout2": "dropout",
    }  # fmt: skip

    def layers(self) -> tuple[type[nn.Module], ...]:
        return (nn.TransformerEncoderLayer,)

    def make(self, **given: Any) -> nn.Module:
        return nn.TransformerEncoderLayer(**given)

    def call(  # type: ignore[no-untyped-def]
        self, layer: Any, core: Callable[..., Any], src: Tensor, src_mask=None, src_key_padding_mask=None,
        is_causal=False,
    ) -> Tensor:  # fmt: skip
        if src.is_nested:
            if src_mask is not None or src_key_padding_mask is not None:
                raise ValueError("expected nested src without masks, since it has no padding, got a mask; leave it out")
            x, mask = padded(src)
            return nested(core(x, lambda inner, y: inner(y, source=y, mask=mask)), mask)
        step = look(layer.self_attn, src_mask, src_key_padding_mask, is_causal, "src_mask")
        turned = src.ndim == 3 and not layer.self_attn.batch_first
        y = core(src.transpose(0, 1) if turned else src, step)
        return y.transpose(0, 1) if turned else y


class DecoderLayer(Block):
    """``nn.TransformerDecoderLayer``: its memory is the source of a second attention."""

    pairs: ClassVar[dict[str, str]] = EncoderLayer.pairs | {
        "multihead_attn": "cross", "norm3": "norm3", "dropout3": "dropout",
    }  # fmt: skip

    def layers(self) -> tuple[type[nn.Module], ...]:
        return (nn.TransformerDecoderLayer,)

    def make(self, **given: Any) -> nn.Module:
        return nn.TransformerDecoderLayer(**given)

    def call(  # type: ignore[no-untyped-def]
        self, layer: Any, core: Callable[..., Any], tgt: Tensor, memory: Tensor, tgt_mask=None, memory_mask=None,
        tgt_key_padding_mask=None, memory_key_padding_mask=None, tgt_is_causal=False, memory_is_causal=False,
    ) -> Tensor:  # fmt: skip
        turned = tgt.ndim == 3 and not layer.self_attn.batch_first
        seen = memory.transpose(0, 1) if turned else memory
        own = look(layer.self_attn, tgt_mask, tgt_key_padding_mask, tgt_is_causal, "tgt_mask")
        other = look(layer.multihead_attn, memory_mask, memory_key_padding_mask, memory_is_causal, "memory_mask", seen)
        y = core(tgt.transpose(0, 1) if turned else tgt, own, other)
        return y.transpose(0, 1) if turned else y


def look(
    layer: Any, attn_mask: Any, padding: Any, is_causal: bool, name: str, memory: Tensor | None = None
) -> Callable[[Callable[..., Any], Tensor], Tensor]:
    """How a block calls its attention: on x itself or on a memory, under the masks of the original."""
    if is_causal and attn_mask is None:
        raise RuntimeError(f"expected {name} with is_causal=True, which is a hint that the mask is causal, got None")

    def step(inner: Callable[..., Any], x: Tensor) -> Tensor:
        source = x if memory is None else memory
        given = masks(attn_mask, padding, tuple(x.shape[:-2]), layer.num_heads, x.shape[-2], source.shape[-2], x.dtype)
        return attention(inner, x, source, source, given)[0]

    return step


def _one(option: str, values: dict[str, Any]) -> list[str]:
    """The reason against an option that the parts of one block do not share."""
    return [f"{option} differs between its parts, {values}"] if len(set(values.values())) > 1 else []


def _hooks(module: nn.Module) -> bool:
    return any(
        getattr(module, name)
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    )
