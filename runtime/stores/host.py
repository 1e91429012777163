"""Pinned host memory for values, in slabs that are kept and divided among them.

Pinning is slow (it can take longer than the copy), so slabs are never given back; and torch's pinned allocator rounds up to
powers of two, so slabs are powers of two, and what they really take counts against the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from ..devices.interface import Event
from ..errors import PinningFailed
from .extents import Extents

SLAB_BYTES = 64 * 2**20
_ALIGNMENT = 512


@dataclass(eq=False, slots=True)
class Slab:
    """A pinned allocation.

    Attributes:
        memory: its bytes.
        extents: which of them are taken.
        cooling: ranges that were given back while copies from or to them were going on, each with the event of its copy.
    """

    memory: torch.Tensor
    extents: Extents
    cooling: list[tuple[range, Event]] = field(default_factory=list)


@dataclass(frozen=True, eq=False, slots=True)
class PinnedExtent:
    """Room for a value.

    Attributes:
        slab: where it lies.
        begin: and at which byte.
        memory: its bytes, flat.
        after: what must have ended before they are written to: earlier copies from or to the same bytes.
    """

    slab: Slab
    begin: int
    memory: torch.Tensor
    after: tuple[Event, ...]


class PinnedPool:
    """Slabs, and who has what of them. The owner locks."""

    def __init__(self, pin: Callable[[int], torch.Tensor], limit: int | None, slab_bytes: int = SLAB_BYTES) -> None:
        """``pin`` gives pinned memory; at most ``limit`` bytes of it are asked for."""
        self._pin = pin
        self._limit = limit
        self._slab_bytes = slab_bytes
        self._slabs: list[Slab] = []
        self._largest: int | None = None

    def take(self, nbytes: int) -> PinnedExtent | None:
        """Room for ``nbytes`` > 0; None if that would exceed the limit. Raises PinningFailed."""
        for slab in self._slabs:
            if (extent := _take_from(slab, nbytes)) is not None:
                return extent
        size = self._next_slab(nbytes)
        if size < -(-nbytes // _ALIGNMENT) * _ALIGNMENT:
            return None
        memory = self._pinned(size, 1 << (nbytes - 1).bit_length())
        self._slabs.append(Slab(memory, Extents(_ALIGNMENT, memory.numel())))
        return _take_from(self._slabs[-1], nbytes)

    @property
    def capacity(self) -> int:
        """Bytes of all slabs."""
        return sum(slab.memory.numel() for slab in self._slabs)

    @property
    def allocations(self) -> int:
        """How many slabs there are: none is ever given back."""
        return len(self._slabs)

    def _pinned(self, size: int, at_least: int) -> torch.Tensor:
        """``size`` bytes, or as many halves of it as can be had, but not less than what is wanted now."""
        while True:
            try:
                return self._pin(size)
            except PinningFailed:
                if size // 2 < max(at_least, _ALIGNMENT):
                    raise
                self._largest = size = size // 2

    def give_back(self, extent: PinnedExtent, after: Sequence[Event]) -> None:
        """Give back what ``take`` returned, to be written to again only ``after`` these."""
        slab = extent.slab
        slab.extents.give_back(extent.begin)
        place = range(extent.begin, extent.begin + extent.memory.numel())
        slab.cooling = [(r, event) for r, event in slab.cooling if not event.query()] + [(place, event) for event in after]

    def _next_slab(self, nbytes: int) -> int:
        """A power of two that holds ``nbytes``, or as much as the limit leaves."""
        # With a quarter of what there is, slabs are few and what their ends cannot hold is little.
        wanted = max(1 << (max(nbytes, self._slab_bytes) - 1).bit_length(), _power_of_two_within(self.capacity // 4))
        if self._largest is not None:  # more was refused before
            wanted = min(wanted, max(self._largest, 1 << (max(nbytes, _ALIGNMENT) - 1).bit_length()))
        if self._limit is None:
            return wanted
        return min(wanted, _power_of_two_within(self._limit - self.capacity))


def _power_of_two_within(nbytes: int) -> int:
    return 1 << nbytes.bit_length() >> 1 if nbytes > 0 else 0


def _take_from(slab: Slab, nbytes: int) -> PinnedExtent | None:
    begin = slab.extents.take(nbytes)
    if begin is None:
        return None
    end = begin + nbytes
    after = tuple(e for r, e in slab.cooling if r.start < end and begin < r.stop and not e.query())
    return PinnedExtent(slab, begin, slab.memory[begin:end], after)
