from __future__ import annotations

import pytest

from mpnn.data import UsageError
from mpnn.experiments.expressions import check, evaluate, split
from mpnn.neighbours import AllTokens, Blocks, Global, Window

NAMES = {"Window": Window, "AllTokens": AllTokens, "Global": Global, "Blocks": Blocks, "grid": (8, 8), "tokens": 64}


def test_commas_inside_of_brackets_do_not_cut():
    assert split("Window(2, right=0), Blocks((2, 2), grid=grid),AllTokens", "neighbours") == [
        "Window(2, right=0)", "Blocks((2, 2), grid=grid)", "AllTokens",
    ]  # fmt: skip
    assert split(["Window(2)", "AllTokens(), Window( 2 )"], "neighbours") == ["Window(2)", "AllTokens()"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Window(2)", Window(2)),
        ("Window(2, right=0)", Window(2, 0)),
        ("AllTokens", AllTokens()),
        ("AllTokens(max_tokens=2 * tokens // 4)", AllTokens(max_tokens=32)),
        ("Window(2) | Global(1)", Window(2) | Global(1)),
        ("(Window(4) - Window(1)) & AllTokens", (Window(4) - Window(1)) & AllTokens()),
        ("Blocks((2, 2), grid=grid)", Blocks((2, 2), grid=(8, 8))),
        ("Blocks(4, shift=-1)", Blocks(4, shift=-1)),
    ],
)
def test_an_expression_is_what_python_makes_of_it(text, value):
    check(text, NAMES, "neighbours")
    assert evaluate(text, NAMES) == value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "Window.__class__",
        "Window(2).to('cpu')",
        "(lambda: 1)()",
        "[x for x in (1, 2)]",
        "Window(*grid)",
        "Window(**{'left': 2})",
        "f'{tokens}'",
        "grid[0]",
        "2 ** 9 ** 9",
        "not 1",
        "Window(2) if tokens else AllTokens()",
        "(Window := 3)",
        "b'1'",
        "1j",
        "...",
    ],
)
def test_other_code_is_refused_and_not_run(text):
    with pytest.raises(UsageError, match=r"is not allowed; an expression has names|unknown name in neighbours"):
        check(split(text, "neighbours")[0], NAMES, "neighbours")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Windo(2)", "unknown name in neighbours 'Windo': did you mean 'Window'"),
        ("open('a')", "unknown name in neighbours 'open'"),
        ("Window(lefft=2)", r"Window has no option 'lefft'; did you mean left\? Known: left, right, dilation"),
        ("grid(2)", r"grid is \(8, 8\), which cannot be called"),
        ("Window(2", r"neighbours: cannot read 'Window\(2'; write it as"),
        ("", "neighbours: cannot read ''"),
        ("Window 2", "cannot read"),
        ("(" * 300 + ")" * 300, "cannot read"),
        ("1" + "+1" * 3000, "nested too deep|letters an expression"),
        ("'" + "a" * 400 + "'", "at most 300 letters an expression, got 402"),
        ("\0", "cannot read"),
    ],
)
def test_mistakes_are_told(text, message):
    with pytest.raises(UsageError, match=message):
        check(split(text, "neighbours")[0], NAMES, "neighbours")


def test_an_empty_list_is_a_mistake():
    with pytest.raises(UsageError, match="weight: expected at least one, got none"):
        split([], "weight")
    with pytest.raises(UsageError, match="weight: expected at least one, got none"):
        split("()", "weight")
