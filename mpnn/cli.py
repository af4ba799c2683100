"""The command line: `mpnn COMMAND`, each command a line in `COMMANDS`."""

from __future__ import annotations

import argparse
import difflib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from mpnn.data.errors import UsageError, require

MISTAKE, INTERRUPTED = 2, 130


@dataclass(frozen=True)
class Command:
    """A function, whose parameters are the options, what shows its result, and the libraries that the two need.

    A parameter that is given by its place alone (before `/`) is a word on the command line, not an option.
    """

    function: str
    says: str
    show: str | None = None
    needs: tuple[str, ...] = ()
    examples: str = ""


COMMANDS = {
    "compare": Command(
        "mpnn.experiments:compare",
        "train the architectures on one dataset and compare them",
        show="mpnn.report:show",
        needs=("lightning", "rich", "matplotlib"),
        examples="""\
  mpnn compare                                 the default: a few minutes on two cores
  mpnn compare --steps 200 --seeds 1           a first look
  mpnn compare --dataset mnist5k --models cnn,transformer
  mpnn compare --budget 10000                  all with at most 10,000 parameters
  mpnn compare --shuffle-positions             who relies on neighbours being near?
  mpnn compare --published                     the protocol that mnist1d was published with
  mpnn compare --print_config > mine.yaml      the options as a file, and back:
  mpnn compare --config mine.yaml

Each finished run is kept in runs/NAME at once. After Ctrl-C the same command goes on where it was.""",
    ),
    "experiment": Command(
        "mpnn.experiments.claims:experiment",
        "put a claim about the architectures to the test",
        show="mpnn.report:show_claims",
        needs=("rich", "matplotlib"),
        examples="""\
  mpnn experiment                              the claims, a sentence each
  mpnn experiment heads                        minutes on two cores; ends with its verdict
  mpnn experiment heads --quick                seconds: does it work?
  mpnn experiment heads --seeds 10 --steps 2000
  mpnn experiment heads --workers 1            one part after the other, and not as many at once as there are cores

Each finished part is kept in runs/NAME at once. After Ctrl-C the same command goes on where it was.""",
    ),
    "sweep": Command(
        "mpnn.experiments.sweep:sweep",
        "train the same block with each combination of neighbours, weight and positions",
        show="mpnn.report.sweep_report:show_sweep",
        needs=("lightning", "rich", "matplotlib"),
        examples="""\
  mpnn sweep --quick                           a first look, under a minute, too short to rank
  mpnn sweep --neighbours "Window(2), AllTokens()" --weight "SharedKernel, QKSoftmax" \\
             --positions none,sinusoidal,rotary --dataset digits --seeds 2
  mpnn sweep --neighbours "Window(1), Window(2) | Global(1), Blocks(8)" --weight QKSoftmax
  mpnn sweep --weight "Static, EdgeLearned, EdgeLearned(OffsetMLP), QKSoftmax(heads=1)" \\
             --neighbours "AllTokens(max_tokens=tokens), grid_graph(grid)" --budget 50000
  mpnn sweep --print_config > mine.yaml        the options as a file, a rule a line, and back:
  mpnn sweep --config mine.yaml

How to write rules: as in Python, with commas between. The names are those of the package:
  neighbours   Full Grid Graph AllTokens Window Blocks Global Random KNN Radius, joined by | & -,
               and grid_graph(grid), a graph of the data's grid whose edges have a direction
  weight       Static SharedKernel EdgeLearned QKSoftmax, options by name, widths from --channels;
               inside EdgeLearned( ): AdditiveScore (its default), AdditiveScoreV2, OffsetMLP
  positions    none sinusoidal learned rotary alibi relative laplacian random-walk, or calls, as
               Learned(channels, tokens); the last two code the cells of the data's grid as a graph's nodes
  numbers      grid and tokens are the data's; in weights and positions also channels and heads

What the rules refuse (SharedKernel on AllTokens() without max_tokens has no number of distances) is listed with the
reason and not run. Each finished run is kept in runs/NAME at once. After Ctrl-C the same command goes on where it was.
It ends with a table with 95 % t intervals over the seeds, heatmap.png, results.json, results.csv and index.html.""",
    ),
    "atlas": Command(
        "mpnn.experiments.atlas:atlas",
        "check each neighbourhood with each weight against a published layer",
        examples="  mpnn atlas                                   sixteen cells: layer, largest errors, kernel",
    ),
    "verify": Command(
        "mpnn.experiments.verify:verify",
        "check every layer of torch and PyG that can be loaded against its original",
        needs=("rich",),
        examples="""\
  mpnn verify                                  all layers with their options: errors, the way back, time
  mpnn verify --layers Conv2d,GCNConv          some of them
  mpnn verify --out verify.json                and everything that was measured as a file""",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 2 for a mistake of the person who typed it, 130 after Ctrl-C."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        require("jsonargparse", purpose="the command line")
        parsed = _parser(arguments).parse_args(arguments)
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
    """A worker for each core, unless the option says otherwise, or there is little to do.

    From Python it is one: a program without `if __name__ == "__main__":` would be run again by each process it starts.
    """
    if "workers" in options and options["workers"] is None and not options.get("quick"):
        from mpnn.experiments.about import cores

        options["workers"] = cores()


def _parser(arguments: Sequence[str]) -> Any:
    import jsonargparse

    class Formatter(argparse.RawDescriptionHelpFormatter, jsonargparse.DefaultHelpFormatter):
        """Our own words only: no types in Python's spelling."""

        def _get_help_string(self, action: argparse.Action) -> str:
            return action.help or ""

    class Parser(jsonargparse.ArgumentParser):
        def error(self, message: str, ex: Exception | None = None) -> Any:
            parser = getattr(ex, "subcommand_parser", None) or self
            program = parser.prog.replace(" [options]", "")
            self.exit(MISTAKE, f"error: {_nearest(parser, message)}\nFor the options: {program} --help\n")

    from mpnn import __version__

    parser = Parser(
        prog="mpnn",
        version=__version__,
        formatter_class=Formatter,
        description="MLPs, CNNs, GNNs and Transformers as one message-passing layer.",
        epilog="examples:\n  mpnn compare --steps 200 --seeds 1\n  mpnn compare --help",
    )
    commands = parser.add_subcommands(title="commands", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        examples = f"examples:\n{command.examples}" if command.examples else None
        options = Parser(formatter_class=Formatter, description=f"{command.says}.".capitalize(), epilog=examples)
        # Only the command that is called is imported, so that one that lacks a library leaves the others alone.
        if name in arguments:
            _add_options(options, _load(command.function))
        commands.add_subcommand(name, options, help=command.says)
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
        return message
    known = [option for action in parser._actions for option in (*action.option_strings, *(action.choices or ()))]
    given = next(group for group in wrong.groups() if group)
    near = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    return f"{message}; did you mean {near[0]}?" if near else message
