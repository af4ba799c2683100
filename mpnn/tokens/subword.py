"""Text as tokens: one for each subword."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mpnn import checks
from mpnn.tokens.base import Tokens
from mpnn.tokens.places import counted_positions, mask_from_lengths
from mpnn.tokens.vocabulary import Vocabulary


class SubwordTokens(nn.Module):
    """Makes one token of each subword of a text: row ``id`` of a learned table, ``embedding.weight``.

    The vocabulary lies in the state dict (as bytes), so that a checkpoint brings it; a model made to receive one passes
    ``size=`` alone. Padding is masked by length: an id equal to the one that fills it takes part.

    Args:
        channels: channels of a token.
        vocabulary: ``Vocabulary.trained(texts, size)`` or ``Vocabulary.load(path)``; plain bytes when None.
        size: rows of the table, at least ``vocabulary.size`` and that when None.
        side: "right" or "left", where shorter texts are filled.

    Shapes:
        text: a str, a list of str, a list of lists of ids, or ids ``(..., N)`` with a mask
        mask: bool ``(..., N)``, only with a tensor of ids
        returns: ``x`` ``(N, channels)`` for a str, else ``(B, N, channels)``, ``mask`` and ``positions`` likewise

    Raises:
        ImportError: without the ``tokenizers`` library.

    >>> SubwordTokens(8)(["ab", "abcd"]).mask
    tensor([[ True,  True, False, False],
            [ True,  True,  True,  True]])
    """

    def __init__(
        self, channels: int, vocabulary: Vocabulary | None = None, *, size: int | None = None, side: str = "right"
    ) -> None:
        super().__init__()
        checks.one_of("side", side, ("right", "left"))
        self.vocabulary = Vocabulary() if vocabulary is None else vocabulary
        self.side = side
        size = self.vocabulary.size if size is None else size
        if size < self.vocabulary.size:
            raise ValueError(f"expected size of at least {self.vocabulary.size}, the vocabulary's, got {size}")
        self.embedding = nn.Embedding(size, channels)

    def batch(self, texts: Sequence[str | Sequence[int]], length: int | None = None) -> tuple[Tensor, Tensor]:
        """Ids and mask of texts or lists of ids, filled up to the longest or to ``length``.

        Shapes:
            returns: int64 ``(B, N)``, bool ``(B, N)``
        """
        rows = [self.vocabulary.encode(row) if isinstance(row, str) else list(row) for row in texts]
        longest = max((len(row) for row in rows), default=0)
        length = longest if length is None else length
        if longest > length:
            raise ValueError(f"expected texts of at most length={length} subwords, got one of {longest}")
        fill = [[0] * (length - len(row)) for row in rows]
        if self.side == "right":
            filled = [row + end for row, end in zip(rows, fill, strict=True)]
        else:
            filled = [end + row for row, end in zip(rows, fill, strict=True)]
        device = self.embedding.weight.device
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64, device=device)
        ids = torch.tensor(filled, dtype=torch.int64, device=device).reshape(len(rows), length)
        return ids, mask_from_lengths(lengths, length, side=self.side)

    def forward(self, text: str | Sequence[str | Sequence[int]] | Tensor, mask: Tensor | None = None) -> Tokens:
        if not isinstance(text, Tensor):
            if mask is not None:
                raise ValueError("mask= would be ignored: the mask of texts comes from their lengths")
            ids, mask = self.batch([text] if isinstance(text, str) else text)
            if isinstance(text, str):
                ids, mask = ids[0], None
        else:
            ids = text
            checks.integers("text", ids)
        if mask is None:
            return Tokens(self.embedding(ids), positions=torch.arange(ids.shape[-1], device=ids.device))
        checks.bool_mask("mask", mask)
        # Whatever fills the masked places, such as the -100 of labels, is no row of the table.
        x = self.embedding(ids.masked_fill(~mask, 0))
        return Tokens(x, mask=mask, positions=counted_positions(mask))

    def get_extra_state(self) -> Tensor:
        return torch.tensor(list(self.vocabulary.to_json().encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        vocabulary = Vocabulary.from_json(bytes(state.tolist()).decode())
        if vocabulary.size > self.embedding.num_embeddings:
            raise ValueError(
                f"the checkpoint's vocabulary has {vocabulary.size} ids, this table has "
                f"{self.embedding.num_embeddings} rows; make SubwordTokens with size={vocabulary.size}"
            )
        self.vocabulary = vocabulary
