"""Generation through transformers' own caches: converted models write the same tokens."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from helpers.huggingface import made, text, without_rounding
from mpnn.interop import convert

pytest.importorskip("transformers")
HOW = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "without a cache": {"use_cache": False},
    "a static cache": {"cache_implementation": "static", "disable_compile": True},
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_the_same_tokens(name, implementation, how, monkeypatch):
    without_rounding(monkeypatch)
    model, given = made(name, implementation), text("left")
    more = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 0, **HOW[how]}
    more |= {"return_dict_in_generate": True, "output_logits": True}
    before = model.generate(**given, **more)
    convert(model)
    after = model.generate(**given, **more)
    assert torch.equal(after.sequences, before.sequences)
    assert_close(after.logits, before.logits, atol=1e-5, rtol=1e-5)
    assert before.sequences.shape[1] >= 7 and len(before.sequences.unique()) > (1 if name == "t5" else 4)
