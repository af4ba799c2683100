"""The command line: `mpnn COMMAND`, each command a line in `COMMANDS`. Torch is not loaded before a command is."""

from __future__ import annotations

import argparse
import difflib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from mpnn.commands import COMMANDS, Command
from mpnn.data.errors import UsageError, require

MISTAKE, INTERRUPTED = 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 2 for a mistake of the person who typed it, 130 after Ctrl-C."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        require("jsonargparse", purpose="the command line")
        parser = _parser(arguments)
        if not arguments:
            parser.print_help(sys.stderr)
            return MISTAKE
        parsed = parser.parse_args(arguments)
        command = COMMANDS[parsed.subcommand]
        options = {name: value for name, value in vars(parsed[parsed.subcommand]).items() if name != "config"}
        _set_threads()
        _set_workers(options)
        _call(command, options)
    except UsageError as mistake:
        print(f"error: {mistake}", file=sys.stderr)
        return MISTAKE
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return INTERRUPTED
    return 0


def _call(command: Command, options: dict[str, Any]) -> None:
    for library in command.needs:  # now, not after minutes of training
        require(library, purpose=command.says)
    show = _load(command.show) if command.show else _ignore
    try:
        function = _load(command.function)
        words = [options.pop(name) for name in _words(function)]
        result = function(*words, **options)
    except KeyboardInterrupt as stop:
        # What an experiment had finished by then comes along.
        if hasattr(stop, "result"):
            show(stop.result)
            print("What is finished is kept; the same command goes on from there.", file=sys.stderr)
        raise
    show(result)


def _ignore(result: Any) -> None:
    pass


def _words(function: Callable[..., Any]) -> list[str]:
    """The parameters that are given by their place alone."""
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.POSITIONAL_ONLY]


def _load(target: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def _set_threads() -> None:
    """One thread, unless OMP_NUM_THREADS says otherwise.

    Small models gain little from more, and lose a lot where another program wants the cores: a thread that waits for
    the others spins, and one that is kept waiting keeps them all (seen: 20 times slower on two shared cores).
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def _set_workers(options: dict[str, Any]) -> None:
    """A worker for each core, unless the option says otherwise, there is little to do, or the parts have to be alone.

    From Python it is one: a program without `if __name__ == "__main__":` would be run again by each process it starts.
    """
    if "workers" in options and options["workers"] is None and not options.get("quick"):
        from mpnn.experiments.about import cores
        from mpnn.experiments.claims.listed import CLAIMS

        claim = CLAIMS.get(str(options.get("claim")))
        options["workers"] = None if claim is None or claim.alone else cores()


def _parser(arguments: Sequence[str]) -> Any:
    import jsonargparse

    class Formatter(argparse.RawDescriptionHelpFormatter, jsonargparse.DefaultHelpFormatter):
        """Our own words only: no types in Python's spelling."""

        def _get_help_string(self, action: argparse.Action) -> str:
            return action.help or ""

    class Parser(jsonargparse.ArgumentParser):
        def error(self, message: str, ex: Exception | None = None) -> Any:
            parser = getattr(ex, "subcommand_parser", None) or self
            self.exit(MISTAKE, f"error: {_nearest(parser, message)}\nFor the options: {parser.prog} --help\n")

    from mpnn import __version__

    parser = Parser(
        prog="mpnn",
        version=__version__,
        formatter_class=Formatter,
        description="MLPs, CNNs, GNNs and Transformers as one message-passing layer.",
        epilog="examples:\n  mpnn compare --steps 200 --seeds 1     a table and a page after a minute or two\n"
        "  mpnn compare --help                    the options of a command, with examples",
    )
    commands = parser.add_subcommands(title="commands", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        examples = f"examples:\n{command.examples}" if command.examples else None
        options = Parser(
            formatter_class=Formatter, description=f"{command.says[0].upper()}{command.says[1:]}.", epilog=examples
        )
        # Only the command that is called is imported, so that one that lacks a library leaves the others alone.
        if name in arguments:
            _add_options(options, _load(command.function))
        commands.add_subcommand(name, options, help=command.says)
        options.prog = f"mpnn {name}"
    return parser


def _add_options(parser: Any, function: Callable[..., Any]) -> None:
    """An option for each parameter of a function; `Annotated[type, "what it is"]` brings the help."""
    parser.add_argument("--config", action="config", metavar="FILE.yaml", help="read the options from a file")
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        kind, says = get_args(hints[name])[:2] if get_origin(hints[name]) is Annotated else (hints[name], "")
        option = f"--{name.replace('_', '-')}"
        default = parameter.default
        if name in _words(function):
            parser.add_argument(name, nargs="?", default=default, metavar="NAME", help=says)
            continue
        if kind is bool:
            action = "store_false" if default else "store_true"
            parser.add_argument(option if not default else f"--no-{option[2:]}", dest=name, action=action, help=says)
            continue
        shown = "" if default is None else f" (default: {','.join(default) if isinstance(default, tuple) else default})"
        whole = int in (kind, *get_args(kind))
        several = isinstance(default, tuple)
        parser.add_argument(
            option,
            type=_whole if whole else (str | list[str] if several else str),
            default=list(default) if several else default,
            metavar="N" if whole else name.upper(),
            help=f"{says}{shown}".replace("%", "%%"),
        )


class _NotWhole(argparse.ArgumentTypeError, ValueError):
    """Argparse prints the text of the first, a configuration file's reader that of the second."""


def _whole(value: Any) -> int:
    try:
        if isinstance(value, str | int) and not isinstance(value, bool):
            return int(value)
    except ValueError:
        pass
    raise _NotWhole(f"expected a whole number, got {value!r}")


def _nearest(parser: Any, message: str) -> str:
    """The message, and the nearest known option or command if one was not known."""
    wrong = re.search(r"unrecognized arguments: (--?[\w-]+)|invalid choice: '([^']*)'|accept option '([^']*)'", message)
    if wrong is None:
        word = re.search(r"unrecognized arguments: [^-]", message)
        return f"{message}; several values of an option are joined by commas, as a,b" if word else message
    known = [option for action in parser._actions for option in (*action.option_strings, *(action.choices or ()))]
    given = next(group for group in wrong.groups() if group)
    near = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    return f"{message}; did you mean {near[0]}?" if near else message
