"""Subwords: lossless (case 37), masked by length (38), the same every time, kept in the checkpoint (42)."""

from __future__ import annotations

import copy
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install mpnn[text]")

from mpnn.tokens import SubwordTokens, Vocabulary

CORPUS = ["the lower the better", "Hello World, hello again", "new newer newest", "a  b\n\tc"] * 3
TEXTS = [
    "  Hello World.", "a\nb", "a \t b", "", " ", "trailing   ", "🙂👩‍👩‍👧", "e\u0301 \u00e9 \u1ea5", "\x00\x7f\ufeff",
    "<pad>", "<start> the<end>", "<|endoftext|>", "\r\n\u2028\u00a0", "中文 العربية", "\U0010ffff",
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    path = tmp_path_factory.mktemp("vocabulary") / "vocabulary.json"
    Vocabulary.trained(CORPUS, size=290).save(path)
    return Vocabulary.load(path)


@pytest.mark.parametrize("text", TEXTS)
def test_case_37_round_trip(trained: Vocabulary, text: str) -> None:
    for vocabulary in (trained, Vocabulary()):
        ids = vocabulary.encode(text)
        assert vocabulary.decode(ids) == text
        assert vocabulary.decode(vocabulary.encode(text, start=True, end=True)) == text
        assert all(i >= len(vocabulary.special) for i in ids)


@given(st.text())
def test_every_text_comes_back(text: str) -> None:
    vocabulary = Vocabulary(merges=[("h", "e"), ("Ġ", "t"), ("Ã", "©")])
    assert vocabulary.decode(vocabulary.encode(text)) == text


def test_training_merges_what_is_frequent(trained: Vocabulary) -> None:
    assert trained.size == 290
    assert len(trained.encode("the newest")) < 7 < len(Vocabulary().encode("the newest"))
    assert Vocabulary.trained(["ab"] * 5, size=1000).size < 1000
    assert len(Vocabulary()) == 259
    assert trained == Vocabulary.from_json(trained.to_json()) and hash(trained) == hash(copy.deepcopy(trained))
    assert trained != Vocabulary()
    assert pickle.loads(pickle.dumps(trained)).encode("newer") == trained.encode("newer")


def test_two_merges_may_make_one_subword() -> None:
    vocabulary = Vocabulary(merges=[("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc")])
    assert vocabulary.size == 259 + 3
    assert vocabulary.encode("bcabc") == [260, 261]
    assert vocabulary.decode([260, 261]) == "bcabc"
    assert vocabulary == Vocabulary.from_json(vocabulary.to_json())


def test_vocabulary_is_the_same_in_any_order_and_process(trained: Vocabulary) -> None:
    mixed = random.Random(0).sample(CORPUS, len(CORPUS))
    assert Vocabulary.trained(mixed, size=290) == trained
    program = f"from mpnn.tokens import Vocabulary; print(Vocabulary.trained({CORPUS!r}, size=290).to_json())"
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == trained.to_json()


def test_case_38_padding_is_masked_by_length() -> None:
    vocabulary = Vocabulary(special=("<end>",))
    tokens = SubwordTokens(4, vocabulary)
    ids, mask = tokens.batch([[5, 6, 0], [7] * 5])
    assert ids.tolist() == [[5, 6, 0, 0, 0], [7] * 5]
    assert mask.tolist() == [[True, True, True, False, False], [True] * 5]
    t = tokens([[5, 6, 0], [7] * 5])
    assert torch.equal(t.x[0, 2], tokens.embedding.weight[0])
    assert t.positions.tolist() == [[0, 1, 2, 2, 2], [0, 1, 2, 3, 4]]
    left = SubwordTokens(4, vocabulary, side="left")
    ids, mask = left.batch([[5, 6, 0], [7] * 5])
    assert ids.tolist() == [[0, 0, 5, 6, 0], [7] * 5]
    assert mask[0].tolist() == [False, False, True, True, True]
    assert left([[5, 6, 0], [7] * 5]).positions[0].tolist() == [0, 0, 0, 1, 2]


def test_rows_are_those_of_the_table(trained: Vocabulary) -> None:
    tokens = SubwordTokens(4, trained)
    texts = ["the newest", "", "🙂"]
    t = tokens(texts)
    for row, text in enumerate(texts):
        ids = trained.encode(text)
        assert torch.equal(t.x[row, : len(ids)], tokens.embedding.weight[ids])
        assert t.mask[row].sum() == len(ids)
    assert torch.equal(tokens("the newest").x, t.x[0, : len(trained.encode("the newest"))])
    assert tokens("the newest").mask is None
    assert tokens(["", ""]).x.shape == (2, 0, 4)
    ids, mask = tokens.batch(texts)
    spoilt = ids.masked_fill(~mask, -100)
    given = tokens(spoilt, mask)
    assert torch.equal(given.x[mask], t.x[mask])
    assert torch.equal(given.positions, t.positions)
    assert tokens.batch(["a"], length=3)[1].tolist() == [[True, False, False]]
    with pytest.raises(ValueError, match="at most length=1 subwords, got one of"):
        tokens.batch(["a long text"], length=1)


def test_case_42_the_vocabulary_lies_in_the_checkpoint(trained: Vocabulary, tmp_path: Path) -> None:
    tokens = SubwordTokens(4, trained)
    torch.save(tokens.state_dict(), tmp_path / "tokens.pt")
    state = torch.load(tmp_path / "tokens.pt", weights_only=True)
    fresh = SubwordTokens(4, size=trained.size)
    fresh.load_state_dict(state)
    assert fresh.vocabulary == trained
    assert torch.equal(fresh("the newest").x, tokens("the newest").x)
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    with pytest.raises(RuntimeError, match="_extra_state"):
        fresh.load_state_dict({"embedding.weight": state["embedding.weight"]})
    with pytest.raises(ValueError, match="make SubwordTokens with size=290"):
        SubwordTokens(4).load_state_dict(state)
    for twin in (copy.deepcopy(tokens), pickle.loads(pickle.dumps(tokens))):
        assert torch.equal(twin("the newest").x, tokens("the newest").x)


def test_ids_compile_whole_and_map(trained: Vocabulary) -> None:
    tokens = SubwordTokens(4, trained)
    compiled = torch.compile(tokens, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (5, 9):
        ids = torch.randint(0, trained.size, (3, n))
        mask = torch.rand(3, n) > 0.5
        assert torch.equal(compiled(ids, mask).x, tokens(ids, mask).x)
        assert torch.equal(torch.func.vmap(lambda i, m: tokens(i, m).x)(ids, mask), tokens(ids, mask).x)
    assert tokens.bfloat16()(ids.int()).x.dtype == torch.bfloat16


def test_wrong_arguments_are_refused(trained: Vocabulary) -> None:
    with pytest.raises(ValueError, match="size of at least 290, the vocabulary's, got 100"):
        SubwordTokens(4, trained, size=100)
    with pytest.raises(ValueError, match="did you mean 'left'"):
        SubwordTokens(4, side="lefd")
    with pytest.raises(ValueError, match="size of at least 3"):
        Vocabulary.trained(CORPUS, size=100)
    with pytest.raises(TypeError, match=r"pass \[text\]"):
        Vocabulary.trained("one text", size=300)
    with pytest.raises(ValueError, match="different names"):
        Vocabulary(special=("<a>", "<a>"))
    with pytest.raises(TypeError, match="expected a str, got list"):
        trained.encode(["a"])  # type: ignore[arg-type]
    with pytest.raises(IndexError, match="ids from 0 to 289, got 290"):
        trained.decode([5, 290])
    with pytest.raises(TypeError, match="dtype int64 or int32"):
        SubwordTokens(4)(torch.zeros(3))
    with pytest.raises(TypeError, match="dtype bool"):
        SubwordTokens(4)(torch.zeros(3, dtype=torch.long), torch.ones(3))
    with pytest.raises(ValueError, match="mask= would be ignored"):
        SubwordTokens(4)(["a"], torch.ones(1, 1, dtype=torch.bool))
