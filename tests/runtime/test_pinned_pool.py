from __future__ import annotations

import pytest
import torch
from memopt.runtime.errors import PinningFailed
from memopt.runtime.stores.host import PinnedPool

SLAB = 4096


class Pinned:
    """Counts what was pinned; ``left`` bytes may be."""

    def __init__(self, left: int = 1 << 30) -> None:
        self.sizes: list[int] = []
        self.left = left

    def __call__(self, nbytes: int) -> torch.Tensor:
        if nbytes > self.left:
            raise PinningFailed(f"{nbytes} bytes: out of memory")
        self.left -= nbytes
        self.sizes.append(nbytes)
        return torch.empty(nbytes, dtype=torch.uint8)


class Point:
    """An event."""

    def __init__(self) -> None:
        self.passed = False

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.passed = True


def test_values_share_a_slab_and_large_ones_get_a_power_of_two() -> None:
    pinned = Pinned()
    pool = PinnedPool(pinned, None, SLAB)
    taken = [pool.take(n) for n in (1000, 1000, 1000, 5000, 100)]
    assert all(taken)
    assert pinned.sizes == [SLAB, 8192]
    assert (pool.capacity, pool.allocations) == (SLAB + 8192, 2)
    assert [extent.memory.numel() for extent in taken if extent] == [1000, 1000, 1000, 5000, 100]


def test_slabs_grow_with_what_there_is() -> None:
    pinned = Pinned()
    pool = PinnedPool(pinned, None, SLAB)
    for _ in range(40):
        pool.take(SLAB)
    assert pinned.sizes == [SLAB] * 8 + [2 * SLAB] * 4 + [4 * SLAB] * 4 + [8 * SLAB]
    assert pool.capacity == 40 * SLAB


def test_equal_steps_pin_nothing_after_the_first() -> None:
    pinned = Pinned()
    pool = PinnedPool(pinned, None, SLAB)
    for _ in range(20):
        taken = [pool.take(n) for n in (3000, 700, 9000, 2000, 1)]
        for extent in taken:
            assert extent is not None
            pool.give_back(extent, [])
    assert pinned.sizes == [SLAB, 4 * SLAB]


@pytest.mark.parametrize(
    ("limit", "wanted", "sizes"),
    [
        (0, [100], [None]),
        (511, [100], [None]),
        (600, [100, 400], [512, None]),
        (SLAB - 1, [100, 2000], [2048, None]),
        (SLAB, [100, 2000], [SLAB]),
        (3 * SLAB, [3000, 3000, 3000, 3000], [SLAB, SLAB, SLAB, None]),
        (3 * SLAB, [SLAB + 1], [2 * SLAB]),
        (2 * SLAB - 1, [SLAB + 1], [None]),
    ],
)
def test_what_slabs_really_take_counts_against_the_limit(limit: int, wanted: list[int], sizes: list[int | None]) -> None:
    pinned = Pinned()
    pool = PinnedPool(pinned, limit, SLAB)
    refused = [pool.take(nbytes) is None for nbytes in wanted]
    assert pinned.sizes == [s for s in sizes if s is not None]
    assert any(refused) == (None in sizes)
    assert sum(pinned.sizes) == pool.capacity <= limit


def test_a_place_that_is_given_back_early_comes_with_what_to_wait_for() -> None:
    pool = PinnedPool(Pinned(), None, SLAB)
    first, second = pool.take(1000), pool.take(3000)
    assert first is not None
    assert second is not None
    reading, writing = Point(), Point()
    pool.give_back(first, [reading])
    pool.give_back(second, [writing])
    small, rest, other = pool.take(100), pool.take(3000), pool.take(300)
    assert small is not None
    assert rest is not None
    assert other is not None
    assert small.after == (reading,)
    assert set(rest.after) == {reading, writing}
    assert other.after == (writing,)
    reading.passed = writing.passed = True
    pool.give_back(rest, [])
    again = pool.take(3000)
    assert again is not None
    assert again.after == ()


@pytest.mark.parametrize(("left", "sizes"), [(SLAB, [SLAB]), (SLAB // 2, [SLAB // 2]), (1500, [1024])])
def test_where_a_slab_cannot_be_pinned_a_smaller_one_is(left: int, sizes: list[int]) -> None:
    pinned = Pinned(left)
    pool = PinnedPool(pinned, None, 4 * SLAB)
    assert pool.take(1000) is not None
    assert pinned.sizes == sizes
    assert (pool.capacity, pool.allocations) == (sum(sizes), 1)


def test_pinning_that_fails_changes_nothing() -> None:
    pinned = Pinned(left=SLAB)
    pool = PinnedPool(pinned, None, SLAB)
    pool.take(1000)
    with pytest.raises(PinningFailed):
        pool.take(4000)
    assert pool.capacity == SLAB
    assert pool.take(1000) is not None
