"""Long range: the two ends of a sequence meet in one attention layer, in a convolution or a graph after many."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from mpnn import MessagePassing
from mpnn.experiments.claims.base import Claim, Record, Setting, Size, column, known, share, where
from mpnn.experiments.claims.chart import Chart, Line, Lines, Table
from mpnn.experiments.claims.decide import Check, extent, t_interval
from mpnn.experiments.claims.practise import SETTINGS, Samples, accuracy, drawn, one_hot, practise
from mpnn.experiments.progress import Advance
from mpnn.models import Network, Readout, ResidualBlock
from mpnn.neighbours import AllTokens, Graph, Grid
from mpnn.weights import QKSoftmax, SharedKernel

LENGTHS, SHORT, BATCH = (32, 128, 512, 1024), 4, 16
ENDS, SYMBOLS, WIDTH = 4, 6, 16  # symbols of the far end, of everything, channels
CHANCE, SOLVED = 0.4, 0.9  # one of four is chance
RATE = replace(SETTINGS, learning_rate=1e-2, batch_size=BATCH)
DEAF = 20  # steps of a network that the far end cannot reach: enough to time them, and there is nothing to learn


def samples(length: int, generator: torch.Generator, count: int) -> Samples:
    """The first token asks for the symbol at the other end, one of four; all between is blank."""
    x = torch.full((count, length), ENDS)
    y = torch.randint(ENDS, (count,), generator=generator)
    x[:, 0], x[:, -1] = ENDS + 1, y
    return one_hot(x, SYMBOLS), y


def attention(length: int, layer: int) -> MessagePassing:
    return MessagePassing(AllTokens(), QKSoftmax(WIDTH, 1))


def convolution(length: int, layer: int) -> MessagePassing:
    return MessagePassing(Grid((length,), 3), SharedKernel(WIDTH, WIDTH))


def dilated(length: int, layer: int) -> MessagePassing:
    return MessagePassing(Grid((length,), 3, dilation=2**layer), SharedKernel(WIDTH, WIDTH))


def graph(length: int, layer: int) -> MessagePassing:
    forward = torch.stack([torch.arange(length - 1), torch.arange(1, length)])
    edges = Graph(torch.cat([forward, forward.flip(0)], 1), length)
    return MessagePassing(edges, SharedKernel(WIDTH, WIDTH, reduce="mean", root=True))


# Each kind of layer, and how many of them carry a message from the last token to the first.
KINDS: dict[str, tuple[Callable[[int, int], MessagePassing], Callable[[int], int]]] = {
    "attention": (attention, lambda length: 1),
    "CNN": (convolution, lambda length: length - 1),
    "dilated CNN": (dilated, lambda length: (length - 1).bit_length()),
    "GNN": (graph, lambda length: length - 1),
}


def model(kind: str, length: int, depth: int) -> Network:
    """Blocks that differ in their layer alone, read at the first token."""
    blocks = [ResidualBlock(KINDS[kind][0](length, layer), WIDTH, 2 * WIDTH) for layer in range(depth)]
    return Network(
        blocks, embed=nn.Linear(SYMBOLS, WIDTH), readout=Readout(WIDTH, ENDS, "first", norm=nn.LayerNorm(WIDTH))
    )


def parts(size: Size) -> list[Setting]:
    lengths = LENGTHS[:1] if size.quick else LENGTHS
    found: list[Setting] = []
    for seed in range(size.seeds):
        for length in lengths:
            for kind, (_, needed) in KINDS.items():
                if kind == "dilated CNN" and length > LENGTHS[1]:
                    continue  # it costs minutes, and shows nothing new
                depth = needed(length) if needed(length) < SHORT or kind == "dilated CNN" else SHORT
                found.append({"kind": kind, "length": length, "layers": depth, "seed": seed})
    return found


@contextmanager
def kept() -> Iterator[list[int]]:
    """Bytes that a forward keeps for its backward, each storage once: the sum is in the list afterwards."""
    seen: dict[int, int] = {}
    total: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield total
    total.append(sum(seen.values()))


def run(setting: Setting, size: Size, advance: Advance) -> Record:
    assert size.steps is not None
    length = setting["length"]
    with drawn(setting["seed"]) as generator:
        made = model(setting["kind"], length, setting["layers"])
        x, _ = samples(length, generator, BATCH)
        x.requires_grad_()
        with kept() as total:
            output = made(x)
        (gradient,) = torch.autograd.grad(output.sum(), x)
        heard = bool(gradient[:, -1].any())  # exactly zero where no path leads from the last token to the first
        steps = size.steps if heard else min(DEAF, size.steps)
        seconds = practise(made, lambda: samples(length, generator, BATCH), steps=steps, settings=RATE, advance=advance)
        found = sum(accuracy(made, *samples(length, generator, 50)) for _ in range(10)) / 10
    return {
        "accuracy": found,
        "needed": KINDS[setting["kind"]][1](length),
        "heard": heard,
        "ms_a_step": 1e3 * statistics.median(seconds),
        "kept_bytes": total[0],
    }


def checks(records: Sequence[Record]) -> list[Check]:
    found = []
    longest = max(one["length"] for one in records)
    for kind in KINDS:
        rows = where(records, kind=kind, length=longest)
        if not rows or kind == "dilated CNN":
            continue  # that the ends meet does not say that it is learnt: it is in the table
        side, bound = ("above", SOLVED) if kind == "attention" else ("below", CHANCE)
        says = f"{kind}, {rows[0]['layers']} of {rows[0]['needed']} layers needed, length {longest}"
        found.append(Check(says, t_interval([row["accuracy"] for row in rows]), side, bound, ".1%"))
    # A layer count is right where the gradient from the far end is exactly zero below it, and is not from it on.
    wrong = [float(one["heard"] != (one["layers"] >= one["needed"])) for one in records]
    return [*found, Check("runs in which the ends meet before or after the layers needed", extent(wrong), "below", 0.5)]


def table(records: Sequence[Record]) -> Table:
    rows = []
    for length in known(records, "length"):
        for kind in KINDS:
            for layers in known(where(records, kind=kind, length=length), "layers"):
                found = where(records, kind=kind, length=length, layers=layers)
                numbers = [statistics.median(one[field] for one in found) for field in ("ms_a_step", "kept_bytes")]
                cells = [share([one["accuracy"] for one in found]), f"{numbers[0]:.1f}", f"{numbers[1] / 2**20:.1f}"]
                rows.append([kind, str(length), str(layers), str(found[0]["needed"]), *cells])
    return Table(["layer", "length", "layers", "needed", "accuracy", "ms a step", "MiB kept for backward"], rows)


def note(records: Sequence[Record]) -> str:
    """Which networks could hear the other end, and did not learn to."""
    deaf = {one["kind"]: True for one in records if one["heard"] and one["accuracy"] < SOLVED}
    if not deaf:
        return ""
    return (
        f"To reach is not to learn: {' and '.join(deaf)} had the layers that it takes and did not solve the task here."
    )


def charts(records: Sequence[Record]) -> list[Chart]:
    def lines(field: str, scale: float) -> list[Line]:
        made = []
        for kind in KINDS:
            few = [one for one in where(records, kind=kind) if one["length"] in LENGTHS]
            lengths = sorted({one["length"] for one in few})
            columns = [[scale * value for value in column(few, field, length=length)] for length in lengths]
            low, high = [min(values) for values in columns], [max(values) for values in columns]
            made.append(Line(_named(kind), lengths, [statistics.fmean(v) for v in columns], low, high))
        return made

    needed = [Line(_named(k), LENGTHS, [count(length) for length in LENGTHS]) for k, (_, count) in KINDS.items()]
    levels = ((25.0, "chance"),)
    return [
        Lines(
            "Do the ends meet?", "length", "accuracy, %", lines("accuracy", 100), True, levels=levels, limits=(0, 102)
        ),
        Lines("Layers needed for that", "length", "layers", needed, True, True),
        Lines("Time", "length", "ms a training step", lines("ms_a_step", 1), True, True),
        Lines("Memory", "length", "MiB kept for the backward", lines("kept_bytes", 2**-20), True, True),
    ]


def _named(kind: str) -> str:
    return {"CNN": f"CNN, {SHORT} layers", "GNN": f"GNN, {SHORT} layers", "attention": "attention, 1 layer"}.get(
        kind, kind
    )


CLAIM = Claim(
    "long-range",
    "One attention layer carries a symbol from one end of a sequence to the other whatever the length; a convolution "
    "or a graph network cannot before its receptive field spans it: a layer a step, the logarithm with dilation.",
    Size(3, 100),
    Size(1, 3, quick=True),
    parts,
    run,
    checks,
    table,
    charts,
    alone=True,
    note=note,
)
