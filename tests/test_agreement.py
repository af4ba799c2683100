"""Every kernel against the reference, on every pair of rules that it accepts: outputs and all gradients.

Nothing here names a kernel: the plan says which can run a call. The reference itself is held against the oracle
(test_oracle.py), and here in many small blocks against one.
"""

from __future__ import annotations

import pytest
import torch

from helpers.attention import Attention, cases
from helpers.calls import product, trial
from helpers.compare import agree, differences, run
from helpers.over import over
from mpnn import limits, use_kernels
from mpnn.fused import launch
from mpnn.kernels import KERNELS, fft, pairwise, sdpa, segment
from mpnn.plan import NAMES

NARROW = ({}, {"mask": "batched", "pair_mask": "heads", "edge_weight": "batched"})
WIDE = (
    {"mask": "one", "edge_weight": "one"},
    {"mask": "batched", "edge_weight": "batched", "positions": True},
    {"mask": "all"},
    {"mask": "end"},
    {"pair_mask": "rows"},
    {"pair_mask": "columns"},
)
MODES = [(torch.float64, mode) for mode in NARROW]
FEW_MODES = [(torch.float64, mode) for mode in WIDE] + [
    (dtype, mode) for dtype in (torch.float32, torch.bfloat16, torch.float16) for mode in NARROW
]
FEW = product("few")


@over(product())
def test_kernels_agree(place: str, rule: str) -> None:
    wrong = []
    for dtype, mode in MODES + (FEW_MODES if (place, rule) in FEW else []):
        call = trial(place, rule, dtype=dtype, **mode)
        able, twice = call.able(), dtype == torch.float64 and mode in NARROW
        if able:
            with use_kernels("reference"):
                expected = run(call, call.leaves, twice)
        for kernel in able:
            with use_kernels(kernel):
                for again in range(1 + (mode == {})):  # the second plain call is one that the layer remembers
                    found = differences(run(call, call.leaves, twice), expected, dtype)
                    wrong += [f"{kernel}, {dtype}, {mode}, call {again}: {text}" for text in found]
    assert not wrong, "\n".join(wrong)


@over(product("main"))
def test_kernels_agree_under_autocast(place: str, rule: str) -> None:
    call = trial(place, rule, dtype=torch.float32, mask="batched")
    with torch.autocast("cpu", torch.bfloat16):
        able = call.able()
        for again in range(2):
            with use_kernels("reference"):
                expected = run(call, call.leaves)
            assert expected["output"].dtype == torch.bfloat16
            for kernel in able:
                with use_kernels(kernel):
                    agree(run(call, call.leaves), expected, torch.bfloat16, f"{kernel}, call {again}")


def test_every_kernel_is_compared() -> None:
    seen = {kernel for place, rule in FEW for kernel in trial(place, rule, grad=False).able()}
    on_a_gpu = {"triton", "flex"}  # their own tests interpret them here
    missing = {k.name for k in KERNELS} - seen - on_a_gpu - {"reference"}
    assert missing <= (set() if segment.INSTALLED else {"segment"})


@over(product("main"))
def test_kernels_agree_on_what_is_large(place: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ways of large calls: heads one by one, masks, inner products and batch entries some at a time."""
    monkeypatch.setattr("mpnn.sparse.csr._TOGETHER", 0)
    monkeypatch.setattr(sdpa, "MASK", 24)
    monkeypatch.setattr(fft, "by_fft", lambda *sizes: True)
    monkeypatch.setattr(launch, "ENTRIES", 1)
    monkeypatch.setattr(launch, "CHUNKED", ("cuda", "cpu"))
    for size in ("CACHED", "LEAST"):
        monkeypatch.setattr(pairwise, size, 1)
    for mode in ({}, {"mask": "batched", "pair_mask": "heads"}):
        call = trial(place, rule, **mode)
        able = call.able()
        if able:
            with use_kernels("reference"):
                expected = run(call, call.leaves, twice=True)
        for kernel in able:
            with use_kernels(kernel):
                agree(run(call, call.leaves, twice=True), expected, torch.float64, f"{kernel}, {mode}")


@over(FEW)
def test_blocks_of_the_reference_agree(place: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = []
    for mode in NARROW:
        call = trial(place, rule, **mode)
        with use_kernels("reference"):
            expected = run(call, call.leaves, twice=True)
            with monkeypatch.context() as patch:
                patch.setattr(limits, "block", 40)
                found = differences(run(call, call.leaves, twice=True), expected, torch.float64)
        wrong += [f"{mode}: {text}" for text in found]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("place", "variant"), cases())
def test_attend_is_the_oracle_on_every_kernel(place: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = Attention(place, variant)
    expected = run(call.oracle, call.leaves)
    wrong = []
    for kernel in call.able(NAMES):
        mine = run(lambda kernel=kernel: call(kernel=kernel), call.leaves)
        wrong += [f"{kernel}: {text}" for text in differences(mine, expected, torch.float64)]
    with use_kernels("reference"), monkeypatch.context() as patch:
        patch.setattr(limits, "block", 40)
        mine = run(call, call.leaves)
        wrong += [f"blocks: {text}" for text in differences(mine, expected, torch.float64)]
    assert not wrong, "\n".join(wrong)
