"""The commands of the program ``mpnn``: a line each, without importing what they run."""

from __future__ import annotations

from dataclasses import dataclass


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
  mpnn verify                                  all layers with their options: errors, the way back, speed
  mpnn verify --layers Conv2d,GCNConv          some of them
  mpnn verify --out verify.json                and everything that was measured as a file""",
    ),
}
