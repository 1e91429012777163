from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from memopt.runtime.stores.extents import Extents


def test_the_smallest_gap_that_fits_is_taken_and_neighbours_become_one() -> None:
    extents = Extents(4, capacity=40)
    places = [extents.take(n) for n in (8, 4, 4, 12, 4)]
    assert places == [0, 8, 12, 16, 28]
    extents.give_back(0)
    extents.give_back(12)
    assert extents.take(3) == 12
    assert extents.take(5) == 0
    assert extents.take(16) is None
    assert extents.lacking(16) == 8
    extents.grow(8)
    assert extents.take(16) == 32
    for begin in (0, 8, 12, 16, 28, 32):
        extents.give_back(begin)
    assert extents.take(48) == 0


@given(
    alignment=st.sampled_from([1, 8, 512]),
    actions=st.lists(st.tuples(st.booleans(), st.integers(1, 3000)), max_size=80),
    chance=st.randoms(use_true_random=False),
)
def test_extents_never_overlap_and_all_is_given_back(
    alignment: int, actions: list[tuple[bool, int]], chance: random.Random
) -> None:
    extents = Extents(alignment)
    held: dict[int, int] = {}
    for take, nbytes in actions:
        if take:
            begin = extents.take(nbytes)
            if begin is None:
                extents.grow(extents.lacking(nbytes))
                begin = extents.take(nbytes)
            assert begin is not None
            assert begin % alignment == 0
            assert begin + nbytes <= extents.capacity
            assert all(begin + nbytes <= other or other + size <= begin for other, size in held.items())
            held[begin] = nbytes
        elif held:
            begin = chance.choice(sorted(held))
            del held[begin]
            extents.give_back(begin)
        assert extents.taken == sum(extents.aligned(n) for n in held.values())
    for begin in held:
        extents.give_back(begin)
    assert extents.taken == 0
    if extents.capacity:
        assert extents.take(extents.capacity) == 0, "what was given back is one gap again"


def test_equal_rounds_do_not_grow() -> None:
    extents = Extents(4096)
    sizes = [5000, 100_000, 4096, 70_000, 1]

    def round_of(order: list[int]) -> None:
        held = []
        for nbytes in sizes:
            if (begin := extents.take(nbytes)) is None:
                extents.grow(extents.lacking(nbytes))
                begin = extents.take(nbytes)
            held.append(begin)
        for i in order:
            extents.give_back(held[i])  # type: ignore[arg-type]

    round_of([4, 3, 2, 1, 0])
    capacity = extents.capacity
    for seed in range(50):
        order = list(range(len(sizes)))
        random.Random(seed).shuffle(order)
        round_of(order)
    assert extents.capacity == capacity
