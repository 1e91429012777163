"""Divide a range of bytes into extents: best fit, and free neighbours become one.

Wherever it is interrupted, no byte is ever in two extents; what was being moved may be lost.

::

    |aaaa....bb..............|    take(4) -> 4     the smallest gap that is large enough, at its lower end
    |aaaaccccbb..............|    give_back(0), give_back(4) -> one gap of 8
"""

from __future__ import annotations

from bisect import bisect_left, insort


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
        self._close(begin, gap)
        if gap > size:
            self._open(begin + size, gap - size)
        self._taken[begin] = size
        return begin

    def give_back(self, begin: int) -> None:
        """Give back what ``take`` returned."""
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
            begin, self.capacity = self.capacity, self.capacity + size
            self._open(begin, size)

    def _open(self, begin: int, size: int) -> None:
        before = self._size_to.get(begin, 0)
        after = self._size_at.get(begin + size, 0)
        if before:
            self._close(begin - before, before)
        if after:
            self._close(begin + size, after)
        begin, size = begin - before, before + size + after
        self._size_at[begin] = self._size_to[begin + size] = size
        insort(self._gaps, (size, begin))

    def _close(self, begin: int, size: int) -> None:
        # Some of it may be missing, where it was interrupted.
        self._size_at.pop(begin, None)
        self._size_to.pop(begin + size, None)
        place = bisect_left(self._gaps, (size, begin))
        if self._gaps[place : place + 1] == [(size, begin)]:
            del self._gaps[place]
