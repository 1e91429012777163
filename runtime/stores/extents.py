"""Divide a range of bytes into extents: best fit, and free neighbours become one.

What is taken is the truth; where anything is interrupted, the gaps are found again from it.

::

    |aaaa....bb..............|    take(4) -> 4     the smallest gap that is large enough, at its lower end
    |aaaaccccbb..............|    give_back(0), give_back(4) -> one gap of 8
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, insort
from collections.abc import Iterator


class Extents:
    """Which parts of ``range(capacity)`` are taken. Not safe for several threads: the owner locks.

    Attributes:
        capacity: bytes in all.
    """

    def __init__(self, alignment: int, capacity: int = 0) -> None:
        self.capacity = 0
        self._alignment = alignment
        self._taken: dict[int, int] = {}  # begin -> size
        self._gaps: list[tuple[int, int]] = []  # (size, begin), ascending
        self._size_at: dict[int, int] = {}  # begin of a gap -> its size
        self._size_to: dict[int, int] = {}  # end of a gap -> its size
        self.grow(capacity)

    def aligned(self, nbytes: int) -> int:
        """``nbytes``, rounded up to the alignment."""
        return -(-nbytes // self._alignment) * self._alignment

    def take(self, nbytes: int) -> int | None:
        """Take ``nbytes`` > 0 and return where they begin; None if no gap is large enough."""
        size = self.aligned(nbytes)
        place = bisect_left(self._gaps, (size, 0))
        if place == len(self._gaps):
            return None
        gap, begin = self._gaps[place]
        with self._whole():
            self._close(begin, gap)
            if gap > size:
                self._open(begin + size, gap - size)
            self._taken[begin] = size
        return begin

    def give_back(self, begin: int) -> None:
        """Give back what ``take`` returned."""
        with self._whole():
            self._open(begin, self._taken.pop(begin))

    @property
    def taken(self) -> int:
        """Bytes taken, rounded up to the alignment."""
        return sum(self._taken.values())

    def lacking(self, nbytes: int) -> int:
        """By how much to ``grow`` for a ``take(nbytes)`` that found no gap: what the gap at the end does not give."""
        return self.aligned(nbytes) - self._size_to.get(self.capacity, 0)

    def grow(self, nbytes: int) -> None:
        """Add ``nbytes`` at the end, rounded down to the alignment."""
        size = nbytes // self._alignment * self._alignment
        if size > 0:
            with self._whole():
                begin, self.capacity = self.capacity, self.capacity + size
                self._open(begin, size)

    @property
    def free(self) -> int:
        """Bytes in gaps."""
        return sum(size for size, _ in self._gaps)

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Within, gaps are changed; if that is interrupted, they are found again."""
        try:
            yield
        except BaseException:
            self._gaps, self._size_at, self._size_to = [], {}, {}
            end = 0
            for begin, size in [*sorted(self._taken.items()), (self.capacity, 0)]:
                if begin > end:
                    self._open(end, begin - end)
                end = begin + size
            raise

    def _open(self, begin: int, size: int) -> None:
        before = self._size_to.get(begin, 0)
        after = self._size_at.get(begin + size, 0)
        if before:
            self._close(begin - before, before)
        if after:
            self._close(begin + size, after)
        begin, size = begin - before, before + size + after
        insort(self._gaps, (size, begin))
        self._size_at[begin] = self._size_to[begin + size] = size

    def _close(self, begin: int, size: int) -> None:
        del self._gaps[bisect_left(self._gaps, (size, begin))], self._size_at[begin], self._size_to[begin + size]
