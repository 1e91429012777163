"""What runs in the backward, how long it takes, and what is alive beside what moves."""

from __future__ import annotations

from itertools import pairwise

import pytest
from memopt.passes.joint import JointGraph
from memopt.passes.liveness.fused import fused
from memopt.passes.liveness.kernels import node_by_node
from memopt.passes.swap.course import Course, Kernels, course_of
from memopt.passes.swap.pair import Pair
from printer import Builder, plan
from swap_graphs import aten, chosen
from torch.utils.flop_counter import flop_registry

MATRIX = 4 * 4 * 4
"""Bytes of each value of the graphs below."""


def course(
    joint: JointGraph, swapped: list[int], kernels_of: Kernels = node_by_node, *, views: bool = False
) -> tuple[Pair, Course]:
    pair, moves = chosen(joint, plan(3, swap=swapped), views=views)
    return pair, course_of(pair, moves, kernels_of)


def held(found: Course) -> dict[str, int]:
    """Kernel -> the values alive beside what moves while it runs."""
    assert all(n % MATRIX == 0 for n in found.held)
    return {node.name: n // MATRIX for node, n in zip(found.begins, found.held, strict=True)}


def gone(found: Course) -> dict[str, str]:
    """What moves -> the first kernel that runs without it."""
    names = [*(n.name for n in found.begins), "end"]
    return {value.name: names[index] for value, index in found.gone.items()}


def released(found: Course) -> list[int]:
    """The saved values that are free after each kernel."""
    return [n // MATRIX for n in found.released]


def two(*, reads_m1_again: bool = False) -> JointGraph:
    """Layers 0 and 1, a product each, of which the backward reads the result; in layer 1 a parameter has a gradient."""
    b = Builder(3)
    x, w = b.input("x", 4, 4), b.parameter("w", 4, 4)
    a0 = b.op("a0", aten.mm.default, x, w, at="layers.0")
    a1 = b.op("a1", aten.mm.default, a0, w, at="layers.1")
    out = b.op("out", aten.neg.default, a1, at="head")
    g = b.back("g", aten.neg.default, b.tangent(out), of=out)
    g1 = b.back("g1", aten.mul.Tensor, g, a1, of=a1)
    w1 = b.back("w1", aten.mm.default, g1, g1, of=a1)
    m1 = b.back("m1", aten.mm.default, g1, w, of=a1)
    g0 = b.back("g0", aten.mul.Tensor, m1, a0, of=a0)
    more = [b.back("w0", aten.mm.default, m1, m1, of=a0)] if reads_m1_again else []
    m0 = b.back("m0", aten.mm.default, g0, w, of=a0)
    return b.joint([out], [m0, w1, *more])


def test_node_by_node() -> None:
    pair, found = course(two(), [0])
    # The gradient that arrives and a1; then what is made, until it is read last; w1 stays. Parameters are there anyway.
    assert held(found) == {"g": 3, "g1": 3, "w1": 2, "m1": 3, "g0": 3, "m0": 3}
    assert gone(found) == {"a0": "m0"}
    assert released(found) == [0, 1, 0, 0, 1, 0]
    assert found.layers(pair) == [range(1, 4), range(4, 6)]


def test_in_kernels() -> None:
    pair, found = course(two(), [0], fused)
    # g is only in the kernel of g1, which writes over a1; g0 is written over m1.
    assert held(found) == {"g1": 2, "w1": 2, "m1": 3, "g0": 2, "m0": 3}
    assert gone(found) == {"a0": "m0"}
    assert found.layers(pair) == [range(3), range(3, 5)]


def test_what_a_kernel_writes_over_is_gone_when_it_begins() -> None:
    _, found = course(two(reads_m1_again=True), [0], fused)
    assert held(found) == {"g1": 2, "w1": 2, "m1": 3, "g0": 3, "w0": 4, "m0": 4}
    assert gone(found) == {"a0": "g0"}


def test_time_is_the_longer_of_arithmetic_and_bytes() -> None:
    def times(size: int) -> dict[str, int]:
        b = Builder(3)
        x, w = b.input("x", size, size), b.parameter("w", size, size)
        a0 = b.op("a0", aten.mm.default, x, w, at="layers.0")
        g = b.back("g", aten.mul.Tensor, b.tangent(a0), a0, of=a0)
        _, found = course(b.joint([a0], [b.back("m", aten.mm.default, g, w, of=a0)]), [0])
        return {n.name: after - before for n, before, after in zip(found.begins, found.time[:-1], found.time[1:], strict=True)}

    matrix = 4 * 4 * 4
    assert times(4) == {"g": 3 * matrix, "m": 3 * matrix}
    # A product of matrices of 1,000 by 1,000 has 2e9 operations, at 50 a byte.
    assert times(1000) == {"g": 12_000_000, "m": 40_000_000}


def test_views_that_cross_are_one_value() -> None:
    b = Builder(3)
    x, w = b.input("x", 4, 4), b.parameter("w", 4, 4)
    a0 = b.op("a0", aten.mm.default, x, w, at="layers.0")
    t0 = b.op("t0", aten.t.default, a0, at="layers.0")
    out = b.op("out", aten.mm.default, t0, a0, at="layers.0")
    g0 = b.back("g0", aten.mm.default, b.tangent(out), t0, of=out)
    h0 = b.back("h0", aten.mm.default, g0, a0, of=out)
    joint = b.joint([out], [h0])
    _, found = course(joint, [0], views=True)
    assert held(found) == {"g0": 2, "h0": 2}
    assert gone(found) == {"a0": "end"}


def test_the_first_kernel_that_comes_after_what_is_inserted() -> None:
    pair, found = course(two(), [0], fused)
    nodes = {n.name: n for n in pair.backward.graph.nodes}
    assert [found.at(nodes[name]) for name in ("a0", "g", "g1", "w1", "g0", "m0", "output")] == [0, 0, 0, 1, 3, 4, 4]


def test_kernels_between_which_nothing_can_be_inserted_count_as_one() -> None:
    b = Builder(3)
    x, w, wide, tall = b.input("x", 4, 4), b.parameter("w", 4, 4), b.parameter("wide", 4, 400), b.parameter("tall", 400, 4)
    a0 = b.op("a0", aten.mm.default, x, w, at="layers.0")
    a1 = b.op("a1", aten.mm.default, a0, w, at="layers.1")
    t = b.tangent(a1)
    r = b.back("r", aten.mul.Tensor, t, w, of=a1)
    z = b.back("z", aten.mm.default, t, wide, of=a1)
    big = b.back("big", aten.mm.default, z, tall, of=a1)
    q = b.back("q", aten.add.Tensor, r, big, of=a1)  # in one kernel with r, behind big
    m0 = b.back("m0", aten.mm.default, q, a0, of=a0)
    _, found = course(b.joint([a1], [m0, r]), [0], fused)
    assert [n.name for n in found.begins] == ["z", "big", "m0"]
    # Beside big there are t and z, of 4 x 400, which q no longer needs.
    assert held(found)["big"] == 1 + 100 + 1
    assert gone(found) == {"a0": "end"}


class _Formula:
    """Fails where nobody gives it more than sizes."""

    def __call__(self, *_: object, **__: object) -> int:
        raise KeyError("no values")


def test_a_formula_that_fails_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(flop_registry, aten.mm, _Formula())
    _, found = course(two(), [0])
    assert [after - before for before, after in pairwise(found.time)] == [n * MATRIX for n in (2, 3, 2, 3, 3, 3)]
