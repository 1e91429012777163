"""From an accelerator to a file and back, in chunks through a little pinned memory, by worker threads.

::

    out stream    x0 -> A    x1 -> B              x2 -> A
    out worker               A -> file            B -> file     A -> file
    in worker     file -> A  file -> B            file -> A
    in stream                A -> y0  B -> y1               A -> y2

While one half of the pinned memory is copied, the other is written or read: it need not hold a value, however large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from ..devices.interface import Device, Event
from ..memory import memory_of
from ..stores.disk import DiskArena
from ..workers import Job, Worker
from .file import raise_if_failed
from .interface import Copy, Held, Parcel, bytes_placed

CHUNK_BYTES = 16 * 2**20


class _Lane:
    """One direction: a worker, its stream, and two halves of pinned memory, each with the last copy from or to it."""

    def __init__(self, device: Device, worker: Worker, chunk_bytes: int) -> None:
        self.worker = worker
        self.stream = device.new_stream()
        self.memory: list[torch.Tensor] = []
        self.copied: list[Event | None] = [None, None]
        self._device = device
        self._chunk_bytes = chunk_bytes

    def prepare(self) -> None:
        """Pin the memory, if that is still to be done. Raises PinningFailed."""
        while len(self.memory) < len(self.copied):
            self.memory.append(self._device.pin(self._chunk_bytes))

    def chunks(self, flat: torch.Tensor) -> Iterator[tuple[int, int, torch.Tensor, torch.Tensor]]:
        """Of ``flat``: where each chunk begins, which half it goes through, the chunk, and its room in that half."""
        for number, begin in enumerate(range(0, flat.numel(), self._chunk_bytes)):
            half, chunk = number % len(self.memory), flat[begin : begin + self._chunk_bytes]
            yield begin, half, chunk, self.memory[half][: chunk.numel()]

    def copy(self, half: int, target: torch.Tensor, source: torch.Tensor) -> None:
        """Put a copy from or to a half on the stream."""
        self._device.copy(self.stream, target, source)
        self.copied[half] = self._device.record(self.stream)

    def finish(self, half: int) -> None:
        """Wait for the last copy from or to a half."""
        event, self.copied[half] = self.copied[half], None
        if event is not None:
            event.synchronize()

    def finish_all(self) -> None:
        """Wait for all copies: nothing of theirs is read or written any more."""
        for half in range(len(self.copied)):
            self.finish(half)


class _Fetched:
    """A reload: read by the worker, then copied by the stream."""

    def __init__(self, device: Device) -> None:
        self.job: Job | None = None
        self.event: Event | None = None
        self._device = device

    def ended(self) -> bool:
        """See Copy."""
        assert self.job is not None
        return self.job.ended() and (self.event is None or self.event.query())

    def wait(self) -> None:
        """See Copy."""
        assert self.job is not None
        self.job.wait()
        if self.event is not None:
            self.event.synchronize()

    def join(self) -> None:
        """See Copy. The host waits until the worker has put the last chunk on its stream."""
        assert self.job is not None
        self.job.wait()
        if self.event is not None:
            self._device.wait(self._device.current_stream(), self.event)

    def failure(self) -> BaseException | None:
        """See Copy."""
        assert self.job is not None
        return self.job.failure()


class StagedCarrier:
    """Keeps values in ``arena``."""

    def __init__(
        self,
        device: Device,
        arena: DiskArena,
        chunk_bytes: int = CHUNK_BYTES,
        new_worker: Callable[[str], Worker] = Worker,
    ) -> None:
        self._device = device
        self._arena = arena
        self._out = _Lane(device, new_worker("memopt-out"), chunk_bytes)
        self._in = _Lane(device, new_worker("memopt-in"), chunk_bytes)
        self._placed: set[Parcel] = set()

    def send(self, parcel: Parcel, source: torch.Tensor) -> bool:
        """See Carrier."""
        self._out.prepare()
        self._in.prepare()
        offset = self._arena.take(parcel.nbytes)
        try:
            ready = self._device.record(self._device.current_stream())
            self._out.worker.submit(lambda: self._write(source, offset, ready), lambda job: self._note(parcel, offset, job))
        except BaseException:
            if parcel.place is None:
                self._placed.discard(parcel)
                self._arena.give_back(offset)
            raise
        return True

    def fetch(self, parcel: Parcel, target: torch.Tensor) -> Copy:
        """See Carrier."""
        ready = self._device.record(self._device.current_stream())
        fetched = _Fetched(self._device)

        def note(job: Job) -> None:
            fetched.job = job
            parcel.fetched.append(fetched)

        self._in.worker.submit(lambda: self._read(parcel.sent, target, _offset(parcel), ready, fetched), note)
        return fetched

    def _note(self, parcel: Parcel, offset: int, job: Job) -> None:
        self._placed.add(parcel)
        parcel.sent = job
        parcel.place = offset

    def give_back(self, parcel: Parcel) -> bool:
        """See Carrier."""
        if not parcel.at_rest():
            return False
        offset, parcel.place = _offset(parcel), None
        self._placed.discard(parcel)
        self._arena.give_back(offset)
        return True

    def held(self) -> Held:
        """See Carrier."""
        pinned = [*self._out.memory, *self._in.memory]
        return Held(
            disk_bytes=bytes_placed(self._placed),
            disk_capacity=self._arena.capacity,
            host_capacity=sum(memory.numel() for memory in pinned),
            pinned_allocations=len(pinned),
        )

    def stop(self, seconds: float) -> None:
        """See Carrier."""
        for worker in (self._out.worker, self._in.worker):
            worker.stop(seconds)

    def close(self) -> None:
        """See Carrier."""
        self._arena.close()

    def _write(self, source: torch.Tensor, offset: int, ready: Event) -> None:
        lane = self._out
        self._device.wait(lane.stream, ready)
        before: tuple[int, int, torch.Tensor] | None = None
        try:
            for begin, half, chunk, room in lane.chunks(source):
                lane.copy(half, room, chunk)
                if before is not None:
                    self._write_chunk(*before, offset)
                before = begin, half, room
            if before is not None:
                self._write_chunk(*before, offset)
        finally:
            lane.finish_all()

    def _write_chunk(self, begin: int, half: int, room: torch.Tensor, offset: int) -> None:
        self._out.finish(half)
        self._arena.write(offset + begin, memory_of(room))

    def _read(self, sent: Copy, target: torch.Tensor, offset: int, ready: Event, fetched: _Fetched) -> None:
        raise_if_failed(sent)
        lane = self._in
        self._device.wait(lane.stream, ready)
        try:
            for begin, half, chunk, room in lane.chunks(target):
                lane.finish(half)
                self._arena.read(offset + begin, memory_of(room))
                lane.copy(half, chunk, room)
                fetched.event = lane.copied[half]
        except BaseException:
            lane.finish_all()
            raise


def _offset(parcel: Parcel) -> int:
    assert isinstance(parcel.place, int)
    return parcel.place
