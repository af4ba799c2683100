"""Attention layers of Hugging Face's models: everything stays theirs but the attention itself."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from mpnn.checks import compiling
from mpnn.interop.attention import Attention
from mpnn.interop.bridge import Bridge, Refused
from mpnn.interop.transformers.hook import NAME
from mpnn.interop.transformers.interface import converted, crosses
from mpnn.interop.transformers.library import library
from mpnn.neighbours import AllTokens


class HuggingFaceAttention(Bridge):
    """A layer that calls transformers' ``ALL_ATTENTION_FUNCTIONS`` on its queries, keys and values.

    Projections, rotations, caches and the mask that the model makes stay as they are; the layer alone gets a config of
    its own, which names our implementation. Its core is an :class:`~mpnn.interop.attention.Attention` over all tokens.
    """

    kind = "attention"
    calls_parts = watched = False  # its own forward runs
    library = None  # a person's own class may call the interface too

    def layers(self) -> tuple[type[nn.Module], ...]:
        return ()  # hundreds of classes, found by what their forward calls

    def takes(self, layer: nn.Module) -> bool:
        return _calls_interface(type(layer)) or _is_attention_alone(layer)

    def refuse(self, layer: Any) -> list[str]:
        name = type(layer).__name__
        if not _calls_interface(type(layer)):
            return [f"{name} computes its attention by itself, not through transformers' attention interface"]
        why = []
        implementation = getattr(getattr(layer, "config", None), "_attn_implementation", None)
        if implementation not in ("eager", "sdpa"):
            why.append(
                f"attn_implementation={implementation!r}: its masks are of another kind; load the model with 'sdpa' or "
                f"'eager'"
            )
        if implementation == "eager" and getattr(layer, "reorder_and_upcast_attn", False):
            why.append("reorder_and_upcast_attn: it goes around the attention interface")
        if getattr(layer, "sinks", None) is not None:
            why.append("sinks: they stand in the softmax and are no tokens")
        capped = [n for n in ("attn_logit_softcapping", "softcap") if getattr(layer, n, None) is not None]
        if capped:
            why.append(f"{capped[0]}: its scores are capped by a tanh")
        return why

    def configure(self, layer: Any, **structure: Any) -> nn.Module:
        return Attention(AllTokens(), between=crosses(layer))

    def tensors(self, layer: Any, core: nn.Module) -> dict[str, Tensor]:
        return {}

    def restore(self, core: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        raise Refused("a layer of a Hugging Face model is more than its attention; convert() and revert() change it")

    def enter(self, layer: Any) -> None:
        _known()
        layer.own_config, layer.config = layer.config, copy.copy(layer.config)
        layer.config.__dict__["_attn_implementation_internal"] = NAME  # the setter would reach shared sub-configs

    def leave(self, layer: Any) -> None:
        layer.config = layer.own_config
        del layer.own_config

    def call(self, layer: Any, core: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not compiling():
            _known()  # a layer that was loaded from a file has never been converted in this process
        return layer.original.forward(layer, *args, **kwargs)


def _known() -> None:
    """Let transformers know our implementation. Masks are made for the model's own, so it needs no mask function."""
    interface = library("modeling_utils").AttentionInterface
    if NAME not in interface._global_mapping:
        interface.register(NAME, converted)


def _calls_interface(layer: type[nn.Module]) -> bool:
    """Whether a class's forward looks its attention up in transformers' interface."""
    code = getattr(inspect.unwrap(layer.forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def _is_attention_alone(layer: nn.Module) -> bool:
    """Whether this is an attention of transformers that no part of it, and no attention around it, computes for it."""
    if not _is_attention(type(layer)):
        return False
    inside = (type(m) for m in layer.modules() if m is not layer)
    return not any(_is_attention(m) or _calls_interface(m) for m in inside)


def _is_attention(layer: type[nn.Module]) -> bool:
    return layer.__module__.startswith("transformers.models.") and layer.__name__.endswith("Attention")
