"""Rules written as text, `Window(2) | Global(1)`, read without running any code but the named constructors."""

from __future__ import annotations

import ast
import difflib
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mpnn.data import UsageError
from mpnn.data.errors import one_of

LONGEST = 300  # letters of one expression: nobody writes more, and the reader recurses
OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.Sub: operator.sub,
    ast.Add: operator.add,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
SIGNS = "|, &, -, +, *, //"


def split(text: str | Sequence[str], what: str) -> list[str]:
    """The expressions of a list: cut at the commas outside of brackets, each in Python's own spelling.

    Raises:
        UsageError: a text that cannot be read, or none at all.

    >>> split("Window( 2,right=0 ),AllTokens()", "neighbours")
    ['Window(2, right=0)', 'AllTokens()']
    """
    found: list[str] = []
    for part in [text] if isinstance(text, str) else text:
        try:
            node = _parsed(str(part), what)
            found += [ast.unparse(one) for one in (node.elts if isinstance(node, ast.Tuple) else [node])]
        except RecursionError as error:
            raise UsageError(f"{what}: cannot read {str(part)[:40]!r}…: it is nested too deep") from error
    if not found:
        raise UsageError(f"{what}: expected at least one, got none")
    if (longest := max(map(len, found))) > LONGEST:
        raise UsageError(f"{what}: expected at most {LONGEST} letters an expression, got {longest}")
    return list(dict.fromkeys(found))


def check(text: str, known: Mapping[str, Any], what: str) -> None:
    """Refuse an expression that is no call of known names, before anything is made of it.

    Args:
        known: what each name stands for; of what can be called, the signature tells the options.

    Raises:
        UsageError: other syntax, an unknown name or option, with the nearest known one.

    >>> check("Window(lefft=2)", {"Window": lambda left, right=None: None}, "neighbours")
    Traceback (most recent call last):
    mpnn.data.errors.UsageError: neighbours: Window has no option 'lefft'; did you mean left? Known: left, right
    """
    for node in _walk(_parsed(text, what), text, what):
        if isinstance(node, ast.Name):
            one_of(node.id, known, f"name in {what}")
        elif isinstance(node, ast.Call):
            assert isinstance(node.func, ast.Name)
            one_of(node.func.id, known, f"name in {what}")
            _options(node, node.func.id, known[node.func.id], what)


def evaluate(text: str, values: Mapping[str, Any]) -> Any:
    """What an expression stands for, with `values` for its names; a name alone is called.

    Raises:
        TypeError, ValueError: of the constructors that are called.

    >>> evaluate("2 * channels", {"channels": 16})
    32
    """
    value = _value(_parsed(text, "expression"), values)
    return value() if inspect.isroutine(value) or inspect.isclass(value) else value


def _value(node: ast.AST, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return values[name]
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return tuple(_value(part, values) for part in parts)
        case ast.UnaryOp(operand=operand):
            return -_value(operand, values)
        case ast.BinOp(left=left, op=sign, right=right):
            return OPERATORS[type(sign)](_made(left, values), _made(right, values))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=options):
            given = {str(option.arg): _value(option.value, values) for option in options}
            return values[name](*(_value(argument, values) for argument in arguments), **given)
    raise AssertionError(f"{ast.dump(node)} has not been checked")


def _made(node: ast.AST, values: Mapping[str, Any]) -> Any:
    """A side of an operator: a name alone is called, as at the top."""
    value = _value(node, values)
    return value() if inspect.isroutine(value) or inspect.isclass(value) else value


def _parsed(text: str, what: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError) as error:
        raise UsageError(f"{what}: cannot read {text!r}; write it as 'Window(2), AllTokens()'") from error


def _walk(node: ast.AST, text: str, what: str) -> list[ast.AST]:
    """All parts that have a meaning; anything else is refused."""
    match node:
        case ast.Constant(value=int() | float() | str() | bool() | None) | ast.Name():
            return [node]
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            inner: list[ast.AST] = list(parts)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = [operand]
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
            inner = [left, right]
        case ast.Call(func=ast.Name(), args=arguments, keywords=options) if all(option.arg for option in options):
            inner = [*arguments, *(option.value for option in options)]
        case _:
            raise UsageError(
                f"{what}: {ast.unparse(node)!r} in {text!r} is not allowed; an expression has names, numbers, texts, "
                f"tuples, calls and the signs {SIGNS}"
            )
    return [node, *(part for one in inner for part in _walk(one, text, what))]


def _options(node: ast.Call, name: str, value: Any, what: str) -> None:
    if not callable(value):
        raise UsageError(f"{what}: {name} is {value!r}, which cannot be called; write it without brackets")
    known = [p for p in inspect.signature(value).parameters if p != "self"]
    for option in node.keywords:
        if option.arg not in known:
            near = difflib.get_close_matches(str(option.arg), known, n=1)
            guess = f"; did you mean {near[0]}?" if near else ";"
            raise UsageError(f"{what}: {name} has no option {option.arg!r}{guess} Known: {', '.join(known)}")
