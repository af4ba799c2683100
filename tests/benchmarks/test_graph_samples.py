"""The graphs of the benchmarks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks import graphs


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
