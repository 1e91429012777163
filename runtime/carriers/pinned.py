"""From an accelerator to pinned host memory and back, on two streams of their own.

::

    current stream   x = ...  *event            ...   *event (y allocated)      wait for the copy, use y
    out stream                after it: x -> host
    in stream                                          after both: host -> y

Events order everything on the device; the host waits for nothing here.
"""

from __future__ import annotations

import torch

from ..devices.interface import Device, Event
from ..stores.host import PinnedExtent, PinnedPool
from .interface import Copy, Held, Parcel, bytes_placed


class StreamCopy:
    """A copy on a stream of ``device``, ended by ``event``."""

    def __init__(self, device: Device, event: Event) -> None:
        self.event = event
        self._device = device

    def ended(self) -> bool:
        """See Copy."""
        return self.event.query()

    def wait(self) -> None:
        """See Copy."""
        self.event.synchronize()

    def join(self) -> None:
        """See Copy."""
        self._device.wait(self._device.current_stream(), self.event)

    def failure(self) -> None:
        """Errors of the device come as torch's own, wherever it is next used."""


class PinnedCarrier:
    """Keeps values in ``pool``; without room there it takes none."""

    def __init__(self, device: Device, pool: PinnedPool) -> None:
        self._device = device
        self._pool = pool
        self._out = device.new_stream()
        self._in = device.new_stream()
        self._placed: set[Parcel] = set()

    def send(self, parcel: Parcel, source: torch.Tensor) -> bool:
        """See Carrier."""
        device = self._device
        extent = self._pool.take(parcel.nbytes)
        if extent is None:
            return False
        try:
            for event in (device.record(device.current_stream()), *extent.after):
                device.wait(self._out, event)
            device.copy(self._out, extent.memory, source)
            sent = StreamCopy(device, device.record(self._out))
            self._placed.add(parcel)
            parcel.sent = sent
            parcel.place = extent
        except BaseException:
            if parcel.place is None:
                device.record(self._out).synchronize()  # the copy may be going on
                self._placed.discard(parcel)
                self._pool.give_back(extent, [])
            raise
        return True

    def fetch(self, parcel: Parcel, target: torch.Tensor) -> Copy:
        """See Carrier."""
        device = self._device
        try:
            for event in (device.record(device.current_stream()), _event(parcel.sent)):
                device.wait(self._in, event)
            device.copy(self._in, target, _extent(parcel).memory)
            fetched = StreamCopy(device, device.record(self._in))
            parcel.fetched.append(fetched)
        except BaseException:
            device.record(self._in).synchronize()  # the copy may be going on
            raise
        return fetched

    def give_back(self, parcel: Parcel) -> bool:
        """At once: whoever gets the place next waits on the device for what is going on there."""
        going_on = [_event(c) for c in (parcel.sent, *parcel.fetched) if not c.ended()]
        extent, parcel.place = _extent(parcel), None
        self._placed.discard(parcel)
        self._pool.give_back(extent, going_on)
        return True

    def held(self) -> Held:
        """See Carrier."""
        held, pool = bytes_placed(self._placed), self._pool
        return Held(host_bytes=held, host_capacity=pool.capacity, pinned_allocations=pool.allocations)

    def stop(self, seconds: float) -> None:
        """There are none."""

    def close(self) -> None:
        """Pinned memory goes with the process that pinned it."""


def _extent(parcel: Parcel) -> PinnedExtent:
    assert isinstance(parcel.place, PinnedExtent)
    return parcel.place


def _event(copy: Copy) -> Event:
    assert isinstance(copy, StreamCopy)
    return copy.event
