"""Before which kernel each reload is issued: by hand, for random backwards, and on the pair of graphs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memopt.passes.joint import JointGraph
from memopt.passes.liveness.fused import fused
from memopt.passes.liveness.kernels import node_by_node
from memopt.passes.swap import journey
from memopt.passes.swap.course import Kernels
from memopt.passes.swap.hoist import hoist
from memopt.passes.swap.journey import Journey, plan_journeys
from memopt.passes.swap.pair import Pair
from memopt.passes.swap.spread import Reload, latest_places, spread, turns
from memopt.passes.swap.verify_swap import verify_swap
from memopt.passes.verify import VerificationError
from printer import Builder, plan
from swap_graphs import aten, chosen, node_of, travel
from torch.fx import Node

# Two layers of eight kernels, of one unit of time each; the second layer's values are read by its kernels 8, 10, 12 and 14.
TIME = list(range(17))
LAYERS = [range(8), range(8, 16)]
NOTHING = [0] * 24
"""Nothing is released."""
FOUR = [Reload(2, 8 + 2 * i, 9 + 2 * i, 1) for i in range(4)]


def alive(reloads: Sequence[Reload], places: Sequence[int], held: Sequence[int]) -> list[int]:
    """The bytes alive while each kernel runs."""
    inside = list(zip(reloads, places, strict=True))
    return [held[k] + sum(r.size for r, place in inside if place <= k < r.gone) for k in range(len(held))]


def late(reloads: Sequence[Reload], places: Sequence[int], time: Sequence[int], layers: Sequence[range]) -> list[int]:
    """The reloads that come late if copies run one after another, and those of each layer take as long as its backward."""
    free, found = 0.0, []
    for number, (reload, place) in enumerate(zip(reloads, places, strict=True)):
        kernels = layers[reload.layer]
        own = sum(r.size for r in reloads if r.layer == reload.layer)
        free = max(free, time[place]) + (time[kernels.stop] - time[kernels.start]) * reload.size / own
        if free > time[reload.use] + 1e-9:
            found.append(number)
    return found


MATRIX = 4 * 4 * 4
"""Bytes of each value of the graphs below."""
LATEST = [5, 7, 9, 11]
"""Copies of 2 units each, that end an eighth of a layer's backward, 1 unit, before the kernels 8, 10, 12 and 14."""
FULL = [100 - bytes_of_reloads for bytes_of_reloads in alive(FOUR, LATEST, [0] * 16)]
"""What is alive beside the reloads if there is no room for any of them before its latest place."""


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (FULL, LATEST),
        # Room everywhere, or only in the layer before: all at its beginning, as configured.
        ([100] + [0] * 15, [1, 1, 1, 1]),
        ([0] * 15 + [100], [0, 0, 0, 0]),
        # The layer before frees as much as the reloads need, piece by piece.
        ([8, 6, 4, 2, 0, 0, 0, 0] + [0] * 8, [1, 2, 3, 4]),
        # Gradients that stay take the room: what is used last waits for what the layer's own backward frees.
        ([0] * 8 + [8] * 8, [0, 0, 9, 11]),
        # One kernel in the layer before needs all there is: nobody passes it.
        ([*FULL[:4], 100, *FULL[5:]], LATEST),
        ([0, 0, 0, 0, 100, 0, 0, 0, *FULL[8:]], [5, 5, 9, 11]),
    ],
)
def test_as_early_as_there_is_room_at_no_expense_of_the_peak(held: list[int], expected: list[int]) -> None:
    assert spread(FOUR, held, NOTHING, TIME, LAYERS, 1) == expected


def test_the_latest_place_is_in_time_and_two_kernels_later_is_not() -> None:
    assert late(FOUR, LATEST, TIME, LAYERS) == []
    assert late(FOUR, [place + 2 for place in LATEST], TIME, LAYERS) == [0, 1, 2, 3]


def test_every_further_layer_ahead_begins_the_copies_a_layer_earlier() -> None:
    time, layers = list(range(25)), [range(8), range(8, 16), range(16, 24)]
    reloads = [Reload(r.size, r.use + 8, r.gone + 8, 2) for r in FOUR]
    assert latest_places(reloads, time, layers, 1) == [place + 8 for place in LATEST]
    assert latest_places(reloads, time, layers, 2) == LATEST
    full = [100 - size for size in alive(reloads, LATEST, [0] * 24)]
    assert spread(reloads, full, NOTHING, time, layers, 2) == LATEST
    assert spread(reloads, [0] * 23 + [100], NOTHING, time, layers, 2) == [0, 0, 0, 0]
    assert spread(reloads, [0] * 23 + [100], NOTHING, time, layers, 1) == [8, 8, 8, 8]


@pytest.mark.parametrize(
    ("reloads", "held", "expected"),
    [
        ([], [0] * 16, []),
        # Sizes that nobody knows take no room and no time.
        ([Reload(0, 8, 9, 1), Reload(0, 12, 13, 1)], [0] * 16, [0, 0]),
        # Of the first backward nothing can begin earlier; of a value that is used before its layer's backward, neither.
        ([Reload(4, 0, 1, 0), Reload(4, 4, 5, 0)], [50] * 16, [0, 0]),
        ([Reload(4, 5, 9, 1), Reload(4, 3, 9, 1)], [100] * 16, [0, 0]),
        # One value as large as all others: nothing of it fits in beside them.
        ([Reload(8, 8, 9, 1), Reload(2, 15, 16, 1)], [0] * 8 + [2] * 8, [0, 9]),
    ],
)
def test_edges(reloads: list[Reload], held: list[int], expected: list[int]) -> None:
    assert spread(reloads, held, NOTHING, TIME, LAYERS, 1) == expected


def test_a_layer_of_the_first_backward_that_is_itself_swapped() -> None:
    reloads = [Reload(2, 0, 1, 0), Reload(2, 4, 5, 0), Reload(2, 6, 7, 0)]
    assert spread(reloads, [0] * 15 + [100], NOTHING, TIME, LAYERS, 1) == [0, 0, 0]
    assert spread(reloads, [6, 4, 4, 4, 4, 4, 4, 0] + [0] * 8, NOTHING, TIME, LAYERS, 1) == [0, 0, 1]


@pytest.mark.parametrize(
    ("released", "expected"),
    [
        # Nothing is released: evenly by bytes, the last before the last kernel.
        ({}, [0, 4, 6, 7]),
        # Each as soon as there is room for it and all before it.
        ({0: 4, 2: 4}, [0, 1, 3, 3]),
        ({0: 3, 1: 1}, [0, 2, 6, 7]),
        ({0: 100}, [0, 1, 1, 1]),
        # What the layer's own backward releases comes too late.
        ({9: 100}, [0, 4, 6, 7]),
    ],
)
def test_taking_turns(released: dict[int, int], expected: list[int]) -> None:
    freed = [released.get(kernel, 0) for kernel in range(16)]
    assert turns(FOUR, freed, LAYERS, 1) == expected


def test_the_schedule_in_which_less_is_alive_is_the_base() -> None:
    reloads = [Reload(4, 8, 9, 1), Reload(4, 9, 10, 1)]
    assert latest_places(reloads, TIME, LAYERS, 1) == [0, 4]
    assert turns(reloads, NOTHING, LAYERS, 1) == [0, 7]
    # No room for both before kernel 7; and the other way round.
    assert spread(reloads, [96] * 7 + [92] * 9, NOTHING, TIME, LAYERS, 1) == [0, 7]
    assert spread(reloads, [90] * 4 + [92] * 12, [100] * 16, TIME, LAYERS, 1) == [0, 0]
    assert spread(FOUR, FULL, [0, 0, 100, *[0] * 13], TIME, LAYERS, 1) == LATEST


@st.composite
def backwards(draw: st.DrawFn) -> tuple[list[Reload], list[int], list[int], list[int], list[range], int]:
    """Layers of some kernels each; in each some values, read in any of its kernels."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    layers = [range(end - length, end) for length, end in zip(lengths, ends, strict=True)]
    work = draw(st.lists(st.integers(0, 9), min_size=ends[-1], max_size=ends[-1]))
    held = draw(st.lists(st.integers(0, 30), min_size=ends[-1], max_size=ends[-1]))
    reloads = []
    for number, kernels in enumerate(layers):
        for use in sorted(draw(st.lists(st.sampled_from(kernels), max_size=4))):
            reloads.append(Reload(draw(st.integers(0, 20)), use, draw(st.integers(use, kernels.stop)), number))
    released = draw(st.lists(st.integers(0, 20), min_size=ends[-1], max_size=ends[-1]))
    return reloads, held, released, [sum(work[:i]) for i in range(len(work) + 1)], layers, draw(st.integers(1, 4))


@given(backwards())
def test_random_backwards(given: tuple[list[Reload], list[int], list[int], list[int], list[range], int]) -> None:
    reloads, held, released, time, layers, ahead = given
    places = spread(reloads, held, released, time, layers, ahead)
    both = latest_places(reloads, time, layers, ahead), turns(reloads, released, layers, ahead)
    earliest = [min(layers[max(r.layer - ahead, 0)].start, r.use) for r in reloads]
    for found in (places, *both):
        assert all(a <= b for a, b in pairwise(found))
        assert all(first <= place <= r.use for first, place, r in zip(earliest, found, reloads, strict=True))
    now = alive(reloads, places, held)
    assert max(now) == min(max(alive(reloads, late_places, held)) for late_places in both)
    # No reload could be issued one kernel earlier, for it would be at the peak's expense.
    for number, (reload, place) in enumerate(zip(reloads, places, strict=True)):
        first = max(earliest[number], places[number - 1] if number else 0)
        assert place == first or now[place - 1] + reload.size > max(now)


def tower(values: int, *, between: int = 0, gradients: bool = False) -> JointGraph:
    """Layers 0, 1 and 2, each with ``values`` values, each of which its own backward operator reads, the last first.

    ``between``: operators between two backwards. ``gradients``: the last operator of each layer has a parameter, whose
    gradient stays.
    """
    b = Builder(3)
    value, w = b.input("x", 4, 4), b.parameter("w", 4, 4)
    nodes: list[Node] = []
    for i in range(3 * values):
        value = b.op(f"a{i}", aten.mm.default, value, w, at=f"layers.{i // values}")
        nodes.append(value)
    out = b.op("out", aten.neg.default, value, at="head")
    gradient = b.back("g", aten.neg.default, b.tangent(out), of=out)
    returned = []
    for i, node in reversed(list(enumerate(nodes))):
        if gradients and i % values == values - 1:
            returned.append(b.back(f"w{i}", aten.mm.default, gradient, gradient, of=node))
        gradient = b.back(f"g{i}", aten.mm.default, gradient, node, of=node)
        if i % values == 0:
            for k in range(between):
                gradient = b.back(f"between{i}_{k}", aten.neg.default, gradient)
    return b.joint([out], [gradient, *returned])


def planned(joint: JointGraph, swapped: list[int], ahead: int = 1) -> tuple[Pair, list[Journey]]:
    pair, moves = chosen(joint, plan(3, swap=swapped, prefetch=ahead))
    return pair, plan_journeys(pair, moves, ahead)


def issues(journeys: list[Journey]) -> dict[str, str]:
    return {j.move.value.name: j.issue.name for j in journeys}


def test_each_reload_has_the_room_of_a_value_that_is_gone() -> None:
    # All four values of layer 2 are alive when its backward begins: its operators g11 to g8 free one each.
    found = issues(planned(tower(4), [0, 1])[1])
    assert found == {"a7": "g10", "a6": "g9", "a5": "g8", "a4": "g7", "a3": "g6", "a2": "g5", "a1": "g4", "a0": "g3"}


def test_gradients_that_stay_take_the_room_of_the_last_layers() -> None:
    journeys = planned(tower(4, gradients=True), [0, 1])[1]
    found = {j.move.value.name: (j.issue.name, j.issued_in) for j in journeys}
    layer_1 = {"a7": ("w11", 2), "a6": ("g10", 2), "a5": ("g9", 2), "a4": ("g8", 2)}
    layer_0 = {"a3": ("g6", 1), "a2": ("g5", 1), "a1": ("g4", 1), "a0": ("g2", 0)}
    assert found == {**layer_1, **layer_0}


def test_what_lies_between_two_layers_is_room_too() -> None:
    assert issues(planned(tower(2, between=3), [0, 1])[1]) == {"a3": "g4", "a2": "between4_0", "a1": "g2", "a0": "between2_0"}


def test_further_ahead_in_the_same_way() -> None:
    assert issues(planned(tower(4), [0], ahead=2)[1]) == {"a3": "g10", "a2": "g9", "a1": "g8", "a0": "g7"}


def test_a_kernel_that_begins_before_the_layer_is_no_place_before_it() -> None:
    b = Builder(5)
    value = b.input("x", 4, 4)
    weights = [b.parameter(f"w{i}", 4, 4) for i in range(5)]
    made = []
    for i, weight in enumerate(weights):
        value = b.op(f"a{i}", aten.mul.Tensor, value, weight, at=f"layers.{i}")
        made.append(value)
    out = b.op("out", aten.mm.default, value, weights[0], at="head")
    gradient = b.back("g", aten.mm.default, b.tangent(out), weights[0], of=out)
    returned = []
    for i, node in reversed(list(enumerate(made))):  # one kernel, which begins in layer 4
        returned.append(b.back(f"d{i}", aten.mul.Tensor, gradient, node, of=node))
        gradient = b.back(f"g{i}", aten.mul.Tensor, gradient, weights[i], of=node)
    pair, moves = chosen(b.joint([out], [gradient, *returned]), plan(5, swap=[0, 1, 2]))
    assert moves
    journeys = plan_journeys(pair, moves, 1, fused)
    places = {n.name: i for i, n in enumerate(pair.backward.graph.nodes)}
    for j in journeys:
        assert places[f"d{j.returns_in + 1}"] <= places[j.issue.name] <= places[j.first_use.name]


def test_what_is_written_over_by_its_first_reader_is_gone_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Reload] = []

    def observed(reloads: Sequence[Reload], *more: Any) -> list[int]:
        given.extend(reloads)
        return spread(reloads, *more)

    monkeypatch.setattr(journey, "spread", observed)
    b = Builder(3)
    x, w = b.input("x", 4, 4), b.parameter("w", 4, 4)
    a0 = b.op("a0", aten.mm.default, x, w, at="layers.0")
    a1 = b.op("a1", aten.mm.default, a0, w, at="layers.1")
    m1 = b.back("m1", aten.mm.default, b.tangent(a1), w, of=a1)
    g0 = b.back("g0", aten.mul.Tensor, m1, a0, of=a0)  # over a0, since m1 is read again
    d0 = b.back("d0", aten.mm.default, m1, m1, of=a0)
    m0 = b.back("m0", aten.mm.default, g0, w, of=a0)
    pair, moves = chosen(b.joint([a1], [m0, d0]), plan(3, swap=[0]))
    plan_journeys(pair, moves, 1, fused)
    assert given == [Reload(MATRIX, use=1, gone=1, layer=1)]
    given.clear()
    plan_journeys(pair, moves, 1, node_by_node)
    assert given == [Reload(MATRIX, use=1, gone=2, layer=1)]


def test_at_first_use_without_prefetch() -> None:
    assert issues(planned(tower(2), [0], ahead=0)[1]) == {"a1": "g1", "a0": "g0"}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("ahead", [1, 2])
def test_never_more_than_ahead_plus_one_layers_and_in_the_order_of_use(ahead: int, gradients: bool) -> None:
    swapped = [0, 1][: 3 - ahead]
    pair, journeys = planned(tower(4, between=1, gradients=gradients), swapped, ahead)
    travel(pair, journeys, plan(3, swap=swapped, prefetch=ahead))
    verify_swap(pair, journeys)
    names = [n.name for n in pair.backward.graph.nodes]
    places = [names.index(f"{j.move.value.name}_prefetch") for j in journeys]
    assert places == sorted(places)
    for j, place in zip(journeys, places, strict=True):
        first = 4 * (j.returns_in + ahead) + 3  # the first operator of the earliest backward it may be issued in
        inserted = ("_prefetch", "_wait")
        following = next(i for i, name in enumerate(names) if i > place and not name.endswith(inserted))
        assert names.index(f"w{first}" if gradients else f"g{first}") <= following
        assert place < names.index(f"{j.move.value.name}_wait")


def random_graph(chance: random.Random, layers: int) -> JointGraph:
    """Layers of products, elementwise operators and views; some backwards read values of other layers."""
    b = Builder(layers)
    value = b.input("x", 8, 8)
    weights = [b.parameter(f"w{i}", 8, 8) for i in range(layers)]
    made: list[tuple[Node, Node, Node]] = []
    for i, weight in enumerate(weights):
        for k in range(chance.randint(1, 3)):
            before, target = value, chance.choice([aten.mm.default, aten.mul.Tensor, aten.mul.Tensor, aten.t.default])
            given = (value,) if target is aten.t.default else (value, weight)
            value = b.op(f"a{i}_{k}", target, *given, at=f"layers.{i}")
            made.append((value, before, weight))
    out = b.op("out", aten.neg.default, value, at="head")
    gradient = b.back("g", aten.neg.default, b.tangent(out), of=out)
    returned = []
    for n, (own, before, weight) in enumerate(reversed(made)):
        if chance.random() < 0.4:
            returned.append(b.back(f"d{n}", chance.choice([aten.mm.default, aten.mul.Tensor]), gradient, before, of=own))
        target = chance.choice([aten.mm.default, aten.mul.Tensor, aten.mul.Tensor])
        gradient = b.back(f"h{n}", target, gradient, own if chance.random() < 0.7 else weight, of=own)
        if chance.random() < 0.15:
            gradient = b.back(f"z{n}", aten.add.Tensor, gradient, chance.choice(made)[0], of=own)
    return b.joint([out], [*returned, gradient])


@pytest.mark.parametrize("kernels_of", [node_by_node, fused])
def test_random_graphs_travel_as_planned(kernels_of: Kernels) -> None:
    travelled = 0
    for seed in range(60):
        chance = random.Random(seed)
        layers, ahead = chance.randint(3, 6), chance.randint(1, 2)
        rules = plan(
            layers, swap=sorted(chance.sample(range(layers - ahead), chance.randint(1, layers - ahead))), prefetch=ahead
        )
        pair, moves = chosen(random_graph(chance, layers), rules, views=bool(seed % 2))
        hoist(pair, moves)
        journeys = plan_journeys(pair, moves, ahead, kernels_of)
        travel(pair, journeys, rules)
        verify_swap(pair, journeys)
        travelled += bool(journeys)
    assert travelled > 40


@pytest.mark.parametrize(
    ("value", "behind", "fault"),
    [
        ("a6", "g8", "a6 of layer 1 is not fetched at its place"),
        ("a2", "g9", "a2 of layer 0 is fetched before the backward of layer 1"),
        ("a5", "g11", "a5 of layer 1 is fetched before what is used earlier"),
    ],
)
def test_another_place_is_refused(value: str, behind: str, fault: str) -> None:
    pair, journeys = planned(tower(4), [0, 1])
    travel(pair, journeys, plan(3, swap=[0, 1]))
    verify_swap(pair, journeys)
    node_of(pair.backward, behind).append(node_of(pair.backward, f"{value}_prefetch"))
    with pytest.raises(VerificationError) as caught:
        verify_swap(pair, journeys)
    assert str(caught.value) == fault
