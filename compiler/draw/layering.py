"""Rows, order and horizontal places for the vertices of an acyclic graph, so that edges run one way, short and rarely crossed.

The method is that of K. Sugiyama, S. Tagawa and M. Toda, "Methods for Visual Understanding of Hierarchical System
Structures" (1981): longest paths give the rows, an edge over several rows gets a bend in each, sweeps of barycenters give the
order within a row, and a last one pulls each vertex towards what it is connected to.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx

Vertex = Hashable
Edge = tuple[Vertex, Vertex]

GAP = 26.0
"""Between neighbours in a row."""
BEND_WIDTH = 4.0
_MOST_BENDS = 20_000
"""Edges beyond go straight, the longest first: their bends would cost more than they help."""
_SWEEPS = 8
_PULLS = 12
_BOTH_WAYS = 4
"""Of the pulls, the last ones, in which what stands above and what stands below pull alike."""
_STRAIGHT = 2.0
"""How much harder a bend is held in line than a vertex."""
_CENTRED = 0.95
"""What is left of the way from the middle at every pull: chains would drift aside, and make the whole wide."""


@dataclass(frozen=True, slots=True)
class Bend:
    """Where an edge passes a row between its ends: a vertex like any other for order and place."""

    edge: Edge
    row: int


@dataclass(frozen=True, slots=True)
class Layering:
    """Where everything goes.

    Attributes:
        rows: the vertices and bends of each row from left to right.
        x: the middle of each; the leftmost edge of all is at 0.
        width: from there to the rightmost edge.
        bends: the bends of each edge that has some, in its direction.
    """

    rows: tuple[tuple[Vertex, ...], ...]
    x: Mapping[Vertex, float]
    width: float
    bends: Mapping[Edge, tuple[Bend, ...]]


def arrange(widths: Mapping[Vertex, float], edges: Sequence[Edge]) -> Layering:
    """Find rows, order and places.

    Args:
        widths: the vertices, in an order that breaks ties.
        edges: from one of them to another; no cycle.
    """
    if not widths:
        return Layering((), {}, 0.0, {})
    row_of = rows_by_longest_path(widths, edges)
    bends = _bends(edges, row_of)
    rows: list[list[Vertex]] = [[] for _ in range(max(row_of.values()) + 1)]
    for vertex in widths:
        rows[row_of[vertex]].append(vertex)
    above: dict[Vertex, list[Vertex]] = {v: [] for v in widths}
    below: dict[Vertex, list[Vertex]] = {v: [] for v in widths}
    for edge in edges:
        path: list[Vertex] = [edge[0], *bends.get(edge, ()), edge[1]]
        for bend in bends.get(edge, ()):
            rows[bend.row].append(bend)
        if edge in bends or row_of[edge[1]] == row_of[edge[0]] + 1:
            for upper, lower in pairwise(path):
                below.setdefault(upper, []).append(lower)
                above.setdefault(lower, []).append(upper)
    rows = _ordered(rows, above, below)
    x = _placed(rows, above, below, widths)
    left = min(x[v] - _half(v, widths) for v in x)
    right = max(x[v] + _half(v, widths) for v in x)
    return Layering(tuple(map(tuple, rows)), {v: x[v] - left for v in x}, right - left, bends)


def rows_by_longest_path(vertices: Iterable[Vertex], edges: Iterable[Edge]) -> dict[Vertex, int]:
    """The row of each vertex: below everything that leads to it, and as near to what it leads to as makes edges shorter."""
    graph = nx.DiGraph()
    graph.add_nodes_from(vertices)
    graph.add_edges_from(edges)
    row = {v: i for i, generation in enumerate(nx.topological_generations(graph)) for v in generation}
    for vertex in reversed(list(nx.topological_sort(graph))):
        later = graph.succ[vertex]
        if later and len(graph.pred[vertex]) <= len(later):
            row[vertex] = min(row[v] for v in later) - 1
    used = {number: i for i, number in enumerate(sorted(set(row.values())))}
    return {v: used[number] for v, number in row.items()}


def crossings(upper: Sequence[Vertex], lower: Sequence[Vertex], below: Mapping[Vertex, Sequence[Vertex]]) -> int:
    """How many pairs of edges between two neighbouring rows cross."""
    place = {v: i for i, v in enumerate(lower)}
    seen: list[int] = []
    count = 0
    for vertex in upper:
        ends = [place[v] for v in below.get(vertex, ()) if v in place]
        count += sum(len(seen) - bisect_right(seen, end) for end in ends)
        for end in ends:
            insort(seen, end)
    return count


def _bends(edges: Iterable[Edge], row_of: Mapping[Vertex, int]) -> dict[Edge, tuple[Bend, ...]]:
    found: dict[Edge, tuple[Bend, ...]] = {}
    left = _MOST_BENDS
    for edge in sorted(edges, key=lambda e: row_of[e[1]] - row_of[e[0]]):
        passed = range(row_of[edge[0]] + 1, row_of[edge[1]])
        if passed and len(passed) <= left:
            found[edge] = tuple(Bend(edge, row) for row in passed)
            left -= len(passed)
    return found


def _ordered(
    rows: list[list[Vertex]], above: Mapping[Vertex, Sequence[Vertex]], below: Mapping[Vertex, Sequence[Vertex]]
) -> list[list[Vertex]]:
    """Sweep down and up; the best order seen wins."""
    best, least = rows, _all_crossings(rows, below)
    for sweep in range(_SWEEPS):
        if not least:
            break
        down = sweep % 2 == 0
        rows = [list(row) for row in rows]
        steps = range(1, len(rows)) if down else range(len(rows) - 2, -1, -1)
        for i in steps:
            fixed = {v: place for place, v in enumerate(rows[i - 1 if down else i + 1])}
            own = {v: float(place) for place, v in enumerate(rows[i])}
            near = above if down else below
            middle = {v: _mean([fixed[n] for n in near.get(v, ()) if n in fixed], own[v]) for v in rows[i]}
            rows[i].sort(key=middle.__getitem__)
        found = _all_crossings(rows, below)
        if found < least:
            best, least = rows, found
    return best


def _all_crossings(rows: Sequence[Sequence[Vertex]], below: Mapping[Vertex, Sequence[Vertex]]) -> int:
    return sum(crossings(upper, lower, below) for upper, lower in pairwise(rows))


def _placed(
    rows: Sequence[Sequence[Vertex]],
    above: Mapping[Vertex, Sequence[Vertex]],
    below: Mapping[Vertex, Sequence[Vertex]],
    widths: Mapping[Vertex, float],
) -> dict[Vertex, float]:
    """Pull every vertex towards its neighbours, as far as the order and the gaps of its row let it."""
    x: dict[Vertex, float] = {}
    for row in rows:
        x.update(zip(row, separated([0.0] * len(row), [1.0] * len(row), [_half(v, widths) for v in row]), strict=True))
    for pull in range(_PULLS):
        down = pull % 2 == 0
        for row in rows if down else reversed(rows):
            near = (above, below) if pull >= _PULLS - _BOTH_WAYS else (above,) if down else (below,)
            wanted = [_CENTRED * _mean([x[n] for side in near for n in side.get(v, ())], x[v]) for v in row]
            weights = [_STRAIGHT if isinstance(v, Bend) else 1.0 for v in row]
            x.update(zip(row, separated(wanted, weights, [_half(v, widths) for v in row]), strict=True))
    return x


def separated(wanted: Sequence[float], weights: Sequence[float], halves: Sequence[float]) -> list[float]:
    """The places nearest to the wanted ones, by weighted squares, at which neighbours keep their order and the gap.

    With the room that each needs taken off, the places must not fall from left to right: pool those that would (the
    pool-adjacent-violators algorithm of isotonic regression).
    """
    offsets = [0.0]
    for left, right in pairwise(halves):
        offsets.append(offsets[-1] + left + GAP + right)
    pools: list[tuple[float, float, int]] = []  # weight, weighted sum, how many
    for want, weight, offset in zip(wanted, weights, offsets, strict=False):
        pool = (weight, weight * (want - offset), 1)
        while pools and pools[-1][1] / pools[-1][0] > pool[1] / pool[0]:
            before = pools.pop()
            pool = (before[0] + pool[0], before[1] + pool[1], before[2] + pool[2])
        pools.append(pool)
    levels = [total / weight for weight, total, count in pools for _ in range(count)]
    return [level + offset for level, offset in zip(levels, offsets, strict=False)]


def _half(vertex: Vertex, widths: Mapping[Vertex, float]) -> float:
    return (BEND_WIDTH if isinstance(vertex, Bend) else widths[vertex]) / 2


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
