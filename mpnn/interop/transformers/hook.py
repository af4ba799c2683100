"""register: a neighbourhood as an attention implementation of transformers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mpnn.interop.attention import Attention
from mpnn.interop.transformers.interface import of_rule
from mpnn.interop.transformers.library import library
from mpnn.neighbours import Neighbours

NAME = "mpnn"  # the implementation under which converted layers call us
_registered: dict[str, Neighbours] = {}


def register(name: str, neighbours: Neighbours) -> None:
    """Let models of transformers attend over a neighbourhood, by ``attn_implementation=name``.

    y_i = Σ_{j ∈ N(i)} softmax_j(scale · q_i·k_j) v_j over the real tokens of a row: a window counts tokens, not
    padding, wherever that stands; padding receives 0. In a causal model, sources after the target are left out of the
    rule. Caches, grouped heads, dropout and ``generate`` work as ever. Cross-attention sees all its sources.

    Rows without padding run by the rule's own kernel, and padded ones as one ragged set. What goes on from a cache by a
    rule that counts from the start (``Blocks``, ``Global``), and rows that several sequences share, need a mask of
    (targets, sources). On a GPU move a rule that holds tensors, such as a ``Graph``, there first.

    Args:
        name: for ``attn_implementation``; again with an equal rule it changes nothing.
        neighbours: who sends.

    Raises:
        ValueError: where the name is taken by transformers, or by another rule: models that use it would change.
        ModuleNotFoundError: without transformers, naming the extra that brings it.

    Source: transformers' `attention interface <https://huggingface.co/docs/transformers/attention_interface>`_.

    Example::

        >>> from mpnn.interop.transformers import register
        >>> from mpnn.neighbours import Window
        >>> from transformers import LlamaConfig, LlamaModel
        >>> register("mpnn-window", Window(128, 0))
        >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        >>> model = LlamaModel(LlamaConfig(vocab_size=8, attn_implementation="mpnn-window", **sizes))
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"expected name to be a str for attn_implementation, got {name!r}")
    if name == NAME:
        raise ValueError(f"{name!r} is the name under which converted models call mpnn; take another one")
    core = Attention(neighbours)
    functions, masks = library("modeling_utils").AttentionInterface, library("masking_utils").AttentionMaskInterface
    if name in _registered:
        if _registered[name] != neighbours:
            raise ValueError(f"{name!r} is {_registered[name]} already; take another name for {neighbours}")
        return
    if name == "eager" or name in functions() or name in masks():
        raise ValueError(f"{name!r} is an implementation of transformers already; take another name for {neighbours}")
    functions.register(name, of_rule(core))
    masks.register(name, mask)
    _registered[name] = neighbours


def mask(  # type: ignore[no-untyped-def]
    batch_size: int, q_length: int, kv_length: int, q_offset=0, kv_offset=0, mask_function=None, attention_mask=None,
    **kwargs,
) -> Tensor | None:  # fmt: skip
    """The mask that our implementations get: None, the padding as bool (B, M), or bool (B, 1, N, M).

    The last where it cannot be told by padding: where targets go on in a row with padding, where a static cache has
    slots that no token has yet, and where the model joins its mask with others.
    """
    from transformers import masking_utils as made

    causal = mask_function in (None, made.causal_mask_function)
    if causal or mask_function is made.bidirectional_mask_function:
        padding = _padding(attention_mask, kv_length, kv_offset, made)
        known = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
        if (known or not causal) and padding is None:
            return None
        if q_length == kv_length or not causal:
            return padding
    elif attention_mask is not None and not made.is_tracing(attention_mask) and _has_holes(attention_mask):
        raise ValueError(
            "expected the padding of attention_mask at either side, since the model joins its mask with others "
            "(sliding or chunked layers, packed position_ids), got padding between tokens"
        )
    kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    joined = {} if mask_function is None else {"mask_function": mask_function}
    return made.sdpa_mask(
        batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
        attention_mask=attention_mask, **joined, **kwargs,
    )  # fmt: skip


def _padding(attention_mask: Tensor | None, length: int, offset: int, made: Any) -> Tensor | None:
    """Which of the sources are real; None where all are."""
    if attention_mask is None:
        return None
    real = made.prepare_padding_mask(attention_mask, length, offset)[:, offset : offset + length]
    return None if not made.is_tracing(real) and bool(real.all()) else real


def _has_holes(real: Tensor) -> bool:
    """Whether padding stands between two tokens of a row."""
    count = real.long().cumsum(-1)
    return bool((~real.bool() & (count > 0) & (count < count[:, -1:])).any())
