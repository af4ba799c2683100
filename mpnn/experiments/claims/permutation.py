"""Without codes, attention does not see the order of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from mpnn.experiments.atlas_case import TOLERANCE, error
from mpnn.experiments.claims.base import Claim, Record, Setting, Size, column, known, where
from mpnn.experiments.claims.chart import Chart, Rows, Table
from mpnn.experiments.claims.decide import Check, extent
from mpnn.experiments.claims.practise import drawn
from mpnn.experiments.progress import Advance
from mpnn.models import CNN, GNN, MLP, Transformer
from mpnn.neighbours import Graph
from mpnn.positions import Sinusoidal

N, C = 24, 8
MOVED = 1e-2  # a change of one part in a hundred is no rounding error

Function = Callable[[Tensor, Tensor], Tensor]  # of the tokens and, for a graph, its edges


class Flat(nn.Module):
    """An MLP on all tokens at once: (N, C) → (N, C), every unit hears every unit."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = MLP((N * C, 64, N * C))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.flatten()).view(N, C)


def attention() -> nn.Module:
    return Transformer(C, 16, 2, C, readout="none")


def coded() -> nn.Module:
    return Transformer(C, 16, 2, C, readout="none", position=Sinusoidal(16))


def cnn() -> nn.Module:
    return CNN(C, (16, 16), C, size=(N,), readout="none")


def gnn() -> nn.Module:
    return GNN(C, (16, 16), C, neighbours=Graph(self_loops="add"), readout="none")


# What is permuted, how it is made, whether its edges move with the nodes, and whether the claim says that it follows.
SUBJECTS: dict[str, tuple[Callable[[], nn.Module], bool, bool]] = {
    "attention": (attention, False, True),
    "GNN, edges move too": (gnn, True, True),
    "attention with codes": (coded, False, False),
    "MLP": (Flat, False, False),
    "CNN": (cnn, False, False),
    "GNN, edges stay": (gnn, False, False),
}


def parts(size: Size) -> list[Setting]:
    return [{"subject": name, "seed": seed} for seed in range(size.seeds) for name in SUBJECTS]


def run(setting: Setting, size: Size, advance: Advance) -> Record:
    """How far f(permuted x) is from the permuted f(x), as a part of its largest value."""
    make, moves, _ = SUBJECTS[setting["subject"]]
    record: Record = {}
    for dtype in TOLERANCE:
        with drawn(setting["seed"]) as generator:
            model = make().to(dtype)
            x = torch.randn(N, C, generator=generator).to(dtype)
            edges = torch.randint(N, (2, 3 * N), generator=generator)
            order = torch.randperm(N, generator=generator)
        place = order.argsort()  # the node that was i is at place[i] now
        with torch.no_grad():
            if isinstance(model, nn.Module) and make is gnn:
                plain, permuted = model(x, edges), model(x[order], place[edges] if moves else edges)
            else:
                plain, permuted = model(x), model(x[order])
        record[f"error_{str(dtype).removeprefix('torch.')}"] = error(permuted, plain[order])
    return record


def checks(records: Sequence[Record]) -> list[Check]:
    found = []
    for name, (_, _, follows) in SUBJECTS.items():
        if follows:
            for dtype, allowed in TOLERANCE.items():
                field = f"error_{str(dtype).removeprefix('torch.')}"
                says = f"{name}: change beyond the permutation, {str(dtype).removeprefix('torch.')}"
                found.append(Check(says, extent(column(records, field, subject=name)), "below", allowed, ".1e"))
        else:
            errors = column(records, "error_float64", subject=name)
            found.append(Check(f"{name}: change beyond the permutation", extent(errors), "above", MOVED, ".2g"))
    return found


def table(records: Sequence[Record]) -> Table:
    rows = []
    for name in known(records, "subject"):
        cells = [
            format(max(column(records, field, subject=name)), ".1e") for field in ("error_float64", "error_float32")
        ]
        rows.append([name, str(len(where(records, subject=name))), *cells])
    return Table(["what is permuted", "draws", "largest change, float64", "float32"], rows)


def charts(records: Sequence[Record]) -> list[Chart]:
    # Rounding can be exactly nothing, which has no place on a logarithmic axis.
    rows = [(name, [max(e, 1e-17) for e in column(records, "error_float64", subject=name)]) for name in SUBJECTS]
    label = "|f(Px) − P f(x)| as a part of |f(x)|, float64"
    return [Rows("Who follows a permutation of the tokens?", label, rows, log=True, levels=((1e-10, "rounding"),))]


CLAIM = Claim(
    "permutation",
    "Without codes attention does not see order: permuted tokens give the permuted output, to rounding, as a graph "
    "does whose edges move along; codes, windows, places and edges that stay break this.",
    Size(10, None),
    Size(1, None, quick=True),
    parts,
    run,
    checks,
    table,
    charts,
    alone=True,
)
