"""The harness of the benchmarks: its rounds, its gate, its files. No test depends on how fast anything is."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import graphs, memory, plots, report, results, roofs, run, steps, tensors, timing, words
from benchmarks import measure as measuring
from benchmarks.case import FORWARD, TRAIN, Case, Entry, LeftOut, Side, Work
from benchmarks.cases import dispatch, entries, w03_spmm, w05a_attend, w06_attention, w08_grid_attention
from benchmarks.equality import compare, upstream


class Clock:
    """A clock that only work moves, and others who disturb the rounds that they are told to."""

    known, tick = True, 0.01

    def __init__(self, disturbed: Callable[[int], bool] = lambda n: False) -> None:
        self.now, self.round, self.disturbed = 0.0, -1, disturbed

    def perf_counter(self) -> float:
        return self.now

    def work(self, seconds: float) -> Callable[[], None]:
        def call() -> None:
            self.now += seconds

        return call

    def read(self) -> tuple[float, float, float]:
        return self.now, 0.0, 0.0

    def share(self, before: tuple, after: tuple) -> float:
        self.round += 1
        return 0.5 + self.round / 1000 if self.disturbed(self.round) else 0.0

    def allowed(self, seconds: float, share: float) -> float:
        return share


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=made.perf_counter))
    return made


# Rounds


def test_ratios_are_those_of_the_work(clock: Clock) -> None:
    calls = {"ours": clock.work(0.002), "slower": clock.work(0.006), "faster": clock.work(0.001)}
    found = timing.interleave(calls, 5, others=clock)
    assert [len(s) for s in found.seconds.values()] == [5, 5, 5]
    assert found.ratio("slower", "ours").median == pytest.approx(3.0)
    assert found.ratio("faster", "ours").median == pytest.approx(0.5)
    assert found.above("ours", "faster").median == pytest.approx(0.001)
    assert found.best(["slower", "faster"]) == "faster"
    assert (found.discarded, found.disturbed) == (0, 0)


def test_each_side_runs_long_enough_in_a_round(clock: Clock) -> None:
    found = timing.interleave({"a": clock.work(1e-4), "b": clock.work(0.05)}, 3, others=clock)
    assert found.repetitions["a"] * 1e-4 >= 0.99 * timing.SPAN / 2
    assert found.repetitions["b"] * 0.05 >= 0.99 * timing.SPAN / 2
    for name in ("a", "b"):
        assert timing.LEAST <= timing.SPAN / 2 and found.repetitions[name] >= 1


def test_disturbed_rounds_are_repeated(clock: Clock) -> None:
    clock.disturbed = lambda n: n in (0, 2)
    found = timing.interleave({"a": clock.work(0.01)}, 4, others=clock)
    assert (len(found.seconds["a"]), found.discarded, found.disturbed) == (4, 2, 0)


def test_tries_are_bounded_and_the_rest_is_told(clock: Clock) -> None:
    clock.disturbed = lambda n: n != 5
    found = timing.interleave({"a": clock.work(0.01)}, 4, others=clock)
    assert clock.round + 1 == timing.TRIES * 4
    assert found.disturbed == 2, "three rounds at least: one quiet, two of the disturbed ones"
    assert found.discarded == timing.TRIES * 4 - 3


def test_slow_calls_get_three_rounds(clock: Clock) -> None:
    found = timing.interleave({"a": clock.work(5.0)}, 9, budget=4.0, others=clock)
    assert len(found.seconds["a"]) == 3


def test_the_order_turns(clock: Clock) -> None:
    order: list[str] = []
    calls = {name: (lambda n=name: (order.append(n), clock.work(1.0)())[0]) for name in ("a", "b")}
    timing.interleave(calls, 2, others=clock)
    assert order[-4:] == ["a", "b", "b", "a"]


def test_a_spread_is_median_and_quartiles() -> None:
    assert timing.Spread.of([5.0, 1.0, 2.0, 3.0, 4.0]) == timing.Spread(3.0, 2.0, 4.0)
    assert timing.Spread.of([7.0]) == timing.Spread(7.0, 7.0, 7.0)


def test_others_are_counted_in_cores() -> None:
    from benchmarks.machine import Others

    others = Others()
    if not others.known:
        pytest.skip("needs /proc/stat")
    assert others.share((0.0, 10.0, 1.0), (2.0, 14.0, 4.0)) == pytest.approx(0.5)  # 4 s in all, 3 ours, over 2 s
    assert others.share((0.0, 0.0, 0.0), (1.0, 1.0, 1.5)) == 0.0
    assert others.allowed(10.0, 0.05) == 0.05
    assert others.allowed(0.1, 0.05) == pytest.approx(2 * others.tick / 0.1)


# The gate


def case(ours: Callable[[Tensor], Tensor], theirs: Callable[[Tensor], Tensor], **given: Any) -> Case:
    x = tensors.normal(4, 3)
    sides = [Side(name, lambda f=f: f(x), {"x": x}) for name, f in (("mpnn", ours), ("peer", theirs))]
    return Case(sides[0], sides[1:], Work(flops=100.0), Work(flops=300.0), "linear", **given)


def shifted_gradient(x: Tensor) -> Tensor:
    """The values of 2 x with another gradient."""
    return 2 * x + (x - x.detach()) * 0.01


def test_the_gate_is_green_for_the_same_function() -> None:
    gate = compare(case(lambda x: 2 * x, lambda x: x + x))
    assert gate.green and gate.worst == 0.0 and gate.words() == ""
    assert set(gate.errors["peer"]) == {"values", "gradients of x"}
    assert set(gate.first["mpnn"]) == {FORWARD, TRAIN}


@pytest.mark.parametrize(
    ("theirs", "what"),
    [
        (lambda x: 2.001 * x, "values"),
        (shifted_gradient, "gradients of x"),
        (lambda x: 2 * x * torch.tensor(float("nan")), "values"),
        (lambda x: (2 * x)[:, :2], "values"),
    ],
    ids=["value", "gradient", "nan", "shape"],
)
def test_the_gate_turns_red(theirs: Callable[[Tensor], Tensor], what: str) -> None:
    gate = compare(case(lambda x: 2 * x, theirs))
    assert not gate.green
    assert f"peer: {what} differ" in gate.words()


def test_a_red_gate_prints_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "interleave", lambda *a, **k: pytest.fail("timed behind a red gate"))
    entry = Entry("W0/red", "a wrong layer", lambda: case(lambda x: 2 * x, lambda x: 3 * x), {"N": 4})
    made = measuring.record(entry, None, None, measuring.Settings(threads=1))
    assert made["modes"] == {} and not made["gate"]["green"]
    assert "RED" in words.lines(made)[0] and " ms" not in words.lines(made)[0]
    assert [e["key"] for e in results.red([made])] == ["W0/red"]


def test_layouts_are_compared_in_common() -> None:
    x = tensors.normal(2, 3, 4)
    moved = tensors.leaf(x.transpose(1, 2))
    weight = torch.arange(4.0)
    sides = [
        Side("mpnn", lambda: x * weight, {"x": x}),
        Side(
            "peer",
            lambda: moved * weight[:, None],
            {"x": moved},
            lambda y: y.transpose(1, 2),
            {"x": lambda g: g.transpose(1, 2)},
        ),
    ]
    assert compare(Case(sides[0], sides[1:], Work(), Work(), "linear")).green
    y = sides[1].forward().detach()
    assert torch.equal(upstream(sides[1], y).transpose(1, 2), upstream(sides[0], x.detach()))


def test_packed_leaves_are_split() -> None:
    a, b = tensors.normal(3), tensors.normal(3, seed=2)
    both = tensors.leaf(torch.cat([a, b]))
    sides = [
        Side("mpnn", lambda: a * b, {"a": a, "b": b}),
        Side(
            "peer",
            lambda: both[:3] * both[3:],
            {"both": both},
            views={"both": lambda g: dict(zip("ab", g.chunk(2), strict=True))},
        ),
    ]
    assert compare(Case(sides[0], sides[1:], Work(), Work(), "linear")).green
    sides[1] = dataclasses.replace(sides[1], views={})
    with pytest.raises(ValueError, match="expected peer to give"):
        compare(Case(sides[0], sides[1:], Work(), Work(), "linear"))


def test_a_gradient_of_rounding_alone_does_not_count() -> None:
    x, shift = tensors.normal(4, 5), tensors.normal(1, seed=3)
    sides = [
        Side("mpnn", lambda: torch.softmax(x + shift, -1), {"x": x, "shift": shift}),
        Side("peer", lambda: torch.softmax(shift + x * 1.0, -1) + 0.0, {"x": x, "shift": shift}),
    ]
    assert compare(Case(sides[0], sides[1:], Work(), Work(), "linear")).green


# Every case that is small enough for a test: its sides agree


@pytest.mark.parametrize("name", list(dispatch.MAKERS))
def test_the_bare_calls_are_the_layer(name: str) -> None:
    gate = compare(dispatch.make(name))
    assert gate.green, gate.words()


SMALL: dict[str, Callable[[], Case]] = {
    "W3": lambda: w03_spmm.make(graphs.Sample("small", graphs.uniform(40, 160), 40), 8),
    "W5a": lambda: w05a_attend.make(graphs.Sample("small", graphs.star(40, 160, cluster=10), 40)),
    "W5a small graphs": lambda: w05a_attend.make(graphs.Sample("G6", *graphs.complete(5))),
    "W6": lambda: w06_attention.make(48, False),
    "W9": lambda: w06_attention.make(48, True),
    "W8": lambda: w08_grid_attention.make(2, 2, 9),
}


@pytest.mark.parametrize("name", list(SMALL))
def test_small_cases_are_green(name: str) -> None:
    gate = compare(SMALL[name]())
    assert gate.green, gate.words()


KEYS = [
    "W1/128x784x256", "W4/G1", "W5b/TransformerConv-G1", "W5b/GATConv-G1", "W5b/GATv2Conv-G1", "W7/causal-256-1024",
    "W13/gcn-G1",
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_listed_cases_are_green(key: str) -> None:
    gate = compare({e.key: e for e in entries()}[key].make())
    assert gate.green, gate.words()


def test_entries_are_well_formed() -> None:
    found = entries()
    assert len({e.key for e in found}) == len(found)
    assert {e.scope for e in found} == {"smoke", "bench", "scale"}
    for entry in found:
        assert entry.title and all(n > 0 for n in entry.size.values())
        for (mode, against), floor in entry.floors.items():
            assert mode in (FORWARD, TRAIN) and against in ("customary", "best", "overhead", "memory") and floor > 0
        if entry.series is not None:
            assert entry.series[1] in entry.size
    counts: dict[str, int] = {}
    for entry in found:
        if entry.series is not None:
            counts[entry.series[0]] = counts.get(entry.series[0], 0) + 1
    assert counts and min(counts.values()) >= 5, "an exponent is fitted over five sizes at least"


# Graphs


@pytest.mark.parametrize(
    ("index", "nodes"),
    [
        (graphs.uniform(50, 300), 50),
        (graphs.power_law(50, 300), 50),
        (graphs.star(60, 300, cluster=10), 60),
        graphs.molecules(5),
        graphs.complete(5),
    ],
    ids=["uniform", "power law", "star", "molecules", "complete"],
)
def test_graphs_are_sorted_and_without_loops(index: Tensor, nodes: int) -> None:
    source, target = index
    assert index.min() >= 0 and index.max() < nodes
    assert (source != target).all()
    key = source * nodes + target
    assert (key[1:] >= key[:-1]).all()


def test_graphs_repeat_and_have_their_shape() -> None:
    assert torch.equal(graphs.power_law(500, 5000), graphs.power_law(500, 5000))
    hubs = torch.bincount(graphs.power_law(500, 5000)[1]).sort(descending=True).values
    assert hubs[0] > 10 * hubs[250]
    index, nodes = graphs.complete(5)
    sizes = torch.bincount(index[1]) + 1  # of each node's graph
    assert (
        nodes == graphs.molecules(5)[1]
        and int((1 / sizes).sum().round()) == 5
        and len(index.unique(dim=1)[0]) == int((sizes - 1).sum())
    )
    hub = graphs.star(100, 400, cluster=10)
    assert int((hub[0] == 0).sum()) >= 99 and int((hub[1] == 0).sum()) >= 99
    assert graphs.star(100, 400, cluster=10).shape == (2, 400)


# Memory


def test_the_size_of_tensors_counts_each_storage_once() -> None:
    x = torch.zeros(1000)
    assert memory.size([x, x[:10], x.view(10, 100)]) == 4000
    assert memory.size([]) == 0


def test_the_peak_is_that_of_the_pages() -> None:
    if not memory.supported():
        pytest.skip("needs /proc/self/clear_refs, of Linux")
    code = """if True:
        import torch
        from benchmarks import memory
        memory.exact_allocator()
        torch.set_num_threads(1)
        def call():
            a = torch.ones(8 << 20)
            b = torch.ones(4 << 20) * 2
            del a
            return b
        call()
        grown, _ = memory.peak_of(call)
        print(grown / 2**20)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(64, abs=2), "32 MiB of a, 16 of the ones, 16 of b"


# Roofs


def test_the_roof_is_the_longer_of_computing_and_reading() -> None:
    made = roofs.Roofs(100.0, 10.0, {64: 50.0, 1024: 5.0})
    assert made.seconds(Work(flops=200.0)) == 2.0
    assert made.seconds(Work(flops=200.0, streamed=40.0)) == 4.0
    assert made.seconds(Work(gathers=((100.0, 32.0), (100.0, 4096.0)))) == 2.0 + 20.0
    assert Work(1.0, 2.0, ((3.0, 4.0),)).times(2) + Work(1.0) == Work(3.0, 4.0, ((6.0, 4.0),))


# Training steps


def test_a_step_trains_the_parameters_that_are_compared() -> None:
    model = torch.nn.Linear(3, 5)
    x, labels = torch.ones(4, 3), torch.tensor([0, 1, 2, 3])
    made = steps.side("mpnn", dict(model.named_parameters()), lambda: model(x), labels)
    before = model.weight.detach().clone()
    assert made.step is not None
    made.step()
    assert model.weight.grad is not None and not torch.equal(model.weight, before)
    with pytest.raises(ValueError, match="expected numbers for"):
        steps.copied(model, {"weight": torch.zeros(5, 3)})


# Files and words


def entry_of(key: str = "W0/ok", **given: Any) -> Entry:
    floors = {(FORWARD, "customary"): 1e-9, (TRAIN, "best"): 1e9}
    return Entry(key, "a layer", lambda: case(lambda x: 2 * x, lambda x: x + x), {"N": 4}, floors, "smoke", **given)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run of a few cases writes: one in order, one red, one left out, and a series; rounds have no length."""

    def left_out() -> Case:
        raise LeftOut("too large here")

    red = Entry("W0/red", "a wrong layer", lambda: case(lambda x: 2 * x, lambda x: 3 * x), {"N": 4}, scope="smoke")
    left = Entry("W0/left", "a large layer", left_out, {"N": 4}, scope="smoke")
    series = [
        dataclasses.replace(entry_of(f"series/W0-N/{n}"), size={"N": n}, series=("W0-N", "N"), floors={})
        for n in (1, 2, 4, 8, 16)
    ]
    path = tmp_path_factory.mktemp("run") / "r.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "LEAST", 1e-5)
        patch.setattr(timing, "SPAN", 1e-5)
        patch.setattr(run, "calibrate", lambda **k: roofs.Roofs(1e9, 1e9, {1024: 1e9}))
        patch.setattr(run.cases, "entries", lambda: [entry_of(), red, left, *series])
        assert run.main(["--smoke", "--rounds", "1", "--threads", "1", "--out", str(path)]) == 1
    return results.read(path)


def test_a_result_file_holds_the_run(result: dict[str, Any]) -> None:
    assert result["command"].startswith("python -m benchmarks.run --smoke")
    assert result["about"]["threads"] == 1 and "torch" in result["about"]["versions"]
    keys = [e["key"] for e in result["entries"]]
    assert keys[:3] == ["W0/ok", "W0/red", "W0/left"] and len(keys) == 8
    ok, red, left = result["entries"][:3]
    assert ok["kernel"] == "linear" and set(ok["modes"]) == {FORWARD, TRAIN}
    assert ok["modes"][FORWARD]["customary"]["peer"] == "peer" and ok["modes"][FORWARD]["roof_fraction"] > 0
    assert red["modes"] == {} and left["left_out"] == "too large here"
    assert [(e["key"], mode, name) for e, mode, name in results.missed(result["entries"])] == [("W0/ok", TRAIN, "best")]
    assert {e["series"] for e in result["exponents"]} == {"W0-N"}


def test_a_result_goes_through_json(result: dict[str, Any], tmp_path: Any) -> None:
    results.write(tmp_path / "again.json", result)
    assert results.read(tmp_path / "again.json") == result
    results.write(
        tmp_path / "odd.json", {"entries": [], "nan": math.nan, "inf": math.inf, "third": 1 / 3, "tuple": (1, 2)}
    )
    assert results.read(tmp_path / "odd.json") == {
        "entries": [],
        "nan": "nan",
        "inf": "inf",
        "third": 0.333333,
        "tuple": [1, 2],
    }
    (tmp_path / "other.json").write_text(json.dumps([1]))
    with pytest.raises(ValueError, match="expected a result file"):
        results.read(tmp_path / "other.json")
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def test_the_page_and_its_pictures(result: dict[str, Any], tmp_path: Any) -> None:
    drawn = plots.draw(result, tmp_path, "r")
    assert [name for name, _ in drawn] == ["r-ratios.png", "r-time.png"]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name, _ in drawn)
    made = report.page(result, drawn)
    for part in ("W0/ok: a layer", "Floors missed", "Red gates", "too large here", "results/r-ratios.png", "| W0-N |"):
        assert part in made
    text = report.between_marks(f"before {report.BEGIN} old {report.END} after", made)
    assert text.startswith("before ") and text.endswith(" after") and " old " not in text and made in text
    with pytest.raises(ValueError, match="to hold the marks"):
        report.between_marks("no marks", made)
    assert report.BEGIN in report.README.read_text(encoding="utf-8")


def test_an_exponent_is_a_slope() -> None:
    assert results.slope([(n, 5 * n**1.5) for n in (10, 20, 40, 80, 160)]) == pytest.approx(1.5)
    assert results.slope([(1, 1.0), (2, 0.0)]) is None


def test_floors_and_ceilings() -> None:
    assert measuring.met("customary", 2.0, 1.9) and not measuring.met("best", 0.9, 0.95)
    assert measuring.met("overhead", 10e-6, 12e-6) and not measuring.met("memory", 21.0, 20.0)
    judged = {
        "overhead": {"floor": 12e-6, "value": 20e-6, "met": False},
        "best": {"floor": 1.0, "value": 0.4, "met": False},
    }
    made = [{"key": "k", "modes": {FORWARD: {"floors": judged}}}]
    assert [name for _, _, name in results.missed(made)] == ["overhead", "best"]
    assert [name for _, _, name in results.missed(made, slack=2.0)] == ["best"]


def test_the_command_line_selects(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert {e.scope for e in run.select(run.arguments(["--smoke"]))} == {"smoke"}
    assert {e.scope for e in run.select(run.arguments([]))} == {"smoke", "bench"}
    only = [e.key for e in run.select(run.arguments(["--only", "W1,W3/G2"]))]
    assert only == ["W1/128x784x256", "W1/4096x512x512", "W1/8192x1024x1024", "W3/G2-d64", "W3/G2-d128"]
    with pytest.raises(SystemExit, match="'W99'; there are"):
        run.select(run.arguments(["--only", "W99"]))
    assert run.main(["--list", "--only", "W6"]) == 0
    assert "W6/8192" in capsys.readouterr().out


def test_units() -> None:
    assert [words.seconds(s) for s in (2.0, 0.0123, 4.5e-6)] == ["2 s", "12.3 ms", "4.5 µs"]
    assert [words.size(s) for s in (2**31, 3 * 2**20, 512)] == ["2 GiB", "3 MiB", "0.5 KiB"]


def test_a_smoke_gate_judges_quiet_rounds_only() -> None:
    judged = {"floors": {"best": {"floor": 1.0, "value": 0.1, "met": False}}, "disturbed": 1}
    made = [{"key": "k", "modes": {FORWARD: judged}}]
    assert len(results.missed(made, 2.0)) == 1 and results.missed(made, 2.0, quiet=True) == []
    judged["disturbed"] = 0
    assert len(results.missed(made, 2.0, quiet=True)) == 1


def test_a_run_means_to_end_in_time() -> None:
    careful = measuring.Settings()
    assert run.pace(660.0, 100, careful, "bench").budget == pytest.approx((6.6 - run.AROUND) / 2)
    assert (
        run.pace(660.0, 10, careful, "bench").budget == 4.0
        and run.pace(float("inf"), 10, careful, "bench").budget == 20.0
    )
    assert run.pace(250.0, 100, careful, "bench").budget == 0.5 and not run.pace(250.0, 100, careful, "bench").hurried
    assert not run.pace(-5.0, 100, careful, "smoke").hurried
    for left in (190.0, -5.0):
        hurried = run.pace(left, 100, careful, "bench")
        assert hurried.hurried and (hurried.rounds, hurried.compiled) == (1, False) and hurried.limit == 0.2


def test_a_hurried_case_has_one_round_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "LEAST", 1e-5)
    monkeypatch.setattr(timing, "SPAN", 1e-5)
    made = measuring.record(entry_of(), None, None, measuring.Settings(threads=1).hurry())
    assert made["hurried"] and made["modes"][FORWARD]["rounds"] == 1
    assert all("HURRIED" in line for line in words.lines(made))
    assert "hurried" in report.row(made, FORWARD)
    assert {"making", "gate", "rounds"} == set(made["spent"]) and min(made["spent"].values()) >= 0


def test_every_workload_is_in_the_default_run() -> None:
    here = run.select(run.arguments([]))
    assert {e.workload for e in here} == {e.workload for e in entries()} - {"W14"}
    counts = [e.series[0] for e in here if e.series is not None]
    assert counts and all(counts.count(name) == 5 for name in counts)


def slow(clock: Clock, seconds: float, **given: Any) -> tuple[Side, Callable[[], None]]:
    side = Side("peer", lambda: torch.zeros(1), {})
    return dataclasses.replace(side, **given), clock.work(seconds)


def test_a_slow_peer_has_one_call(clock: Clock) -> None:
    careful = measuring.Settings(limit=0.5)
    side, call = slow(clock, 0.7)
    assert measuring._slow(side, 0.4, call, careful) is None and clock.now == 0
    assert measuring._slow(side, 1.0, call, careful) == pytest.approx(0.7), "the first call was cold"
    assert measuring._slow(side, 3.0, call, careful) == 3.0, "no second call"
    side, call = slow(clock, 0.3)
    assert measuring._slow(side, 1.0, call, careful) is None, "only the first call was slow"
    side, call = slow(clock, 4.0, step=lambda: None)
    assert measuring._slow(side, 3.0, call, careful) == pytest.approx(4.0), "a step is more than its gradients"
    side, call = slow(clock, 4.0, name="mpnn")
    assert measuring._slow(side, 5.0, call, careful) is None, "ours has rounds"


def test_a_round_of_a_series_is_half_as_long(clock: Clock) -> None:
    found = timing.interleave({"a": clock.work(0.01)}, 3, span=0.5, others=clock)
    assert found.repetitions["a"] * 0.01 == pytest.approx(timing.SPAN / 2)


def test_repetitions_do_not_follow_a_first_call_that_made_something(clock: Clock) -> None:
    first = [0.5]
    call = lambda: clock.work(first.pop() if first else 1e-3)()  # noqa: E731
    assert timing.repetitions(call, 0.2) * 1e-3 >= 0.19


def test_a_step_is_timed_alone() -> None:
    side = Side("mpnn", lambda: torch.zeros(1), {})
    assert measuring.modes(side) == (FORWARD, TRAIN)
    assert measuring.modes(dataclasses.replace(side, trains=False)) == (FORWARD,)
    assert measuring.modes(dataclasses.replace(side, step=lambda: None)) == (TRAIN,)


def test_compiled_peers_and_those_of_a_series_may_be_left_out() -> None:
    def with_two() -> Case:
        made = case(lambda x: 2 * x, lambda x: x + x)
        made.peers = [*made.peers, dataclasses.replace(made.peers[0], name="compiled", compiled=True)]
        return made

    def peers_of(settings: measuring.Settings, **given: Any) -> set[str]:
        entry = Entry("W0/two", "a layer", with_two, {"N": 4}, **given)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(timing, "LEAST", 1e-5)
            patch.setattr(timing, "SPAN", 1e-5)
            return set(measuring.record(entry, None, None, settings)["modes"][FORWARD]["seconds"]) - {"mpnn"}

    one = measuring.Settings(rounds=1, threads=1)
    assert peers_of(one) == {"peer", "compiled"}
    assert peers_of(dataclasses.replace(one, compiled=False)) == {"peer"}
    assert peers_of(one, series=("W0-N", "N")) == {"peer"}
