"""Attention by Hugging Face's interface: (module, query, key, value, mask, ...) → (output, weights)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mpnn.attend import attend
from mpnn.checks import compiling
from mpnn.interop.attention import Attention
from mpnn.interop.transformers.masks import is_bias, read
from mpnn.interop.transformers.padded import Result, by_slots, by_tokens, has_places, relative
from mpnn.memo import derived
from mpnn.neighbours import AllTokens

ALL, EARLIER = AllTokens(), AllTokens(causal=True)
_IGNORED = {  # keywords of the interface that would change the numbers, and that nothing here reads
    "softcap": "its scores are capped by a tanh",
    "s_aux": "its softmax has sinks",
    "sinks": "its softmax has sinks",
}


def crosses(module: nn.Module) -> bool:
    """Whether a module attends from one set of tokens to another."""
    decoder = getattr(module, "is_decoder", False) and not getattr(module, "is_causal", True)
    return bool("Cross" in type(module).__name__ or getattr(module, "is_cross_attention", False) or decoder)


def is_causal(module: nn.Module, given: bool | None) -> bool:
    """Whether later tokens are hidden where no mask says so."""
    return bool(getattr(module, "is_causal", True) if given is None else given)


def converted(  # type: ignore[no-untyped-def]
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling=None, dropout=0.0,
    is_causal=None, position_bias=None, **kwargs,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The interface of a converted layer, whose ``core`` says who sends.

    With the rule that it starts with, all tokens, it is what eager or fused attention gave it, on padded rows too. With
    another rule it is that rule over the real tokens, where the mask only says which these are and what is causal;
    another mask is intersected with the rule, which then counts slots.
    """
    core, eager = module.core, module.own_config._attn_implementation == "eager"
    given = _options(module, scaling, dropout, kwargs)
    query, key, value = _one_batch(query, key, value)
    wanted = _wanted(module.own_config, kwargs)
    causal = _causal(module, is_causal) and not (eager and attention_mask is None)
    targets = query.shape[-2]
    if causal and attention_mask is None and 1 < targets < key.shape[-2]:  # the empty slots of a static cache
        key, value = key[:, :, :targets], value[:, :, :targets]
        position_bias = None if position_bias is None else position_bias[..., :targets]
    if core.neighbours == ALL:
        return _finished(_as_before(module, query, key, value, attention_mask, causal, position_bias, wanted, **given))
    return _finished(
        _by_rule(core, module, query, key, value, attention_mask, causal, position_bias, wanted, kwargs, given)
    )


def of_rule(core: Attention) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The interface over the rule of ``core``, for masks as :func:`mpnn.interop.transformers.hook.mask` makes them."""

    def attention(  # type: ignore[no-untyped-def]
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling=None,
        dropout=0.0, is_causal=None, position_bias=None, **kwargs,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        if kwargs.get("cu_seq_lens_q") is not None:
            raise ValueError(
                "cu_seq_lens_q, several sequences in one row, would be ignored; give each sequence a row of its own "
                "and an attention_mask"
            )
        given = _options(module, scaling, dropout, kwargs)
        query, key, value = _one_batch(query, key, value)
        wanted = _wanted(module.config, kwargs)
        if crosses(module):
            mask = attention_mask
            mask = mask[:, None, None, :] if mask is not None and mask.ndim == 2 else mask
            return _finished(_as_before(module, query, key, value, mask, False, position_bias, wanted, **given))
        causal = _causal(module, is_causal)
        return _finished(
            _by_rule(core, module, query, key, value, attention_mask, causal, position_bias, wanted, kwargs, given)
        )

    return attention


_causal = is_causal


def _by_rule(
    core: Attention, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool,
    bias: Tensor | None, wanted: bool, kwargs: dict[str, Any], given: dict[str, Any],
) -> Result:  # fmt: skip
    """Attention over the rule of ``core``."""
    targets, sources = q.shape[-2], k.shape[-2]
    if mask is not None and mask.dtype not in (torch.bool, q.dtype):
        raise TypeError(f"expected an attention_mask of bool or {q.dtype}, got {mask.dtype}")
    reading = None if core.between else read(mask, targets, causal)
    if reading is not None:
        rule = core.rule(reading.causal)
        if kwargs.get("sliding_window") is not None and targets != sources and not relative(rule):
            raise ValueError(
                f"sliding_window={kwargs['sliding_window']} leaves out the start of the sequence, from where {rule} "
                f"counts; set config.sliding_window = None, or pass use_cache=False"
            )
        return by_tokens(module, q, k, v, rule, reading, wanted, score_bias=bias, **given)
    assert mask is not None or core.between
    rule = core.rule(False)
    known = relative(rule) or (targets == sources and (has_places(rule) or (mask is not None and is_bias(mask))))
    if not known and not core.between:
        raise ValueError(
            f"expected a mask of padding and causal order alone for {rule}, which counts tokens from the start of a "
            f"sequence, got another mask (several sequences in a row, a sliding window, a mask of pairs, or one that "
            f"torch.compile cannot read) of {targets} targets and {sources} sources; pass a 2-D attention_mask"
        )
    masked, bias = _masks(mask, bias, q)
    return by_slots(module, q, k, v, rule, wanted, pair_mask=masked, score_bias=bias, **given)


def _as_before(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, bias: Tensor | None,
    wanted: bool, **given: Any,
) -> Result:  # fmt: skip
    """All tokens under the model's own mask, as transformers' eager and fused attention read it."""
    causal = causal and mask is None and q.shape[-2] > 1
    masked, bias = _masks(mask, bias, q)
    rule = EARLIER if causal else ALL
    y, weights = by_slots(module, q, k, v, rule, wanted, pair_mask=masked, score_bias=bias, **given)
    blind = _blind(mask) if masked is None and torch.is_grad_enabled() else None
    if blind is not None and bias is not None:
        some = bias if bias.shape[-2] == 1 else bias[..., blind, :]
        few = attend(q[..., blind, :], k, v, ALL, score_bias=some, kernel="reference", **given)
        y = y.index_copy(1, blind, few.transpose(1, 2))
    return y, weights


def _blind(mask: Tensor | None) -> Tensor | None:
    """The targets that see nothing in some row of an eager mask, (n,); None where there are none.

    Eager attention gives them the mean of all values, and gradients to match. The fused kernels' backward does not: it
    makes weights from log-sum-exps, in which the number of sources is lost beside the least number.
    """
    if mask is None or not mask.is_floating_point() or compiling():
        return None

    def find() -> Tensor:
        hidden = (mask <= torch.finfo(mask.dtype).min).all(-1)
        return hidden.flatten(0, -2).any(0).nonzero().squeeze(-1)

    found = derived(find, "blind", mask)
    return found if len(found) else None


def _masks(mask: Tensor | None, bias: Tensor | None, q: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """(pair mask, score bias). A bias with a bool mask has the least number where the mask hides, as transformers' has:
    a row that sees nothing then weighs all alike."""
    if mask is None or mask.dtype == torch.bool:
        if mask is not None and bias is not None:
            return None, torch.where(mask, bias, torch.finfo(q.dtype).min)
        return mask, bias
    if not mask.is_floating_point():
        raise TypeError(f"expected an attention_mask of bool or {q.dtype}, got {mask.dtype}")
    return None, mask if bias is None else bias + mask


def _options(module: nn.Module, scaling: float | None, dropout: float, kwargs: dict[str, Any]) -> dict[str, Any]:
    for name, why in _IGNORED.items():
        if kwargs.get(name) is not None:
            raise ValueError(f"{name}={kwargs[name]} of {type(module).__name__} has no counterpart: {why}")
    return {"scale": scaling, "dropout": float(dropout) if module.training else 0.0}


def _one_batch(*tensors: Tensor) -> list[Tensor]:
    """Learned queries come once for all of a batch."""
    rows = max(t.shape[0] for t in tensors)
    return [t if t.shape[0] == rows else t.expand(rows, -1, -1, -1) for t in tensors]


def _wanted(config: Any, kwargs: dict[str, Any]) -> bool:
    """Whether weights are asked for: by keyword, by the config, or by a model that collects what its layers return."""
    if kwargs.get("output_attentions") or getattr(config, "output_attentions", False):
        return True
    if compiling():
        return False
    from transformers.utils import output_capturing

    collector = getattr(output_capturing, "_active_collector", None)
    collected = None if collector is None else collector.get()
    return any("attentions" in key for key in collected or ())


def _finished(result: Result) -> tuple[Tensor, Tensor | None]:
    return result[0].contiguous(), result[1]
