"""An edge between two graphs of a batch is refused wherever it stands: in an expression, in a person's own rule."""

from __future__ import annotations

import pytest
import torch

from mpnn import MessagePassing, attend
from mpnn.neighbours import AllTokens, Edges, Graph, Neighbours, Window
from mpnn.weights import SharedKernel

BATCH = torch.tensor([0, 0, 1, 1])
JOINS = Graph(torch.tensor([[0, 3], [1, 1]]), 4)
INSIDE = Graph(torch.tensor([[0, 3], [1, 2]]), 4)


class Before(Neighbours):
    """A person's own rule, which does not look at the batch."""

    def edges(self, targets, sources, *, rows=None, tokens=None):  # type: ignore[no-untyped-def]
        i = torch.arange(1, targets)
        return Edges(i - 1, i)


class BeforeByPairs(Before):
    """The same, which tiles may run."""

    def contains(self, target, source):  # type: ignore[no-untyped-def]
        return target == source + 1


class Inside(Before):
    """The same, which looks."""

    def edges(self, targets, sources, *, rows=None, tokens=None):  # type: ignore[no-untyped-def]
        made = super().edges(targets, sources)
        return made if tokens is None else made.take(BATCH[made.source] == BATCH[made.target])


JOINING = [
    JOINS | Window(0),
    Window(0) | JOINS,
    JOINS - Window(0),
    Window(2) & JOINS,
    JOINS | AllTokens(),
    INSIDE | (Window(1) - JOINS),
    Before(),
    BeforeByPairs(),
    Before() | Window(0),
    Before() - BeforeByPairs(),
]


@pytest.mark.parametrize("rule", JOINING, ids=repr)
def test_edges_between_graphs_are_refused(rule: Neighbours) -> None:
    q, x = torch.randn(1, 4, 2), torch.randn(4, 2)
    text = r"expected (edges|\w+\.(edges|contains) to give pairs) inside the graphs of batch; one joins two, .*, got \d"
    for kernel in (None, "reference"):
        with pytest.raises(ValueError, match=text):
            attend(q, q, q, rule, batch=BATCH, kernel=kernel)
    layer = MessagePassing(rule, SharedKernel(2, 2, fixed=True))
    with pytest.raises(ValueError, match=text):
        layer(x, batch=BATCH)
    assert layer(x).shape == x.shape


@pytest.mark.parametrize("rule", [INSIDE | Window(1), Window(2) - INSIDE, Inside(), Inside() | INSIDE], ids=repr)
def test_edges_inside_them_are_not(rule: Neighbours) -> None:
    layer, x = MessagePassing(rule, SharedKernel(2, 2)), torch.randn(4, 2)
    parts = layer(x, batch=BATCH)
    moved = x.clone()
    moved[2:] += 1
    torch.testing.assert_close(layer(moved, batch=BATCH)[:2], parts[:2])
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, batch=BATCH), parts)
