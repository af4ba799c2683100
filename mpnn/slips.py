"""Slips: arguments that a call does not have, and what people who write them mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from mpnn.checks import hint

# What torch, PyG and FlexAttention call it, and how it is said here.
_MASK = "pair_mask= takes a bool mask of targets and sources (True = takes part), score_bias= floats"
_PADDING = "mask= takes a bool mask of the sources, True = takes part, so give its opposite"
MEANT = {
    "attn_mask": _MASK,
    "src_mask": _MASK,
    "attn_bias": "score_bias= takes floats that are added to the scores",
    "key_padding_mask": _PADDING,
    "src_key_padding_mask": _PADDING,
    "attention_mask": "mask= takes a bool mask of the sources, True = takes part",
    "is_causal": "a causal rule is a neighbourhood: AllTokens(causal=True), or Window(left, 0)",
    "causal": "a causal rule is a neighbourhood: AllTokens(causal=True), or Window(left, 0)",
    "block_mask": "which pairs meet is said by the neighbourhood, a rule of mpnn.neighbours",
    "score_mod": "score= of attend takes a function of (scores, pairs)",
    "need_weights": "return_weights=True gives the weights of all heads beside the output",
    "return_attention_weights": "return_weights=True gives the edges and their weights beside the output",
    "dropout_p": "dropout= is the name of attend, and of the layer's weight",
    "enable_gqa": "fewer heads of keys and values than of queries need no flag",
    "memory": "source= takes the tokens that x hears",
    "key": "source= takes the tokens that x hears, or (keys, values)",
    "value": "source= takes the tokens that x hears, or (keys, values)",
    "pos": "coordinates= takes places in space, positions= numbers of tokens",
    "edge_features": "edge_attr= takes features (..., E, k), edge_weight= one number for each edge",
    "size": "two sets of nodes are given as (x_source, x_target), or with source=",
}


def refuse(where: str, unknown: Mapping[str, Any], known: Iterable[str]) -> NoReturn:
    """Raise a TypeError for the first argument that a call does not have.

    Raises:
        TypeError: always, with what the call takes and, where that is known, what to write instead.

    Example::

        >>> from mpnn.slips import refuse
        >>> refuse("attend", {"is_causal": True}, ["mask"])
        Traceback (most recent call last):
        TypeError: attend got an unexpected argument 'is_causal'; a causal rule is a neighbourhood: ...
    """
    known, name = list(known), next(iter(unknown))
    said = f"; {MEANT[name]}" if name in MEANT else hint(name, known)
    raise TypeError(f"{where} got an unexpected argument {name!r}{said}; it takes {', '.join(known)}")
