"""Where reloads are issued in a backward: the rule on lists of operators, and on the pair of graphs."""

from __future__ import annotations

import pytest
from memopt.passes.joint import JointGraph
from memopt.passes.swap.journey import Journey, plan_journeys
from memopt.passes.swap.pair import Pair
from memopt.passes.swap.spread import releases, spread
from memopt.passes.swap.verify_swap import verify_swap
from memopt.passes.verify import VerificationError
from printer import Builder, plan
from swap_graphs import aten, chosen, node_of, travel
from torch.fx import Graph, Node

MATRIX = 4 * 4 * 4
"""Bytes of each value of the graphs below."""


def operators(kinds: str) -> list[Node]:
    """One operator a letter: ``m`` is a matrix product, ``p`` is elementwise, ``s`` sums, ``v`` is a view."""
    graph = Graph()
    x = graph.placeholder("x")
    targets = {"m": aten.mm.default, "p": aten.neg.default, "s": aten.sum.dim_IntList, "v": aten.t.default}
    return [graph.call_function(targets[kind], (x,)) for kind in kinds]


@pytest.mark.parametrize(
    ("kinds", "sizes", "released", "expected"),
    [
        ("mmmmmmmm", [], {}, []),
        ("mmmmmmmm", [8], {}, [0]),
        ("m", [8, 8, 8], {}, [0, 0, 0]),
        # Nothing is released: evenly by bytes, the last before the last operator.
        ("mmmmmmmm", [2, 2, 2, 2], {}, [0, 4, 6, 7]),
        ("mmmmmmmm", [1, 6, 1], {}, [0, 7, 7]),
        # Each as soon as there is room for it and all before it.
        ("mmmmmmmm", [2, 2, 2, 2], {0: 4, 2: 4}, [0, 1, 3, 3]),
        ("mmmmmmmm", [2, 2, 2, 2], {0: 3, 1: 1}, [0, 2, 6, 7]),
        ("mmmmmmmm", [2, 2, 2, 2], {0: 100}, [0, 1, 1, 1]),
        # What elementwise operators, sums and views read is free when an operator of another kind comes.
        ("mpsvmmmm", [2, 2, 2, 2], {1: 100}, [0, 4, 4, 4]),
        ("mpmmmmmm", [2, 2, 2, 2], {1: 100}, [0, 2, 2, 2]),
        # Sizes that nobody knows take no room.
        ("mmmm", [0, 0], {}, [0, 0]),
        ("mmmm", [4, 0, 4], {}, [0, 2, 3]),
    ],
)
def test_the_rule(kinds: str, sizes: list[int], released: dict[int, int], expected: list[int]) -> None:
    nodes = operators(kinds)
    places = spread(nodes, sizes, {nodes[i]: n for i, n in released.items()})
    assert [nodes.index(n) for n in places] == expected


def two_layers(values: int, between: int = 0, turned: bool = False) -> JointGraph:
    """Layers 0, 1 and 2, each with ``values`` values, each of which its own backward operator reads, the last first."""
    b = Builder(3)
    value, w = b.input("x", 4, 4), b.parameter("w", 4, 4)
    nodes: list[Node] = []
    for i in range(3 * values):
        value = b.op(f"a{i}", aten.mm.default, value, w, at=f"layers.{i // values}")
        nodes.append(b.op(f"t{i}", aten.t.default, value, at=f"layers.{i // values}") if turned else value)
    out = b.op("out", aten.neg.default, value, at="head")
    gradient = b.back("g", aten.neg.default, b.tangent(out), of=out)
    for i, node in reversed(list(enumerate(nodes))):
        gradient = b.back(f"g{i}", aten.mm.default, gradient, node, of=node)
        if i % values == 0:
            for k in range(between):
                gradient = b.back(f"between{i}_{k}", aten.neg.default, gradient)
    return b.joint([out], [gradient])


def planned(joint: JointGraph, swapped: list[int], ahead: int = 1) -> tuple[Pair, list[Journey]]:
    rules = plan(3, swap=swapped, prefetch=ahead)
    pair, moves = chosen(joint, rules)
    return pair, plan_journeys(pair, moves, ahead)


def issues(journeys: list[Journey]) -> dict[str, str]:
    return {j.move.value.name: j.issue.name for j in journeys}


def test_each_reload_has_the_room_of_a_value_that_is_gone() -> None:
    # Layer 2's backward: g11 g10 g9 g8; each reads one value for the last time, and the next operator has its room.
    found = issues(planned(two_layers(4), [0, 1])[1])
    assert found == {"a7": "g11", "a6": "g9", "a5": "g8", "a4": "g8", "a3": "g7", "a2": "g5", "a1": "g4", "a0": "g4"}


def test_what_lies_between_two_layers_is_of_neither() -> None:
    found = issues(planned(two_layers(2, between=3), [0, 1])[1])
    assert found == {"a3": "g5", "a2": "g4", "a1": "g3", "a0": "g2"}


def test_further_ahead_in_the_same_way() -> None:
    found = issues(planned(two_layers(4), [0], ahead=2)[1])
    assert found == {"a3": "g11", "a2": "g9", "a1": "g8", "a0": "g8"}


def test_what_the_issuing_backward_uses_itself_comes_at_its_beginning() -> None:
    found = issues(planned(two_layers(3), [1, 2])[1])
    assert found == {"a8": "g8", "a7": "g8", "a6": "g8", "a5": "g8", "a4": "g6", "a3": "g6"}


def test_at_first_use_without_prefetch() -> None:
    assert issues(planned(two_layers(2), [0], ahead=0)[1]) == {"a1": "g1", "a0": "g0"}


def test_a_value_is_released_once_by_its_last_reader_even_if_it_is_a_view_that_it_reads() -> None:
    rules = plan(3, swap=[0, 1])
    pair, moves = chosen(two_layers(2, turned=True), rules, views=True)
    found = {n.name: size for n, size in releases(pair, moves).items()}
    assert found == {f"g{i}": MATRIX for i in range(6)}


@pytest.mark.parametrize("ahead", [1, 2])
def test_never_more_than_ahead_plus_one_layers_and_never_after_the_issuing_backward(ahead: int) -> None:
    pair, journeys = planned(two_layers(4, between=1), [0, 1][: 3 - ahead], ahead)
    travel(pair, journeys, plan(3, swap=[0, 1][: 3 - ahead], prefetch=ahead))
    verify_swap(pair, journeys)
    names = [n.name for n in pair.backward.graph.nodes]
    for j in journeys:
        place = names.index(f"{j.move.value.name}_prefetch")
        first, last = 4 * j.issued_in + 3, 4 * j.issued_in
        before = names[place + 1 :].index(f"g{last}")  # the last operator of the issuing backward comes after it
        assert before >= 0
        assert place >= names.index(f"g{first}") - len(journeys)


@pytest.mark.parametrize(
    ("value", "behind", "fault"),
    [
        ("a6", "g8", "a6 of layer 1 is not fetched within the backward of the layer that is to fetch it"),
        ("a2", "g9", "a2 of layer 0 is not fetched within the backward of the layer that is to fetch it"),
        ("a5", "g11", "a5 of layer 1 is fetched before what is used earlier"),
        ("a6", "a7_prefetch", "a6 of layer 1 is not fetched at its place in that backward"),
    ],
)
def test_another_place_is_refused(value: str, behind: str, fault: str) -> None:
    pair, journeys = planned(two_layers(4), [0, 1])
    travel(pair, journeys, plan(3, swap=[0, 1]))
    verify_swap(pair, journeys)
    node_of(pair.backward, behind).append(node_of(pair.backward, f"{value}_prefetch"))
    with pytest.raises(VerificationError) as caught:
        verify_swap(pair, journeys)
    assert str(caught.value) == fault
