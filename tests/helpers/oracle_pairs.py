"""Who sends to whom, pair by pair, as a Python loop over targets and sources, written from the contract alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from mpnn.neighbours import (
    AllTokens,
    Blocks,
    Difference,
    Full,
    Global,
    Graph,
    Grid,
    Intersection,
    Neighbours,
    Union,
    Window,
)


class Pair(NamedTuple):
    """One pair; ``place`` is where ``Static`` has its parameter, ``row`` the row of edge data (-1: an added loop)."""

    source: int
    target: int
    relation: int = 0
    offset: tuple[int, ...] = ()
    place: tuple[int, ...] = ()
    row: int = 0


def pairs_of(
    rule: Neighbours,
    targets: int,
    sources: int,
    *,
    edge_index: Any = None,
    edge_type: Any = None,
    batch: Any = None,
    grid: Any = None,
) -> list[Pair]:
    """Every pair, a graph's in the caller's order with added loops last, else by target, source."""
    if isinstance(rule, Graph):
        return graph(rule, targets, edge_index, edge_type)
    if isinstance(rule, Union | Intersection | Difference):
        made = expression(rule, targets, sources, batch, grid)
    elif isinstance(rule, Grid):
        made = grid_pairs(rule, grid)
    elif isinstance(rule, Blocks) and rule.on_grid:
        made = block_pairs(rule, rule.grid or grid)
    elif isinstance(rule, AllTokens | Window | Blocks | Global):
        made = [p for first in graphs(batch, targets, sources) for p in in_a_row(rule, *first)]
    elif isinstance(rule, Full):
        made = [
            Pair(j, i, j - (i + sources - targets) + sources - 1, (j - (i + sources - targets),), (i, j))
            for i in range(targets)
            for j in range(sources)
        ]
    else:  # a person's own, without masks of any kind
        found = rule.edges(targets, sources)
        made = [Pair(int(j), int(i)) for j, i in zip(found.source, found.target, strict=True)]
    made = sorted(made, key=lambda p: (p.target, p.source))  # a border may name a cell twice, or out of order
    return [p._replace(row=row) for row, p in enumerate(made)]


def graph(rule: Graph, nodes: int, edge_index: Any, edge_type: Any) -> list[Pair]:
    """The caller's edges and the loops that the rule adds; a place is the number of a distinct (target, source)."""
    index = rule.edge_index if edge_index is None else edge_index
    kinds = rule.edge_type if edge_type is None else edge_type
    made = [
        Pair(int(j), int(i), 0 if kinds is None else int(kinds[e]), row=e)
        for e, (j, i) in enumerate(zip(index[0], index[1], strict=True))
    ]
    if rule.self_loops == "replace":
        made = [p for p in made if p.source != p.target] + [Pair(i, i, row=-1) for i in range(nodes)]
    elif rule.self_loops == "add":
        have = {p.target for p in made if p.source == p.target}
        made += [Pair(i, i, row=-1) for i in range(nodes) if i not in have]
    distinct = sorted({(p.target, p.source) for p in made})
    return [p._replace(place=(distinct.index((p.target, p.source)),)) for p in made]


def grid_pairs(rule: Grid, grid: tuple[int, ...] | None) -> Iterator[Pair]:
    size = rule.size if rule.size is not None else grid
    assert size is not None
    axes = [axis(rule, a, n) for a, n in enumerate(size)]
    for i, cell in enumerate(itertools.product(*(range(len(a)) for a in axes))):
        for steps in itertools.product(*(axes[a][t] for a, t in enumerate(cell))):
            j = relation = 0
            for a, (source, _, _, kind) in enumerate(steps):
                reach = 2 * rule.kernel_size[a] - 1 if rule.border == "clamp" else rule.kernel_size[a]
                j, relation = j * size[a] + source, relation * reach + kind
            yield Pair(j, i, relation, tuple(s[2] for s in steps), (i, *(s[1] for s in steps)))


def axis(rule: Grid, a: int, n: int) -> list[list[tuple[int, int, int, int]]]:
    """For each target coordinate of one axis: (source, place in the window, offset, relation) of its window."""
    k, d, stride = rule.kernel_size[a], rule.dilation[a], rule.stride[a]
    if rule.padding == "same":
        before, after = d * (k - 1) // 2, d * (k - 1) - d * (k - 1) // 2
    else:
        before = after = 0 if rule.padding == "valid" else rule.padding[a]
    made = []
    for t in range((n + before + after - d * (k - 1) - 1) // stride + 1):
        if rule.border == "clamp":  # the k cells of t's remainder that are nearest to t, the window inside
            line = list(range(t % d, n, d))
            first = min(max(line.index(t) - k // 2, 0), len(line) - k)
            made.append([(c, s, c - t, (c - t) // d + k - 1) for s, c in enumerate(line[first : first + k])])
            continue
        window = []
        for s in range(k):
            cell = t * stride - before + d * s
            inside = border(rule.border, cell, n)
            if inside is not None:
                window.append((inside, s, d * (s - (k - 1) // 2), s))
        made.append(window)
    return made


def in_block(rule: Blocks, axis: int, i: int, j: int) -> bool:
    lower = math.floor((i - rule.shift[axis]) / rule.size[axis]) * rule.size[axis] + rule.shift[axis]
    return lower - rule.halo[axis] <= j < lower + rule.size[axis] + rule.halo[axis]


def block_pairs(rule: Blocks, grid: tuple[int, ...]) -> Iterator[Pair]:
    cells = [*itertools.product(*map(range, grid))]
    for (i, target), (j, source) in itertools.product(enumerate(cells), repeat=2):
        if all(in_block(rule, a, target[a], source[a]) for a in range(len(grid))):
            yield Pair(j, i, offset=tuple(s - t for s, t in zip(source, target, strict=True)))


def expression(rule: Any, targets: int, sources: int, batch: Any, grid: Any) -> list[Pair]:
    """Pairs without duplicates; one on both sides of a union belongs to the left."""
    sides = []
    for part in (rule.left, rule.right):
        distinct: dict[tuple[int, int], Pair] = {}
        for p in pairs_of(part, targets, sources, batch=batch, grid=grid):
            distinct.setdefault((p.target, p.source), p)
        sides.append(distinct)
    left, right = sides
    if isinstance(rule, Intersection):
        kept = [p for ends, p in left.items() if ends in right]
    elif isinstance(rule, Difference):
        kept = [p for ends, p in left.items() if ends not in right]
    if not isinstance(rule, Union):
        return [p._replace(place=(flat(rule.left, p.place, sources),)) if rule.pairs else p for p in kept]
    same = rule.left.axes == rule.right.axes
    made = []
    for number, (part, side) in enumerate(((rule.left, left), (rule.right, right))):
        for ends, p in side.items():
            if number and ends in left:
                continue
            place = (number * (rule.left.pairs or 0) + flat(part, p.place, sources),) if rule.pairs else ()
            relation = p.relation + number * rule.left.relations
            made.append(p._replace(relation=relation, offset=p.offset if same else (), place=place))
    return made


def flat(rule: Neighbours, place: tuple[int, ...], sources: int) -> int:
    """The number of a pair of the fixed ones that stand in the cases' expressions."""
    width = sources if isinstance(rule, Full) else getattr(rule, "max_tokens", None)
    return place[0] * width + place[1] if width else place[0]


def border(kind: str, cell: int, n: int) -> int | None:
    """The cell that stands for one outside the grid; None where there is none."""
    if 0 <= cell < n:
        return cell
    if kind == "circular":
        return cell % n
    if kind == "replicate":
        return 0 if cell < 0 else n - 1
    if kind == "reflect":
        return -cell if cell < 0 else 2 * (n - 1) - cell
    return None


def graphs(batch: Any, targets: int, sources: int) -> Iterator[tuple[list[int], list[int]]]:
    """The target and source tokens of each graph."""
    if batch is None:
        yield list(range(targets)), list(range(sources))
        return
    at_source, at_target = (b.tolist() for b in batch)
    for g in sorted({*at_source, *at_target}):
        yield [i for i in range(targets) if at_target[i] == g], [j for j in range(sources) if at_source[j] == g]


def in_a_row(rule: AllTokens | Window | Blocks | Global, own: list[int], others: list[int]) -> Iterator[Pair]:
    """Pairs of one sequence: target number i sits at slot i + M - N."""
    n, m = len(own), len(others)
    for i, j in itertools.product(range(n), range(m)):
        offset = j - (i + m - n)
        if isinstance(rule, Blocks):
            if in_block(rule, 0, i, j):
                yield Pair(others[j], own[i], offset=(j - i,))
            continue
        if isinstance(rule, Global):
            if i < rule.count or j < rule.count:
                yield Pair(others[j], own[i], offset=(offset,))
            continue
        if isinstance(rule, Window):
            step, rest = divmod(offset, rule.dilation)
            if rest == 0 and -rule.left <= step <= rule.right:
                yield Pair(others[j], own[i], step + rule.left, (offset,))
        elif not (rule.causal and offset > 0):
            most = rule.max_tokens
            yield Pair(others[j], own[i], 0 if most is None else offset + most - 1, (offset,), (i, j))


def positions_of(
    rule: Neighbours, mask: list[bool], targets: int, one_set: bool, batch: Any
) -> tuple[list[int], list[int]]:
    """Default (source, target) positions: cumsum(mask) - 1, restarting in each graph."""
    at_source, at_target = [0] * len(mask), [0] * targets
    for own, others in graphs(batch, targets, len(mask)):
        count = -1
        for j in others:
            count += mask[j]
            at_source[j] = count
        for number, i in enumerate(own):
            if one_set:
                at_target[i] = at_source[i]
            elif isinstance(rule, Window) or getattr(rule, "causal", False):
                place = number + len(others) - len(own)  # the last N of the source's; before the first, counted down
                at_target[i] = at_source[others[place]] if place >= 0 else place
            else:
                at_target[i] = number
    return at_source, at_target


def centre(rule: Grid, grid: tuple[int, ...] | None, target: int) -> int:
    """The source cell at the middle of a target's window, the nearest one where the middle lies outside."""
    size = rule.size if rule.size is not None else grid
    assert size is not None
    out, j = rule.target_size(size), 0
    for a, n in enumerate(size):
        t = target // math.prod(out[a + 1 :]) % out[a]
        before = 0 if isinstance(rule.padding, str) else rule.padding[a]
        middle = t * rule.stride[a] - before + rule.dilation[a] * ((rule.kernel_size[a] - 1) // 2)
        j = j * n + min(max(middle, 0), n - 1)
    return j
