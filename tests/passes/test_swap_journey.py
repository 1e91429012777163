from __future__ import annotations

import pytest
from memopt.passes.joint import JointGraph
from memopt.passes.matched import Matched
from memopt.passes.policy import Plan
from memopt.passes.swap.choose_offload import choose_offload
from memopt.passes.swap.journey import Journey, plan_journeys, uses
from memopt.passes.swap.mark_offload import mark_offload
from memopt.passes.swap.pair import Pair
from printer import Builder, plan, recompute, split
from swap_graphs import aten, chosen, node_of, tower

FOUR = ("layers.0", "layers.1", "layers.2", "layers.3")


def planned(joint: JointGraph, rules: Plan, *, views: bool = False) -> list[Journey]:
    pair, moves = chosen(joint, rules, views=views)
    return plan_journeys(pair, moves, rules.swap.prefetch)


def layers_of(journeys: list[Journey]) -> dict[str, tuple[int | None, int | None, int | None]]:
    """What moves -> the layers in which it leaves, is fetched and is used."""
    return {j.move.value.name: (j.leaves_in, j.issued_in, j.returns_in) for j in journeys}


@pytest.mark.parametrize(
    ("places", "swapped", "ahead", "expected"),
    [
        (FOUR, [0, 1], 1, {"a1": (2, 2, 1), "a0": (1, 1, 0)}),
        (FOUR, [0, 1], 2, {"a1": (2, 3, 1), "a0": (1, 2, 0)}),
        (FOUR, [0, 1], 10, {"a1": (2, 3, 1), "a0": (1, 3, 0)}),
        (FOUR, [0, 1], 0, {"a1": (2, 1, 1), "a0": (1, 0, 0)}),
        (FOUR, [0, 3], 2, {"a3": (None, 3, 3), "a0": (1, 2, 0)}),
        (("layers.2", "layers.0", "layers.3"), [2], 1, {"a0": (0, 0, 2)}),
        (("layers.2", "layers.0", "layers.3"), [0, 2], 2, {"a1": (3, 3, 0), "a0": (0, 3, 2)}),
        (("layers.0", "middle", "layers.1"), [0], 1, {"a0": (None, 1, 0)}),
        (("layers.0.mlp", "layers.0.mlp", "layers.1"), [0], 1, {"a1": (1, 1, 0), "a0": (0, 1, 0)}),
    ],
    ids=[
        "one ahead",
        "two ahead",
        "more than there are",
        "none ahead",
        "unswapped layers between count",
        "layers run in another order",
        "two ahead in that order",
        "what lies outside the layers does not count",
        "several values of a layer",
    ],
)
def test_a_reload_is_issued_so_many_layers_earlier_in_the_order_of_the_backward(places, swapped, ahead, expected) -> None:
    journeys = planned(tower(*places), plan(8, swap=swapped, prefetch=ahead))
    assert layers_of(journeys) == expected
    assert [j.move.value.name for j in journeys] == list(expected)  # in the order of their first use


@pytest.mark.parametrize(("ahead", "issues"), [(1, {"a2": "g2", "a0": "g1"}), (2, {"a2": "g2", "a0": "g2"})])
def test_each_call_of_a_layer_counts(ahead: int, issues: dict[str, str]) -> None:
    joint = tower("layers.0", "layers.1", "layers.0", calls=(0, 0, 1))
    journeys = planned(joint, plan(8, swap=[0], prefetch=ahead))
    assert {j.move.value.name: j.issue.name for j in journeys} == issues
    assert {j.move.value.name: j.first_use.name for j in journeys} == {"a2": "g2", "a0": "g0"}


@pytest.mark.parametrize(
    ("ahead", "nodes"),
    [
        (0, {"a2": ("a3", "g2", "g2"), "a1": ("a2", "g1", "g1"), "a0": ("a1", "g0", "g0")}),
        (1, {"a2": ("a3", "g3", "g2"), "a1": ("a2", "g3", "g1"), "a0": ("a1", "g2", "g0")}),
    ],
)
def test_places_are_the_first_nodes_of_a_backward_and_the_first_use(ahead: int, nodes: dict[str, tuple[str, str, str]]) -> None:
    joint = tower("layers.0", "layers.1.fc1", "layers.1.fc2", "layers.2")
    journeys = planned(joint, plan(8, swap=[0, 1], prefetch=ahead))
    assert {j.move.value.name: (j.last_use.name, j.issue.name, j.first_use.name) for j in journeys} == nodes


def shared() -> JointGraph:
    """``v`` is read in the backward of layers 0 and 1, and by the forward last through a view, in layer 1."""
    b = Builder(3)
    v = b.op("v", aten.mm.default, b.input("x", 4, 4), b.parameter("w", 4, 4), at="layers.0")
    r0 = b.op("r0", aten.mul.Tensor, v, v, at="layers.0")
    turned = b.op("turned", aten.t.default, v, at="layers.0")
    r1 = b.op("r1", aten.mul.Tensor, r0, turned, at="layers.1")
    r2 = b.op("r2", aten.neg.default, r1, at="layers.2")
    g2 = b.back("g2", aten.neg.default, b.tangent(r2), of=r2)
    g1 = b.back("g1", aten.mul.Tensor, g2, turned, of=r1)
    g0 = b.back("g0", aten.mul.Tensor, g1, v, of=r0)
    return b.joint([r2], [g0])


def test_a_value_that_two_layers_read_returns_for_the_first_of_them() -> None:
    (journey,) = planned(shared(), plan(3, swap=[0, 1]), views=True)
    assert (journey.leaves_in, journey.issued_in, journey.returns_in) == (1, 2, 1)
    assert (journey.last_use.name, journey.issue.name, journey.first_use.name) == ("r1", "g2", "g1")


def test_a_view_is_no_use_and_what_reads_it_is() -> None:
    pair, _ = chosen(shared(), plan(3, swap=[0, 1]), views=True)
    assert [n.name for n in uses(node_of(pair.forward, "v"))] == ["v", "r0", "r1"]
    assert [n.name for n in uses(node_of(pair.forward, "turned"))] == ["turned", "r0", "r1"]


def test_what_the_forward_does_not_read_leaves_where_it_is_made() -> None:
    b = Builder()
    out = b.op("out", aten.mm.default, b.input("x", 4, 4), b.parameter("w", 4, 4), at="layers.0")
    top = b.op("top", aten.sort.default, out, at="layers.0")
    values, places = (b.item(n, top, i, at="layers.0") for i, n in enumerate(("values", "places")))
    joint = b.joint([values], [b.back("g", aten.mul.Tensor, b.tangent(values), places, of=top)])
    (journey,) = planned(joint, plan(swap=[0]))
    assert (journey.move.value.name, journey.last_use.name, journey.leaves_in) == ("places", "places", 0)


def test_a_view_that_several_layers_share_begins_no_backward() -> None:
    b = Builder()
    x, w = b.input("x", 4, 4), b.parameter("w", 4, 4)
    turned = b.op("turned", aten.t.default, w, at="layers.0")
    v = b.op("v", aten.mm.default, x, turned, at="layers.0")
    out = b.op("out", aten.mm.default, v, turned, at="layers.1")
    g1 = b.back("g1", aten.mm.default, b.tangent(out), turned, of=out)
    joint = b.joint([out], [b.back("g0", aten.mul.Tensor, g1, v, of=v)])
    rules, matched = plan(swap=[0]), Matched()
    mark_offload(joint, rules, matched)
    recompute(turned)
    pair = Pair(joint, *split(joint), matched.swapped)
    (journey,) = plan_journeys(pair, choose_offload(pair, rules.swap, matched), 1)
    assert [n.name for n in pair.backward.graph.nodes if n.op == "call_function"] == ["turned", "g1", "g0"]
    assert (journey.issue.name, journey.issued_in, journey.returns_in) == ("g1", 1, 0)
