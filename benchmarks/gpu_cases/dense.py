"""Dense attention beside each of torch's backends, forced."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.case import FORWARD, TRAIN, Case, Entry, Side, Work
from benchmarks.cases.w05a_attend import chosen
from benchmarks.gpu_cases.leaves import SQUARE, TOLERANCE, bytes_of, given
from mpnn import attend
from mpnn.neighbours import AllTokens

BACKENDS = {"flash": "FLASH_ATTENTION", "cuDNN": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "plain": "MATH"}
DENSE = (  # batch, heads, tokens, channels of a head, causal
    (8, 16, 1024, 64, False),
    (2, 16, 4096, 64, True),
    (2, 16, 4096, 128, False),
    (2, 16, 4096, 128, True),
    (1, 16, 16384, 128, True),
)


def dense(device: str, dtype: torch.dtype, batch: int, heads: int, n: int, width: int, causal: bool) -> Case:
    """``attend`` on all tokens beside each of torch's backends, forced; the note names those that refuse the call."""
    leaves = given(device, dtype, batch, heads, n, width)
    q, k, v = leaves.values()
    rule = AllTokens(causal=causal)

    def by(backend: SDPBackend) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    sides, refused = [], []
    for name, backend in ((n, getattr(SDPBackend, b)) for n, b in BACKENDS.items()):
        if (name == "plain" and batch * heads * n * n > SQUARE) or not takes(partial(by, backend), [q, k, v]):
            refused.append(name)
        else:
            sides.append(Side(f"SDPA {name}", partial(by, backend), leaves))
    pairs = Work(4.0 * batch * heads * n * n * width * (0.5 if causal else 1.0), 16.0 * batch * heads * n * width)
    pairs = bytes_of(pairs, dtype)
    ours = Side("mpnn", lambda: attend(q, k, v, rule), leaves)
    kernel = chosen(q.detach(), k.detach(), v.detach(), rule)
    note = f"refused: {', '.join(refused)}" if refused else ""
    return Case(ours, sides, pairs, pairs.times(3.5), kernel, TOLERANCE[dtype], note)


def takes(call: Callable[[], Tensor], leaves: list[Tensor]) -> bool:
    """Whether a forced backend runs this call, forward and backward; torch says no by an error and its reasons."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.autograd.grad(call().sum(), leaves)
        except RuntimeError as error:
            if "No available kernel" not in str(error) and "No viable backend" not in str(error):
                raise
            return False
    return True


def entries(device: str, small: bool) -> Iterator[Entry]:
    best = {} if small else {(FORWARD, "best"): 0.98, (TRAIN, "best"): 0.98}
    for shape in ((1, 2, 64, 32, True),) if small else DENSE:
        for dtype in (torch.bfloat16, torch.float32):
            kind = str(dtype).removeprefix("torch.")
            if dtype == torch.float32 and shape[2] > 4096:
                continue
            key = "dense/" + "x".join(map(str, shape[:4])) + ("-causal" if shape[4] else "") + f"-{kind}"
            size = dict(zip(("B", "H", "N", "D"), shape, strict=False))
            words = f"attention over all of {shape[2]:,} tokens, {kind}{', causal' * shape[4]}"
            yield Entry(key, words, partial(dense, device, dtype, *shape), size, best)
