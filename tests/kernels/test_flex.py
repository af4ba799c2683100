"""FlexAttention's blocks against torch's own, and its results on the CPU, uncompiled, against the reference.

Compiled for the CPU it has no backward, and says so at its door. Its plain operations have one: with the door open,
gradients are compared too. The compiled kernels are in test_gpu.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from helpers.compare import agree, run
from mpnn import MessagePassing, attend, plan
from mpnn.kernels import edge_softmax, flex, merge
from mpnn.neighbours import AllTokens, Blocks, Graph, Grid, Neighbours, Window
from mpnn.weights import QKSoftmax

pytestmark = pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")

RULES: dict[str, tuple[Neighbours, int, int]] = {
    "window": (Window(20), 300, 300),
    "causal": (Window(130, 0), 260, 260),
    "dilated": (Window(3, dilation=5), 200, 200),
    "fewer targets": (Window(9, 2), 40, 200),
    "targets without a source": (Window(1), 200, 50),
    "causal of two lengths": (AllTokens(causal=True), 100, 150),
    "plane": (Grid((15, 18), 5), 270, 270),
    "clamped plane": (Grid((12, 14), 3, dilation=2, border="clamp"), 168, 168),
    "blocks": (Blocks(50, shift=9, halo=4), 260, 260),
    "blocks of a plane": (Blocks((4, 5), grid=(12, 15), halo=1), 180, 180),
    "strided line": (Grid(260, 4, stride=2, padding=1), 130, 260),
}
RAGGED = torch.arange(4).repeat_interleave(torch.tensor([100, 1, 130, 3]))


@pytest.fixture(autouse=True)
def uncompiled_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from torch.nn.attention import flex_attention as module

    monkeypatch.setattr(flex, "DEVICES", ("cuda", "cpu"))
    monkeypatch.setattr(flex, "compiled", lambda: module.flex_attention)
    monkeypatch.setattr(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)  # plain torch operations
    monkeypatch.setattr(module, "_validate_device", lambda *tensors: None)
    flex._made.cache_clear()
    plan._choose.cache_clear()
    yield
    flex._made.cache_clear()
    plan._choose.cache_clear()


def tensors(
    targets: int, sources: int, heads: int = 2, kv: int = 2, lead: tuple[int, ...] = (2,), own: int = 16
) -> list:
    shapes = (*lead, heads, targets, 16), (*lead, kv, sources, 16), (*lead, kv, sources, own)
    return [torch.randn(s) for s in shapes]


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("masked", [None, "one", "batched", "all"])
@torch.no_grad()
def test_forward(name: str, masked: str | None) -> None:
    rule, targets, sources = RULES[name]
    masks = {None: None, "one": torch.rand(sources) < 0.6, "batched": torch.rand(2, sources) < 0.6}
    mask = masks.get(masked, torch.zeros(sources, dtype=torch.bool))
    given = tensors(targets, sources)
    y, wanted = (attend(*given, rule, mask=mask, kernel=n) for n in ("flex", "reference"))
    torch.testing.assert_close(y, wanted)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("masked", [False, True])
def test_gradients(name: str, masked: bool) -> None:
    """Also of the gradients: FlexAttention's own backward, and the reference's where it runs with gradients enabled."""
    rule, targets, sources = RULES[name]
    mask = torch.rand(2, sources) < 0.6 if masked else None
    leaves = {n: t.requires_grad_() for n, t in zip("qkv", tensors(targets, sources, 4, 2), strict=True)}
    call = lambda kernel: attend(*leaves.values(), rule, mask=mask, kernel=kernel)  # noqa: E731
    expected = [run(lambda: call("reference"), leaves, twice) for twice in (False, True)]
    for twice in (False, True):
        agree(run(lambda: call("flex"), leaves, twice), expected[twice], torch.float32)


@pytest.mark.parametrize("masked", [False, True])
def test_part_of_a_union(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Joined with edges by log-sum-exp: FlexAttention's backward with the joint output."""
    monkeypatch.setattr(merge, "PARTS", [flex, edge_softmax])
    rule = Window(20, 5) | Graph(torch.randint(0, 150, (2, 400)), 150)
    mask = torch.rand(2, 150) < 0.6 if masked else None
    leaves = {n: t.requires_grad_() for n, t in zip("qkv", tensors(150, 150), strict=True)}
    call = lambda kernel: attend(*leaves.values(), rule, mask=mask, kernel=kernel)  # noqa: E731
    agree(run(lambda: call("merge"), leaves), run(lambda: call("reference"), leaves), torch.float32)


def test_a_graph_that_is_kept_runs_backward_twice() -> None:
    given = [t.requires_grad_() for t in tensors(150, 150)]
    y = attend(*given, Window(9), kernel="flex").square().sum()
    first = torch.autograd.grad(y, given, retain_graph=True)
    for a, b in zip(first, torch.autograd.grad(y, given), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(y, given)


@pytest.mark.parametrize("rule", [AllTokens(), AllTokens(causal=True), Window(30, 4)])
@pytest.mark.parametrize("masked", [False, True])
@torch.no_grad()
def test_ragged(rule: Neighbours, masked: bool) -> None:
    given, mask = tensors(234, 234, 4, 2, (), 20), (torch.rand(234) < 0.5 if masked else None)
    y, wanted = (attend(*given, rule, batch=RAGGED, mask=mask, kernel=n) for n in ("flex", "reference"))
    torch.testing.assert_close(y, wanted)


@pytest.mark.parametrize("name", RULES)
def test_blocks_are_those_that_torch_finds(name: str) -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    rule, targets, sources = RULES[name]
    mask, _, sees = flex._made(rule, targets, sources, None, torch.device("cpu"))
    theirs = create_block_mask(sees, None, None, targets, sources, device="cpu")
    assert mask.shape == theirs.shape and mask.BLOCK_SIZE == theirs.BLOCK_SIZE
    full = [dense(m.full_kv_num_blocks, m.full_kv_indices) for m in (mask, theirs)]
    partial = [dense(m.kv_num_blocks, m.kv_indices) for m in (mask, theirs)]
    assert torch.equal(full[0] | partial[0], full[1] | partial[1])
    assert not (full[0] & partial[0]).any() and not (full[0] & ~full[1]).any()
    if rule.axes == 1:
        assert torch.equal(full[0], full[1])
    by_source = dense(mask.q_num_blocks, mask.q_indices), dense(mask.full_q_num_blocks, mask.full_q_indices)
    assert torch.equal(by_source[0].T, partial[0]) and torch.equal(by_source[1].T, full[0])


def dense(count: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The blocks of a table: bool (rows, columns)."""
    table = torch.zeros(index.shape[-2:], dtype=torch.bool)
    for row, (n, columns) in enumerate(zip(count[0, 0].tolist(), index[0, 0], strict=True)):
        table[row, columns[:n].long()] = True
    return table


@torch.no_grad()
def test_a_layer() -> None:
    layer, x = MessagePassing(Window(40, 3), QKSoftmax(32, 2, kv_heads=1)), torch.randn(3, 2, 150, 32)
    mask = torch.rand(3, 2, 150) < 0.7
    assert layer.plan(x, mask=mask).kernel == "flex"
    y = layer(x, mask=mask)
    layer.kernel = "reference"
    torch.testing.assert_close(y, layer(x, mask=mask))


@torch.no_grad()
def test_a_block_mask_is_kept_for_the_next_call() -> None:
    given = tensors(150, 150)
    for rule in (Window(7), Window(7), Window(8), Window(7)):
        attend(*given, rule, kernel="flex")
        attend(*given, rule, mask=torch.rand(150) < 0.5, kernel="flex")  # another mask, the same blocks
    assert flex._made.cache_info().misses == 2


@torch.no_grad()
def test_more_blocks_than_a_table_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "BLOCKS", 4)
    given = tensors(1100, 1100, 1, 1, ())
    y, wanted = (attend(*given, Window(9), kernel=n) for n in ("flex", "reference"))
    torch.testing.assert_close(y, wanted)
    assert flex._made(Window(9), 1100, 1100, None, torch.device("cpu"))[0].BLOCK_SIZE == (512, 512)


def test_a_joint_backward_adds_up() -> None:
    """Two parts with the joint out and log-sum-exp against one over all: with a stand-in that has a CPU backward."""
    q, k, v = (t.requires_grad_() for t in tensors(6, 10))
    whole = torch.softmax(q @ k.transpose(-2, -1) / 4, -1) @ v
    lse = (q @ k.transpose(-2, -1) / 4).logsumexp(-1)
    grad = torch.randn_like(whole)
    wanted = torch.autograd.grad(whole, (q, k, v), grad)

    def part(columns: slice) -> tuple[torch.Tensor, ...]:
        def fused(q, k, v, block_mask, scale, return_aux):  # type: ignore[no-untyped-def]
            scores = q @ k[..., columns, :].transpose(-2, -1) * scale
            more = type("Aux", (), {"lse": scores.logsumexp(-1)})
            return torch.softmax(scores, -1) @ v[..., columns, :], more

        flex.compiled = lambda: fused
        made = flex.Flex(None, 0.25, True)
        made.forward(q, k, v)
        return made.backward(grad, q, k, v, whole.detach(), lse.detach())

    found = [a + b for a, b in zip(part(slice(0, 4)), part(slice(4, 10)), strict=True)]
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)
    alone = part(slice(0, 10))
    for a, b in zip(alone, wanted, strict=True):
        torch.testing.assert_close(a, b)


@torch.no_grad()
def test_another_window_is_no_other_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch.compile traces of FlexAttention and of the boxes, counted."""
    from torch.nn.attention.flex_attention import flex_attention

    traced: list[object] = []

    def backend(graph, inputs):  # type: ignore[no-untyped-def]
        traced.append(graph)
        return graph.forward

    whole = torch.compile(flex_attention, fullgraph=True, backend=backend)
    monkeypatch.setattr(flex, "compiled", lambda: whole)
    given = tensors(150, 150)
    for rule in (Window(7), Window(30, 0), AllTokens(causal=True), Grid(150, 3)):
        y, wanted = (attend(*given, rule, kernel=n) for n in ("flex", "reference"))
        torch.testing.assert_close(y, wanted)
    assert len(traced) == 1
    for length in (300, 400, 500, 600):
        attend(*tensors(length, length), Window(9), kernel="flex")
    assert len(traced) <= 3
