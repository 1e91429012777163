"""How bytes get from a device to a store and back: what the engine asks of every way there is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from ..layout import Layout


class Copy(Protocol):
    """A copy under way."""

    def ended(self) -> bool:
        """Whether it has ended, well or not."""

    def wait(self) -> None:
        """Have the calling thread wait until it has ended, well or not."""

    def join(self) -> None:
        """Have what the caller does next come after it: on an accelerator, what is put on the current stream."""

    def failure(self) -> BaseException | None:
        """What went wrong, once it has ended or was joined; None: nothing."""


class Ended:
    """The copy of no bytes."""

    def ended(self) -> bool:
        """True."""
        return True

    def wait(self) -> None:
        """Return at once."""

    join = wait

    def failure(self) -> None:
        """Nothing can go wrong."""


@dataclass(eq=False, slots=True)
class Parcel:
    """A stored copy, or one on its way into the store.

    Attributes:
        name: the value, for messages.
        layout: the value's form.
        carrier: who brought it; None for a value of no bytes.
        place: where it lies; the carrier's own affair.
        sent: the copy out.
        fetched: copies back, as far as they may still be going on.
    """

    name: str
    layout: Layout
    carrier: Carrier | None = None
    place: object = None
    sent: Copy = field(default_factory=Ended)
    fetched: list[Copy] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes stored."""
        return self.layout.nbytes

    def at_rest(self) -> bool:
        """Whether no copy of it is going on."""
        return self.sent.ended() and all(copy.ended() for copy in self.fetched)


def bytes_placed(parcels: Iterable[Parcel]) -> int:
    """Bytes of those that have a place."""
    return sum(parcel.nbytes for parcel in parcels if parcel.place is not None)


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes in the stores of a carrier: of values, and in all; and how often pinned memory was asked for."""

    host_bytes: int = 0
    disk_bytes: int = 0
    host_capacity: int = 0
    disk_capacity: int = 0
    pinned_allocations: int = 0


class Carrier(Protocol):
    """One way to a store and back. The engine locks around every call."""

    def send(self, parcel: Parcel, source: torch.Tensor) -> bool:
        """Find a place, start the copy of the flat bytes ``source``, set ``place`` and ``sent``. False: no room, ask another.

        The engine keeps ``source`` until ``sent`` has ended. Whatever is raised here, wherever (``KeyboardInterrupt``): either
        no copy is going on, or ``sent`` tells of it; and the place is ``place``'s, or free. Only a place between two owners
        (just taken, and just given back: an instant each) is lost.

        Raises:
            OSError: the disk refused. PinningFailed: so did the host.
        """

    def fetch(self, parcel: Parcel, target: torch.Tensor) -> Copy:
        """Start the copy back into the flat bytes ``target``, which the engine keeps, and put it among ``fetched``.

        Whatever is raised here: either no copy is going on, or ``fetched`` has it.
        """

    def give_back(self, parcel: Parcel) -> bool:
        """Free the place of a parcel nobody will ask for again. False: not yet, its copies are going on; ask again.

        Once, however often it is asked and wherever it is interrupted: a place given back twice would be somebody else's.
        """

    def held(self) -> Held:
        """What the stores hold now."""

    def stop(self, seconds: float) -> None:
        """Let copies of worker threads end; wait up to ``seconds`` for each of them."""

    def close(self) -> None:
        """Give everything back; nothing will be asked of it again."""
