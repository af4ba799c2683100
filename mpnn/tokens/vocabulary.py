"""Text as ids and back without loss: byte-level byte-pair encoding through the ``tokenizers`` library."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

SPECIAL = ("<pad>", "<start>", "<end>")


class Vocabulary:
    """The ids of a text's subwords: first the special ones, then the 256 bytes, then the merges that training found.

    ``decode(encode(s)) == s`` for every ``str`` that has a UTF-8 form: all bytes have an id, nothing is normalised, no
    space is put in front, and the text of a special token is text like any other (specials have ids, but are never
    looked for in what a user wrote). The same texts give the same vocabulary, in any order and on any machine.

    Args:
        special: names of the ids 0, 1, ...; id 0 fills the padding. ("<end>",) makes one id serve for both.
        merges: the byte-pair merges in order, as ``trained`` finds them; none makes each byte a token.

    Raises:
        ImportError: without the ``tokenizers`` library.

    Source: Sennrich et al., 2016; byte level: Radford et al. (GPT-2), 2019.

    >>> vocabulary = Vocabulary.trained(["low lower lowest"] * 9, size=265)
    >>> vocabulary.encode("low<end>", end=True)
    [260, 30, 71, 80, 70, 32, 2]
    >>> vocabulary.decode([260, 30, 71, 80, 70, 32, 2])
    'low<end>'
    """

    def __init__(self, special: Sequence[str] = SPECIAL, merges: Iterable[Sequence[str]] = ()) -> None:
        lib = _library()
        if not special or len(set(special)) != len(special):
            raise ValueError(f"expected special to be different names, at least one for the padding, got {special!r}")
        self.special = tuple(special)
        self.merges = tuple((left, right) for left, right in merges)
        # Two merges may make the same subword, as a+bc and ab+c do: it has one id.
        made = sorted(lib.pre_tokenizers.ByteLevel.alphabet()) + [left + right for left, right in self.merges]
        units = list(dict.fromkeys(made))
        self._bpe = _bytes(lib, lib.models.BPE({unit: i for i, unit in enumerate(units)}, list(self.merges)))
        self.size = len(self.special) + len(units)

    @classmethod
    def trained(cls, texts: Iterable[str], size: int, *, special: Sequence[str] = SPECIAL) -> Vocabulary:
        """The vocabulary of up to ``size`` ids, specials included, that merges the texts' most frequent pairs."""
        lib = _library()
        if size < len(special) + 256:
            raise ValueError(f"expected size of at least {len(special)} + 256 (specials and bytes), got {size}")
        if isinstance(texts, str):
            raise TypeError("expected texts to be several strings, got one; pass [text]")
        bpe = _bytes(lib, lib.models.BPE())
        trainer = lib.trainers.BpeTrainer(
            vocab_size=size - len(special),
            initial_alphabet=lib.pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=[],
            show_progress=False,
        )
        bpe.train_from_iterator(texts, trainer)
        return cls(special, json.loads(bpe.to_str())["model"]["merges"])

    def encode(self, text: str, *, start: bool = False, end: bool = False) -> list[int]:
        """The ids of a text, between ``<start>`` and ``<end>`` where asked for."""
        if not isinstance(text, str):
            raise TypeError(f"expected a str, got {type(text).__name__}")
        ids = [len(self.special) + i for i in self._bpe.encode(text).ids]
        return [self.special.index("<start>")] * start + ids + [self.special.index("<end>")] * end

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these ids without the special ones; bytes that are no UTF-8 come out as U+FFFD."""
        ids = [int(i) for i in ids]
        for i in ids:
            if not 0 <= i < self.size:
                raise IndexError(f"expected ids from 0 to {self.size - 1}, got {i}")
        return self._bpe.decode([i - len(self.special) for i in ids if i >= len(self.special)])

    def to_json(self) -> str:
        return json.dumps({"special": self.special, "merges": self.merges})

    @classmethod
    def from_json(cls, text: str) -> Vocabulary:
        return cls(**json.loads(text))

    def save(self, path: str | os.PathLike[str]) -> None:
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Vocabulary:
        return cls.from_json(Path(path).read_text(encoding="utf-8"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and (self.special, self.merges) == (other.special, other.merges)

    def __hash__(self) -> int:
        return hash((self.special, self.merges))

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"Vocabulary(size={self.size}, special={self.special})"


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError('SubwordTokens need the tokenizers library: pip install "mpnn[text]"') from error
    return tokenizers


def _bytes(lib: Any, model: Any) -> Any:
    """A tokenizer of this model on bytes, with nothing around it that could lose or add a character."""
    bpe = lib.Tokenizer(model)
    bpe.pre_tokenizer = lib.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    bpe.decoder = lib.decoders.ByteLevel()
    return bpe
