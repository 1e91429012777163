"""Rows, order and places of the vertices of a graph."""

from __future__ import annotations

import itertools
import random

import pytest
from memopt.compiler.draw.layering import GAP, Bend, arrange, crossings, rows_by_longest_path, separated


def test_rows_follow_the_longest_path() -> None:
    assert rows_by_longest_path("abcd", [("a", "b"), ("b", "c"), ("a", "c"), ("c", "d")]) == {"a": 0, "b": 1, "c": 2, "d": 3}


def test_what_nothing_leads_to_stands_right_above_its_reader() -> None:
    rows = rows_by_longest_path("abcwv", [("a", "b"), ("b", "c"), ("w", "v"), ("v", "c")])
    assert rows == {"a": 0, "b": 1, "c": 2, "w": 0, "v": 1}


def test_rows_are_numbered_without_holes() -> None:
    assert rows_by_longest_path("ab", []) == {"a": 0, "b": 0}


def test_a_long_edge_bends_in_every_row_that_it_passes() -> None:
    found = arrange(dict.fromkeys("abcd", 10.0), [("a", "b"), ("b", "c"), ("c", "d"), ("a", "d")])
    assert [bend.row for bend in found.bends["a", "d"]] == [1, 2]
    assert Bend(("a", "d"), 1) in found.rows[1]
    assert list(found.bends) == [("a", "d")]


def test_crossings_are_counted() -> None:
    assert crossings("ab", "cd", {"a": ["d"], "b": ["c"]}) == 1
    assert crossings("ab", "cd", {"a": ["c"], "b": ["d"]}) == 0
    assert crossings("abc", "def", {"a": ["f"], "b": ["e"], "c": ["d"]}) == 3
    assert crossings("ab", "cd", {"a": ["c", "d"], "b": ["c", "d"]}) == 1


def test_edges_are_uncrossed() -> None:
    found = arrange(dict.fromkeys("abcdef", 10.0), [("a", "f"), ("b", "e"), ("c", "d")])
    below = {"a": ["f"], "b": ["e"], "c": ["d"]}
    assert crossings(*found.rows, below) == 0


@pytest.mark.parametrize("seed", range(5))
def test_neighbours_keep_their_gap(seed: int) -> None:
    draw = random.Random(seed)
    widths = {n: draw.uniform(10, 100) for n in range(60)}
    edges = sorted({(a, b) for a, b in (sorted(draw.sample(range(60), 2)) for _ in range(120))})
    found = arrange(widths, edges)
    assert sorted(v for row in found.rows for v in row if not isinstance(v, Bend)) == list(range(60))
    row_of = {v: i for i, row in enumerate(found.rows) for v in row}
    assert all(row_of[a] < row_of[b] for a, b in edges)
    for row in found.rows:
        for left, right in itertools.pairwise(row):
            room = sum(4.0 if isinstance(v, Bend) else widths[v] for v in (left, right)) / 2 + GAP
            assert found.x[right] - found.x[left] >= room - 1e-6
    edges_of_all = [(found.x[v] - (0 if isinstance(v, Bend) else widths[v] / 2)) for row in found.rows for v in row]
    assert min(edges_of_all) >= -1e-6
    assert arrange(widths, edges) == found


def test_a_chain_is_straight() -> None:
    found = arrange(dict.fromkeys("abcd", 10.0), [("a", "b"), ("b", "c"), ("c", "d")])
    assert set(found.x.values()) == {5.0}
    assert found.width == 10.0


def test_nothing_is_nowhere() -> None:
    assert arrange({}, []).rows == ()


def test_places_are_the_nearest_that_keep_order_and_gap() -> None:
    assert separated([0.0, 100.0], [1.0, 1.0], [5.0, 5.0]) == [0.0, 100.0]
    apart = 5.0 + GAP + 5.0
    assert separated([0.0, 0.0], [1.0, 1.0], [5.0, 5.0]) == [-apart / 2, apart / 2]
    assert separated([0.0, 0.0], [3.0, 1.0], [5.0, 5.0]) == [-apart / 4, 3 * apart / 4]
