"""From CPU memory to a file and back, by worker threads.

::

    caller    offload(x)          ...  prefetch ----------- wait
    out             pwrite x
    in                                   (after pwrite) preadv x
"""

from __future__ import annotations

import torch

from ..memory import memory_of
from ..stores.disk import DiskArena
from ..workers import Job, Worker
from .interface import Copy, Held, Parcel, bytes_placed


class FileCarrier:
    """Writes from and reads into the values' own memory: nothing is staged."""

    def __init__(self, arena: DiskArena) -> None:
        self._arena = arena
        self._out = Worker("memopt-out")
        self._in = Worker("memopt-in")
        self._placed: set[Parcel] = set()

    def send(self, parcel: Parcel, source: torch.Tensor) -> bool:
        """See Carrier."""
        memory = memory_of(source)
        offset = self._arena.take(parcel.nbytes)
        try:
            # Of the tensor the job knows only the address: it is freed by a caller, not by the worker.
            self._out.submit(lambda: self._arena.write(offset, memory), lambda job: self._note(parcel, offset, job))
        except BaseException:
            if parcel.place is None:
                self._placed.discard(parcel)
                self._arena.give_back(offset)
            raise
        return True

    def fetch(self, parcel: Parcel, target: torch.Tensor) -> Copy:
        """See Carrier."""
        sent, offset, memory = parcel.sent, _offset(parcel), memory_of(target)

        def read() -> None:
            raise_if_failed(sent)
            self._arena.read(offset, memory)

        return self._in.submit(read, parcel.fetched.append)

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
        return Held(disk_bytes=bytes_placed(self._placed), disk_capacity=self._arena.capacity)

    def stop(self, seconds: float) -> None:
        """See Carrier."""
        for worker in (self._out, self._in):
            worker.stop(seconds)

    def close(self) -> None:
        """See Carrier."""
        self._arena.close()


def raise_if_failed(copy: Copy) -> None:
    """Wait for ``copy`` and raise what went wrong with it."""
    copy.wait()
    failure = copy.failure()
    if failure is not None:
        raise failure


def _offset(parcel: Parcel) -> int:
    assert isinstance(parcel.place, int)
    return parcel.place
