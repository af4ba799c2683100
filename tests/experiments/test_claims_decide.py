"""The verdict on made-up records: each word can be reached, and the intervals are those of scipy."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from mpnn.experiments.claims import CLAIMS
from mpnn.experiments.claims.decide import Check, Interval, decide, extent, t_interval


def interval(low, high):
    return Interval((low + high) / 2, low, high, 5, "made up")


@pytest.mark.parametrize(
    ("low", "high", "side", "holds"),
    [
        (0.6, 0.8, "above", True),
        (0.4, 0.6, "above", None),
        (0.3, 0.4, "above", False),
        (0.3, 0.4, "below", True),
        (0.4, 0.6, "below", None),
        (0.6, 0.8, "below", False),
        (0.5, 0.8, "above", None),  # an end on the bound is not beyond it
        (0.5, 0.5, "above", False),
        (0.5, 0.5, "below", False),
        (-math.inf, math.inf, "above", None),
        (math.nan, math.nan, "below", None),
    ],
)
def test_a_check_asks_for_the_whole_interval(low, high, side, holds):
    assert Check("a", interval(low, high), side, 0.5).holds is holds


def test_the_verdict_is_the_weakest_check():
    yes, no, open_ = (Check("a", interval(*ends), "above", 0.5) for ends in ((0.6, 0.7), (0.1, 0.2), (0.4, 0.6)))
    assert decide([yes, yes]).word == "holds"
    assert decide([yes, open_]).word == "undecided"
    assert decide([yes, open_, no]).word == "does not hold"
    assert decide([]).word == "undecided"


def test_a_side_is_above_or_below():
    with pytest.raises(ValueError, match="side: expected above or below, got 'over'"):
        Check("a", interval(0, 1), "over", 0.5)


def test_t_interval_is_that_of_scipy():
    values = [0.91, 0.94, 0.90, 0.97]
    theirs = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    ours = t_interval(values)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    assert ours.mean == pytest.approx(0.93) and ours.n == 4


def test_one_seed_decides_nothing_and_equal_ones_are_a_point():
    one = t_interval([0.9])
    assert (one.low, one.high) == (-math.inf, math.inf)
    assert decide([Check("a", one, "above", 0.5)]).word == "undecided"
    same = t_interval([1.0, 1.0, 1.0])
    assert (same.low, same.mean, same.high) == (1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="at least one value"):
        t_interval([])


def test_the_text_of_a_check_says_everything():
    text = Check("accuracy", interval(0.6, 0.8), "above", 0.5, ".0%").text()
    assert text == "accuracy: 70% [60%, 80%], above 50%: yes"
    assert extent([3.0, 1.0, 2.0]).low == 1.0


def test_an_infinite_end_is_null_in_a_file():
    made = Check("a", t_interval([0.5]), "above", 0.5).as_dict()
    assert made["low"] is None and made["high"] is None and made["mean"] == 0.5 and made["holds"] is None


# Records as each claim makes them, good for the claim; what is changed to make it fail; and what leaves it open.
def permutation(bad):
    subjects = {"attention": 1e-16, "GNN, edges move too": 1e-16} | dict.fromkeys(
        ("attention with codes", "MLP", "CNN", "GNN, edges stay"), 0.5
    )
    values = {"attention": 0.3} if bad else {}
    return [
        {"subject": name, "seed": seed, "error_float64": error, "error_float32": error}
        for seed in range(3)
        for name, error in (subjects | values).items()
    ]


def landmine(bad):
    with_codes = {"good": 0.99, "bad": 0.6, "open": None}[bad]
    made = []
    for seed in range(3):
        for task in ("first equals last", "is it sorted", "which came first"):
            for codes in (False, True):
                value = (0.5 if not codes else with_codes or (0.7, 0.95, 1.0)[seed]) + 0.001 * seed
                made.append({"task": task, "model": "Transformer", "codes": codes, "seed": seed, "accuracy": value})
    return made


def extrapolation(bad):
    after = {"rotary": 0.99, "ALiBi": 0.98, "sinusoidal": 0.5, "learned": 0.2, "none": 0.3}
    after |= {"good": {}, "bad": {"rotary": 0.5}, "open": {"rotary": None}}[bad]
    return [
        {
            "task": "a",
            "code": code,
            "seed": seed,
            "accuracy_1": 1.0,
            "accuracy_8": (0.8, 1.0, 0.9)[seed] if value is None else value - 0.001 * seed,
        }
        for seed in range(3)
        for code, value in after.items()
    ]


def long_range(bad):
    rows = {"attention": (1, 1), "CNN": (4, 31), "dilated CNN": (5, 5), "GNN": (4, 31)}
    made = []
    for seed in range(3):
        for kind, (layers, needed) in rows.items():
            heard = layers >= needed
            value = 0.99 if heard else 0.25
            if kind == "attention":
                value = {"good": 0.99, "bad": 0.5, "open": (0.6, 0.9, 1.0)[seed]}[bad]
            made.append(
                {"kind": kind, "length": 32, "layers": layers, "needed": needed, "heard": heard, "seed": seed}
                | {"accuracy": value + 0.001 * seed}
            )
    return made


def cost(bad):
    slopes = {"written out": (2, 2), "fused": (2, 1), "window of 65": (1, 1), "blocks of 64": (1, 1)}
    slopes |= {"graph of degree 16": {"good": (1, 1), "bad": (2, 1), "open": (None, 1)}[bad]}
    return [
        {"way": way, "length": n, "seed": seed, "fits": True}
        | {"seconds": n ** ((0.8, 1.5, 1.9)[seed] if time is None else time), "bytes": n**memory}
        for seed in range(3)
        for way, (time, memory) in slopes.items()
        for n in (512, 1024, 2048)
    ]


def heads(bad):
    four = {"good": (0.95, 0.96, 0.97), "bad": (0.5, 0.5, 0.5), "open": (0.5, 0.9, 0.7)}[bad]
    return [
        {"heads": count, "seed": seed, "accuracy": value, "least_served": 0.9}
        for seed in range(3)
        for count, value in ((1, 0.5), (4, four[seed]), (8, four[seed] + 0.001 * seed))
    ]


def data_efficiency(bad):
    lead = {"good": (0.2, 0.21, 0.22), "bad": (-0.2, -0.21, -0.22), "open": (-0.2, 0.3, 0.0)}[bad]
    return [
        {"dataset": "mnist1d", "samples": samples, "model": model, "seed": seed, "accuracy": value}
        for seed in range(3)
        for samples, model, value in (
            (100, "cnn", 0.5 + lead[seed]),
            (100, "transformer", 0.5),
            (4000, "cnn", 0.9),
            (4000, "transformer", 0.85),
        )
    ]


def family(bad):
    worst = {"good": (0.3, 0.3, 0.3), "bad": (0.1, 0.1, 0.1), "open": (0.1, 0.3, 0.25)}[bad]
    return [
        {"neighbours": rule, "weight": weight, "seed": seed}
        | {"accuracy": worst[seed] if (rule, weight) == ("a", "c") else 0.7}
        for seed in range(3)
        for rule in "ab"
        for weight in "cd"
    ]


def nodes(bad):
    lead = {"good": (0.2, 0.21, 0.22), "bad": (-0.2, -0.21, -0.22), "open": (-0.2, 0.3, 0.0)}[bad]
    cells = ("Graph × SharedKernel (GCN)", "Graph × EdgeLearned (GAT)", "Graph × QKSoftmax (TransformerConv)")
    return [
        {"graph": "made", "cell": cell, "seed": seed, "accuracy": 0.5 + (lead[seed] if cell in cells else 0)}
        for seed in range(3)
        for cell in ("none", *cells, "AllTokens × QKSoftmax")
    ]


def published(bad):
    ours = {"good": 0.0, "bad": -0.2, "open": 0.03}[bad]
    figures = {False: {"logistic": 32, "mlp": 68, "cnn": 94}, True: {"logistic": 32, "mlp": 68, "cnn": 56}}
    made = [
        {"table": "mnist1d", "shuffled": shuffled, "model": model, "seed": seed}
        | {"accuracy": figure / 100 + 0.001 * seed + (ours if model == "cnn" else 0)}
        for seed in range(3)
        for shuffled, row in figures.items()
        for model, figure in row.items()
    ]
    rest = {"MLP": 0.6, "GCN": 0.8, "GAT": 0.8, "graph transformer": 0.8}
    return made + [
        {"table": "superpixels", "model": model, "seed": seed, "accuracy": value}
        for seed in range(3)
        for model, value in rest.items()
    ]


MADE_UP = {
    "published": published,
    "nodes": nodes,
    "landmine": landmine,
    "extrapolation": extrapolation,
    "long-range": long_range,
    "cost": cost,
    "heads": heads,
    "data-efficiency": data_efficiency,
    "family": family,
}


@pytest.mark.parametrize("name", MADE_UP)
@pytest.mark.parametrize(("kind", "word"), [("good", "holds"), ("bad", "does not hold"), ("open", "undecided")])
def test_each_verdict_of_each_claim_can_be_reached(name, kind, word):
    assert decide(CLAIMS[name].checks(MADE_UP[name](kind))).word == word


@pytest.mark.parametrize(("bad", "word"), [(False, "holds"), (True, "does not hold")])
def test_what_is_exact_holds_or_does_not(bad, word):
    assert decide(CLAIMS["permutation"].checks(permutation(bad))).word == word


def test_every_claim_has_made_up_records():
    assert {*MADE_UP, "permutation"} == set(CLAIMS)
