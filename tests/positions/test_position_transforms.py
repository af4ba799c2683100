"""Every position under compile, vmap, casts, moves, copies and pickles: one table of cases."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from mpnn.positions import ALiBi, LaplacianEigenvectors, Learned, RandomWalk, RelativeBias, Rotary, Sinusoidal

Case = tuple[Callable[[], nn.Module], Callable[[int, torch.dtype], tuple[Tensor, ...]]]


def tokens(n: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return torch.randn(3, n, 8).to(dtype), torch.randint(0, 40, (3, n))


def grid_tokens(n: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return torch.randn(3, n, 8).to(dtype), torch.randint(0, 6, (3, n, 2))


def alone(n: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (torch.randn(3, n, 8).to(dtype),)


def pairs(n: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return torch.randint(0, 90, (3, n, 1)), torch.randint(0, 90, (3, 1, n + 1))


def grid_pairs(n: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return torch.randint(0, 6, (3, n, 1, 2)), torch.randint(0, 6, (3, 1, n + 1, 2))


CASES: dict[str, Case] = {
    "sinusoidal": (lambda: Sinusoidal(8), tokens),
    "sinusoidal default": (lambda: Sinusoidal(8), alone),
    "sinusoidal 2d": (lambda: Sinusoidal(8, axes=2), grid_tokens),
    "learned": (lambda: Learned(8, 40), tokens),
    "learned default": (lambda: Learned(8, 200), alone),
    "learned 2d": (lambda: Learned(8, (6, 6)), grid_tokens),
    "rotary": (lambda: Rotary(8), tokens),
    "rotary default": (lambda: Rotary(8, layout="interleaved", partial=4), alone),
    "rotary 2d": (lambda: Rotary(8, axes=2), grid_tokens),
    "alibi": (lambda: ALiBi(6), pairs),
    "offsets": (lambda: RelativeBias.offsets(2, 50), pairs),
    "t5": (lambda: RelativeBias.t5(2), pairs),
    "swin": (lambda: RelativeBias.swin(2, (6, 6)), grid_pairs),
}
each = pytest.mark.parametrize("name", CASES)


@each
def test_compiles_whole_with_dynamic_lengths(name: str) -> None:
    from torch._dynamo.testing import CompileCounter

    make, data = CASES[name]
    module = make()
    counter = CompileCounter()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=counter)
    for n in (5, 7, 2, 129, 64):
        inputs = data(n, torch.float32)
        torch.testing.assert_close(compiled(*inputs), module(*inputs))
    assert counter.frame_count <= 2


@pytest.mark.parametrize("name", [name for name in CASES if name != "alibi"])  # which has nothing to learn
def test_compiles_forward_and_backward(name: str) -> None:
    make, data = CASES[name]
    module = make()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x, *rest = data(5, torch.float32)
    leaves = list(module.parameters())
    if x.is_floating_point():
        leaves.append(x.requires_grad_())
    y, expected = compiled(x, *rest), module(x, *rest)
    up = torch.randn_like(expected)
    for mine, theirs in zip(torch.autograd.grad(y, leaves, up), torch.autograd.grad(expected, leaves, up), strict=True):
        torch.testing.assert_close(mine, theirs)


@each
def test_vmap_is_a_loop(name: str) -> None:
    make, data = CASES[name]
    module = make()
    inputs = data(5, torch.float32)
    looped = torch.stack([module(*one) for one in zip(*inputs, strict=True)])
    torch.testing.assert_close(torch.func.vmap(module)(*inputs), looped)


@each
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_casting_the_module_keeps_the_constants(name: str, dtype: torch.dtype) -> None:
    make, data = CASES[name]
    module = make()
    cast = copy.deepcopy(module).to(dtype)
    inputs = data(5, dtype)
    y = cast(*inputs)
    expected = module(*(t.float() if t.is_floating_point() else t for t in inputs))
    if inputs[0].is_floating_point():
        assert y.dtype == dtype
    tolerance = {torch.bfloat16: 2**-7, torch.float16: 2**-9, torch.float64: 1e-6}[dtype]
    torch.testing.assert_close(y.float(), expected, rtol=tolerance, atol=tolerance)
    # There and back again: what a round trip through half precision would have rounded is as it was.
    back = cast.to(torch.float32)
    for (key, mine), theirs in zip(back.named_buffers(), module.buffers(), strict=True):
        assert torch.equal(mine, theirs), key


@each
def test_copies_and_pickles_and_holds_no_constants_in_the_state(name: str) -> None:
    make, data = CASES[name]
    module = make()
    inputs = data(5, torch.float32)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin(*inputs), module(*inputs))
    assert set(module.state_dict()) == {key for key, _ in module.named_parameters()}


@each
def test_made_on_the_meta_device_and_filled_later(name: str) -> None:
    make, data = CASES[name]
    module = make()
    with torch.device("meta"):
        empty = make()
    empty.to_empty(device="cpu").load_state_dict(module.state_dict())
    inputs = data(5, torch.float32)
    assert torch.equal(empty(*inputs), module(*inputs))


@pytest.mark.parametrize("name", ["rotary", "sinusoidal", "learned"])
def test_autocast(name: str) -> None:
    make, data = CASES[name]
    module = make()
    with torch.autocast("cpu", torch.bfloat16):
        for dtype in (torch.float32, torch.bfloat16):
            assert module(*data(5, dtype)).dtype == dtype


@pytest.mark.parametrize("kind", [LaplacianEigenvectors, RandomWalk])
def test_graph_codes_compile_copy_and_map(kind: type) -> None:
    module = kind(4, 3).eval()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for n, e in ((5, 8), (7, 3), (7, 0)):
        x, edges = torch.randn(2, n, 4), torch.randint(0, n, (2, e))
        batch = (torch.arange(n) > 2).long()
        edges = edges[:, batch[edges[0]] == batch[edges[1]]]
        y = module(x, edges, batch=batch)
        torch.testing.assert_close(compiled(x, edges, batch=batch), y)
        for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            assert torch.equal(twin(x, edges, batch=batch), y)
        mapped = torch.func.vmap(lambda x, edges=edges, batch=batch: module(x, edges, batch=batch))(x)
        torch.testing.assert_close(mapped, y)
        half = copy.deepcopy(module).bfloat16()(x.bfloat16(), edges, batch=batch)
        torch.testing.assert_close(half.float(), y, rtol=2e-2, atol=2e-2)
