"""The compiled kernel: long rows cut into pieces, threads, removed edges, memory, and what stands around numba."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import subprocess
import sys
import threading
import time
import warnings
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.compare import agree, run
from mpnn import MessagePassing, attend, use_kernels
from mpnn.edges import Edges
from mpnn.kernels import native
from mpnn.native import calls, jobs, threads
from mpnn.native.rows import Rows
from mpnn.neighbours import Graph
from mpnn.positions import RelativeBias
from mpnn.sparse.csr import Csr
from mpnn.weights import AdditiveScore, AdditiveScoreV2, EdgeLearned, QKSoftmax

needs_numba = pytest.mark.skipif(not native.INSTALLED, reason="needs numba, which is not installed")
LAYERS: dict[str, tuple[Callable[[], MessagePassing], int]] = {
    "attention": (lambda: MessagePassing(Graph(), QKSoftmax(8, 2)), 0),
    "grouped": (lambda: MessagePassing(Graph(), QKSoftmax(8, 4, kv_heads=2, root=True)), 0),
    "learned bias": (lambda: MessagePassing(Graph(), QKSoftmax(8, 2, score_bias=RelativeBias.offsets(2, 3))), 0),
    "TransformerConv": (lambda: MessagePassing(Graph(), QKSoftmax(8, 2, edge_channels=3)), 3),
    "GAT": (lambda: _learned(AdditiveScore(8, 2)), 0),
    "GAT with edges": (lambda: _learned(AdditiveScore(8, 2, edge_channels=3, negative_slope=0.0)), 3),
    "GATv2": (lambda: _learned(AdditiveScoreV2(8, 2, target_channels=8)), 0),
}
every = pytest.mark.parametrize("name", LAYERS)


def _learned(network: Any) -> MessagePassing:
    return MessagePassing(Graph(), EdgeLearned(8, 8, network, heads=2, normalise="softmax"))


def hub(nodes: int = 90) -> Tensor:
    """Node 0 hears all, twice the even ones, and sends to all but the last, which hears none."""
    all_, few = torch.arange(nodes), torch.arange(1, nodes - 1)
    source = torch.cat([all_, all_[::2], torch.zeros_like(few), few])
    target = torch.cat([torch.zeros_like(all_), torch.zeros_like(all_[::2]), few, few.flip(0)])
    order = torch.randperm(len(source))
    return torch.stack([source[order], target[order]])


def case(name: str, dtype: torch.dtype = torch.float64, lead: tuple[int, ...] = ()) -> tuple[Any, dict[str, Tensor]]:
    """A layer's call on the hub, and its leaves."""
    make, width = LAYERS[name]
    layer, index = make().to(dtype), hub()
    leaves = {"x": torch.randn(*lead, 90, 8, dtype=dtype, requires_grad=True)}
    given = {}
    if width:
        leaves["attr"] = torch.randn(index.shape[1], width, dtype=dtype, requires_grad=True)
        given["edge_attr"] = leaves["attr"]
    return lambda **more: layer(leaves["x"], index, **given, **more), leaves | dict(layer.named_parameters())


@pytest.fixture
def small_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "LEAST", 20)
    monkeypatch.setattr(jobs, "MOST", 20)
    monkeypatch.setattr(threads, "SERIAL", 0)


@needs_numba
@every
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("lead", [(), (2,)])
def test_rows_longer_than_a_block(name: str, cut: bool, lead: tuple[int, ...], request: pytest.FixtureRequest) -> None:
    if cut:
        request.getfixturevalue("small_jobs")
    call, leaves = case(name, lead=lead)
    mask = torch.rand(90, 90) < 0.5
    mask[0, :70] = False  # the hub's first block, its first pieces
    for given in ({}, {"pair_mask": mask}, {"pair_mask": torch.zeros(90, 90, dtype=torch.bool)}):
        with use_kernels("reference"):
            expected = run(lambda given=given: call(**given), leaves, twice=True)
        with use_kernels("native"):
            agree(run(lambda given=given: call(**given), leaves, twice=True), expected, torch.float64, name)


@needs_numba
@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_threads_do_not_change_a_bit(name: str, dtype: torch.dtype, small_jobs: None) -> None:
    call, leaves = case(name, dtype)
    results = []
    for many in (1, 2, 3):
        torch.set_num_threads(many)
        try:
            with use_kernels("native"):
                results.append(run(call, leaves))
        finally:
            torch.set_num_threads(1)
    for other in results[1:]:
        assert all(torch.equal(t, other[k]) for k, t in results[0].items() if t is not None)


@needs_numba
def test_pieces_of_a_row_share_what_the_softmax_takes(small_jobs: None) -> None:
    """Every piece of a star's row writes its share, while others read it. A race: on two cores many times in a run."""
    source = torch.arange(2000)
    layer, x = MessagePassing(Graph(), QKSoftmax(8, 1, edge_channels=64)), torch.randn(2000, 8, requires_grad=True)
    index, attr = torch.stack([source, torch.zeros_like(source)]), torch.randn(2000, 64)
    with use_kernels("native"):
        y = layer(x, index, attr)[0]
    expected = None
    try:
        for many in (1, *[8] * 30):
            torch.set_num_threads(many)
            (found,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
            assert expected is None or torch.equal(found, expected)
            expected = found
    finally:
        torch.set_num_threads(1)


@needs_numba
@every
def test_derivatives(name: str, small_jobs: None) -> None:
    """Case 28, forced, on a graph whose first row is cut."""
    make, width = LAYERS[name]
    layer, index = make().double(), torch.stack([torch.arange(60) % 3, torch.arange(60) // 50])
    leaves = [torch.randn(3, 8, dtype=torch.float64, requires_grad=True)]
    leaves += [torch.randn(60, width, dtype=torch.float64, requires_grad=True)] if width else []

    def f(x: Tensor, attr: Tensor | None = None, *_: Tensor) -> Tensor:
        return layer(x, index, attr if width else None)

    with use_kernels("native"):
        inputs = (*leaves, *([] if width else [None]), *layer.parameters())
        assert torch.autograd.gradcheck(f, inputs, fast_mode=True)
        assert torch.autograd.gradgradcheck(f, inputs, fast_mode=True)


@needs_numba
@every
def test_edges_made_inside_a_transform(name: str) -> None:
    make, width = LAYERS[name]
    layer, x, attr = make().double(), torch.randn(6, 8, dtype=torch.float64), torch.randn(6, width).double()

    def f(x: Tensor) -> Tensor:
        index = torch.stack([x.detach()[:, 0].argsort(), torch.arange(6) // 2])
        return layer(x, index, attr if width else None).square().sum()

    with use_kernels("reference"):
        expected = torch.func.grad(f)(x)
    with use_kernels("native"):
        torch.testing.assert_close(torch.func.grad(f)(x), expected)


class Largest(TorchDispatchMode):
    """The most numbers in a tensor that an operation returns."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for t in made if isinstance(made, tuple | list) else (made,):
            if isinstance(t, Tensor) and t.dtype.is_floating_point:
                self.numbers = max(self.numbers, t.untyped_storage().nbytes() // t.element_size())
        return made


@needs_numba
@pytest.mark.parametrize("name", ["attention", "GAT", "GATv2", "TransformerConv"])
def test_no_tensor_over_edges_and_channels(name: str) -> None:
    """None over edges at all, but the features that the caller gave."""
    make, width = LAYERS[name]
    layer, index = make(), torch.randint(0, 20, (2, 4000))
    x, attr = torch.randn(20, 8, requires_grad=True), torch.randn(4000, width) if width else None
    with use_kernels("native"):
        layer(x, index, attr)  # what is derived from the edges is kept
        with Largest() as seen:
            layer(x, index, attr).sum().backward()
    assert seen.numbers <= max(4000 * width, 3000)


@needs_numba
def test_numbers_that_are_not_finite() -> None:
    """A NaN reaches the rows that read it and no other; so does an infinite score."""
    index = torch.tensor([[0, 1, 2, 1, 2], [0, 0, 1, 2, 2]])
    for bad in (float("nan"), float("inf")):
        for dtype in (torch.float32, torch.float64):
            q, k, v = (torch.randn(2, 3, 4, dtype=dtype) for _ in range(3))
            k[0, 2, 0] = bad
            results = [attend(q, k, v, Graph(index, 3), kernel=n) for n in ("native", "reference")]
            torch.testing.assert_close(results[0][1], results[1][1])
            assert torch.equal(results[0].isnan().any(-1), results[1].isnan().any(-1))


@needs_numba
def test_weights_over_the_whole_range_in_float32() -> None:
    """Two sources: the second weighs exp(-s) / (1 + exp(-s)), from 1/2 down to the smallest normal number and to 0."""
    s = torch.linspace(0, 120, 400)
    q, k = torch.ones(1, 400, 1), torch.zeros(1, 401, 1)
    v = torch.ones(1, 401, 1)
    v[0, 400], k[0, :400, 0] = 0, -s  # the last has score 0 and value 0
    index = torch.stack(
        [torch.stack([torch.arange(400), torch.full((400,), 400)], 1).flatten(), torch.arange(800) // 2]
    )
    y = attend(q, k, v, Graph(index, (401, 400)), scale=1.0, kernel="native")[0, :, 0]
    exact = torch.sigmoid(-s.double())
    normal = exact > 2e-38
    torch.testing.assert_close(y[normal].double(), exact[normal], rtol=5e-7, atol=0)
    assert bool((y[exact < 1e-38] == 0).all())


@needs_numba
@pytest.mark.parametrize("width", [1, 3, 4, 8, 16, 20, 32, 96])
def test_every_width_of_heads_and_both_kinds_of_indices(width: int) -> None:
    """Vectors of 32, 16, 8, 4 and 1 numbers; places in 32 and 64 bits."""
    index = hub()
    inputs = [torch.randn(1, 90, 2, w) for w in (width, width, 5)]
    expected = None
    for kind in (torch.int32, torch.int64):
        csr = Csr.of(Edges(*index), 90, 90)
        csr.col = csr.col.to(kind)
        q, k, v = inputs
        rows = Rows(csr, scale=0.3)
        out, _, lse = rows.forward(q, k, None, None, None, None, v)
        torch.testing.assert_close(out, rows.explicit(q, k, None, None, None, None, v)[0])
        assert lse[0, 89].isneginf().all() and (out[0, 89] == 0).all()
        assert expected is None or torch.equal(out, expected)
        expected = out


@needs_numba
def test_another_default_device(small_jobs: None) -> None:
    """What is made around a pass lies where the tokens do."""
    call, leaves = case("attention")
    with use_kernels("native"):
        with torch.device("meta"):
            found = torch.autograd.grad(call().sum(), list(leaves.values()))
        assert all(map(torch.equal, found, torch.autograd.grad(call().sum(), list(leaves.values()))))


class Named(Tensor):
    """A subclass of the plain kind, which has memory."""


@needs_numba
def test_tensors_without_memory_of_their_own() -> None:
    """Wrappers and fakes have a reason in words; subclasses, parameters and what a transform wraps are read."""
    layer, index, x = LAYERS["attention"][0](), hub(), torch.randn(90, 8)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
    why = layer.plan(TwoTensor(x, x), index).reasons["native"]
    assert why == ["tensors without memory of their own, as fakes and wrappers of others, have no address to read at"]
    torch.testing.assert_close(layer(TwoTensor(x, x), index).a, layer(x, index))
    for t in (Named(x), torch.nn.Parameter(x)):
        assert layer.plan(t, index).kernel == "native"
    torch.vmap(lambda x: assert_native(layer.plan(x, index)))(x[None])
    for t in (fake, TwoTensor(x, x), torch._neg_view(x)):
        with pytest.raises(TypeError, match="compiled code reads numbers at addresses"):
            calls.at(x, t)
    assert calls.at(None, x[:0], Named(x)) == (0, x[:0].data_ptr(), x.data_ptr())


def assert_native(plan: Any) -> Tensor:
    assert plan.kernel == "native"
    return torch.ones(())


@needs_numba
def test_copies_of_a_layer_that_has_run() -> None:
    layer = LAYERS["attention"][0]()
    x, index = torch.randn(90, 8), hub()
    with use_kernels("native"):
        y = layer(x, index)
        for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert torch.equal(copied(x, index), y)


@needs_numba
def test_no_place_for_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """numba refuses to cache where nothing can be written; the function is compiled in memory then."""
    import numba

    from mpnn.native import compiled

    def refusing(plain: Any) -> Any:
        def decorator(*kinds: Any, cache: bool = False, **options: Any) -> Any:
            if cache:
                raise RuntimeError("cannot cache function: no locator available")
            return plain(*kinds, **options)

        return decorator

    for name in ("njit", "cfunc"):
        monkeypatch.setattr(numba, name, refusing(getattr(numba, name)))
    assert compiled.compiled(lambda x: x + 1)(2) == 3

    def count(address):  # type: ignore[no-untyped-def]
        compiled.taken(compiled.pointer(address, 0), 1)

    numbers = array("q", [5, 7])
    compiled.entry(count, int).ctypes(numbers.buffer_info()[0])
    assert list(numbers) == [5, 8]


def test_numba_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, mpnn, mpnn.models, mpnn.kernels; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _counted(many: int = 2) -> bool:
    """Whether 100 jobs ran, each once, by at most so many threads."""
    from mpnn.native.compiled import entry, pointer, taken
    from mpnn.native.steps import next_jobs

    def counting(address):  # type: ignore[no-untyped-def]
        block = pointer(address, 0)
        taken(pointer(block[6], 0), 100)  # a thread more
        first, last = next_jobs(address)
        while first < last:
            for job in range(first, last):
                taken(pointer(block[6], 0), job)
            first, last = next_jobs(address)

    seen = array("q", [0] * 101)
    before = torch.get_num_threads
    torch.get_num_threads = lambda: many  # type: ignore[assignment]
    try:
        threads.run(entry(counting, int), 100, 1 << 30, 64, [seen.buffer_info()[0]])
    finally:
        torch.get_num_threads = before
    return list(seen[:100]) == [1] * 100 and 1 <= seen[100] <= many


@needs_numba
def test_jobs_run_once_also_after_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch's threads and by Python's, and by these after a fork."""
    assert _counted()
    assert _counted(7)
    monkeypatch.setattr(threads, "_parallel", lambda: None)
    assert _counted()
    assert _counted(7)
    monkeypatch.undo()
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("this system does not fork")
    context = multiprocessing.get_context("fork")
    child = context.Process(target=lambda: sys.exit(not _counted() or threads._parallel() is not None))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # later Pythons warn of forks beside threads
        child.start()
    child.join(30)
    assert child.exitcode == 0


@pytest.mark.parametrize("where", ["own pass", "start", "wait"])
def test_an_interrupt_waits_for_the_threads(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they read and write is freed by what the interrupt unwinds."""
    monkeypatch.setattr(threads, "_pool", None)
    here, begun, running = threading.current_thread(), threading.Event(), set[int]()
    waits: list[Any] = []

    def function(address: int) -> None:
        if threading.current_thread() is here:
            begun.wait()
            if where == "own pass":
                raise KeyboardInterrupt
            return
        running.add(address)
        begun.set()
        time.sleep(0.2)
        running.remove(address)

    class Pool(ThreadPoolExecutor):
        def submit(self, *given: Any) -> Any:  # type: ignore[override]
            if where == "start" and begun.wait(0 if not waits else None):
                raise KeyboardInterrupt
            waits.append(given)
            return super().submit(*given)

    def interrupted(futures: Any) -> None:
        if where == "wait" and len(waits) < 5:
            waits.append(futures)
            raise KeyboardInterrupt
        wait(futures)

    monkeypatch.setattr(threads, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(threads, "wait", interrupted, raising=False)
    with pytest.raises(KeyboardInterrupt):
        threads._python_threads(function, 1, 3)
    assert not running


def test_no_library_is_opened_before_a_second_thread_is_needed() -> None:
    code = "import ctypes, torch; ctypes.CDLL = None; import mpnn.native.threads"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@needs_numba
def test_passes_from_several_threads_at_once(small_jobs: None) -> None:
    """Each thread of Python's is the master of threads of its own."""
    call, leaves = case("GAT", torch.float32)
    torch.set_num_threads(2)
    try:
        with use_kernels("native"):
            expected = run(call, leaves)["output"]

            def same(_: int) -> bool:
                with use_kernels("native"):
                    return torch.equal(call(), expected)

            with ThreadPoolExecutor(4) as pool:
                assert all(pool.map(same, range(40)))
    finally:
        torch.set_num_threads(1)
