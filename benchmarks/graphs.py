"""Graphs from fixed seeds: small, power law, dense, many molecules, a star with clusters, many complete graphs.

Edges are in the order in which data sets come, sorted by source (PyG's ``coalesce``), without loops; duplicates stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sample:
    """A graph: ``edge_index`` (2, E) on ``nodes`` nodes."""

    name: str
    edge_index: Tensor
    nodes: int

    @property
    def edges(self) -> int:
        return int(self.edge_index.shape[1])


# nodes, edges; see each maker
SIZES = {
    "G1": (2_708, 10_556),  # Cora
    "G2": (169_000, 1_170_000),  # ogbn-arxiv, power law
    "G3": (50_000, 5_000_000),  # a hundred sources each
    "G4": (25_900, 54_000),  # 1,024 graphs of molecule size, about so many
    "G5": (50_000, 1_000_000),  # a star over clusters
    "G6": (25_900, 710_000),  # the nodes of G4, each beside all others of its graph, about so many
}
MOLECULES = 1_024


def uniform(nodes: int, edges: int, seed: int = 11) -> Tensor:
    """Ends drawn evenly."""
    return _sorted(_draw(nodes, edges, seed), _draw(nodes, edges, seed + 1), nodes)


def power_law(nodes: int, edges: int, seed: int = 12, exponent: float = 0.75) -> Tensor:
    """Targets drawn with probability ∝ rank^-exponent: a few hubs take tens of thousands of edges."""
    generator = torch.Generator().manual_seed(seed)
    mass = torch.arange(1, nodes + 1, dtype=torch.float64).pow(-exponent).cumsum(0)
    target = torch.searchsorted(mass, torch.rand(edges, generator=generator, dtype=torch.float64) * mass[-1])
    name = torch.randperm(nodes, generator=generator)
    return _sorted(_draw(nodes, edges, seed + 1), name[target.clamp(max=nodes - 1)], nodes)


def molecules(graphs: int = MOLECULES, seed: int = 13) -> tuple[Tensor, int]:
    """Trees of 10 to 40 nodes with two more bonds each, every bond in both directions; edges and nodes."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(10, 41, (graphs,), generator=generator)
    ends, first = [], 0
    for n in sizes.tolist():
        child = torch.arange(1, n)
        parent = (child - 1 - torch.randint(0, 3, (n - 1,), generator=generator)).clamp(min=0)
        ring = torch.randint(0, n, (2, 2), generator=generator)
        bonds = torch.cat([torch.stack([parent, child]), ring[:, ring[0] != ring[1]]], 1)
        ends += [bonds + first, bonds.flip(0) + first]
        first += n
    both = torch.cat(ends, 1)
    return _sorted(both[0], both[1], first), first


def complete(count: int = MOLECULES, seed: int = 13) -> tuple[Tensor, int]:
    """Graphs of 10 to 40 nodes, each node beside all others, as models of molecules with distances have them; edges
    and nodes."""
    sizes = torch.randint(10, 41, (count,), generator=torch.Generator().manual_seed(seed))
    first = sizes.cumsum(0) - sizes
    source = torch.arange(int(sizes.sum())).repeat_interleave(sizes.repeat_interleave(sizes))
    graph = torch.arange(count).repeat_interleave(sizes.square())
    place = torch.arange(len(source)) - (sizes.square().cumsum(0) - sizes.square())[graph]
    target = first[graph] + place % sizes[graph]
    other = source != target
    return torch.stack([source[other], target[other]]), int(sizes.sum())


def star(nodes: int, edges: int, seed: int = 14, cluster: int = 50) -> Tensor:
    """Node 0 sends to all and hears all; the other edges stay within clusters of 50 nodes."""
    leaves = torch.arange(1, nodes)
    rest = edges - 2 * len(leaves)
    source = _draw(nodes, rest, seed)
    target = (source // cluster * cluster + _draw(cluster, rest, seed + 1)).clamp(max=nodes - 1)
    hub = torch.zeros_like(leaves)
    return _sorted(torch.cat([hub, leaves, source]), torch.cat([leaves, hub, target]), nodes)


@lru_cache(maxsize=1)
def sample(name: str) -> Sample:
    """G1 to G6; the last one made is kept.

    Raises:
        KeyError: for another name.
    """
    nodes, edges = SIZES[name]
    if name in ("G4", "G6"):
        index, nodes = molecules() if name == "G4" else complete()
    else:
        index = {"G1": uniform, "G2": power_law, "G3": uniform, "G5": star}[name](nodes, edges)
    return Sample(name, index, nodes)


def _draw(below: int, count: int, seed: int) -> Tensor:
    return torch.randint(below, (count,), generator=torch.Generator().manual_seed(seed))


def _sorted(source: Tensor, target: Tensor, nodes: int) -> Tensor:
    target = torch.where(source == target, (target + 1) % nodes, target)
    order = torch.argsort(source * nodes + target)
    return torch.stack([source[order], target[order]])
